"""Functions that are replaced for the calls of one thread."""

from __future__ import annotations

import inspect
import threading
import types
from typing import Any

from embgrad.toolkit.patching import Interception


class Base:
    @classmethod
    def name(cls, *suffixes: str) -> str:
        return "".join((cls.__name__, *suffixes))


class Child(Base):
    pass


class Grandchild(Child):
    pass


def heard(original: Any, *args: Any) -> Any:
    return f"heard {original(*args)}"


def test_a_function_is_replaced_in_this_thread_alone() -> None:
    module = types.SimpleNamespace(function=lambda value: value + 1)
    original, interception, others = module.function, Interception(lambda: module, "function"), []
    with interception.by(lambda original, value: 10 * original(value)):
        assert module.function(1) == 20
        assert inspect.signature(module.function) == inspect.signature(original)
        thread = threading.Thread(target=lambda: others.append(module.function(1)))
        thread.start()
        thread.join()
    assert others == [2]
    assert module.function is original


def test_a_class_method_stays_that_of_the_class_on_which_it_is_called() -> None:
    """Another thread's call on a subclass, too, while the method of its base is replaced."""
    interception, others = Interception(lambda: Child, "name"), []
    with interception.by(heard):
        assert [each.name("!") for each in (Base, Child, Grandchild)] == ["Base!", "heard Child!", "heard Grandchild!"]
        thread = threading.Thread(target=lambda: others.extend((Child.name(), Grandchild.name())))
        thread.start()
        thread.join()
    assert others == ["Child", "Grandchild"]
    assert "name" not in vars(Child)
    with interception.by(lambda original, *args: original.__self__):
        assert Grandchild.name() is Grandchild


def test_contexts_may_overlap() -> None:
    module = types.SimpleNamespace(function=lambda: "original")
    interception = Interception(lambda: module, "function")
    first, second = (interception.by(lambda original, name=name: name) for name in ("first", "second"))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert module.function() == "second"
    second.__exit__(None, None, None)
    assert module.function() == "original"
    module.function = lambda: "another"
    with interception.by(lambda original: f"heard {original()}"):
        assert module.function() == "heard another"
