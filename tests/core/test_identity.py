"""What tells whether two functions do the same: their code, and all that they are made around."""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import datetime
import fractions
import functools
import gc
import itertools
import operator
import pathlib
import random
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from embgrad.identity import Same, UntoldError, code_of, identity_of


def test_functions_of_one_piece_of_python_around_the_same_are_the_same() -> None:
    class Held:
        def method(self) -> None: ...

        def __call__(self) -> None: ...

    one, other = Held(), Held()

    def made(held: Any) -> Any:
        return lambda inputs, option=2: (held, inputs, option)

    assert identity_of(made(one)) == identity_of(made(one))
    assert hash(identity_of(made(one))) == hash(identity_of(made(one)))
    assert identity_of(made(one)) != identity_of(made(other))
    assert identity_of(made(1)) != identity_of(made(True))
    assert identity_of(made(1)) != identity_of(made(2))
    assert identity_of(one.method) == identity_of(one.method) != identity_of(other.method)
    assert identity_of(one) == identity_of(one) != identity_of(other)
    assert code_of(made(1)) == code_of(made(2)) != code_of(one)


factor: Any = 1.0


def scaled(inputs: Any, again: bool = False) -> Any:
    return scaled(inputs) if again else factor * inputs


@pytest.mark.parametrize(
    ("one", "other"), [(1.0, 2.0), ([1, {"a": 2}], [1, {"a": 3}]), (np.arange(3), np.arange(3) + 1), (len, max)]
)
def test_functions_around_other_globals_are_not_the_same(monkeypatch: pytest.MonkeyPatch, one: Any, other: Any) -> None:
    functions = (scaled, lambda inputs: scaled(inputs), lambda inputs: [factor for _ in inputs])
    found = []
    for value in (one, copy.deepcopy(one), other):
        monkeypatch.setitem(globals(), "factor", value)
        found.append([identity_of(function) for function in functions])
    first, same, apart = found
    assert first == same
    assert list(map(hash, first)) == list(map(hash, same))
    assert not any(map(operator.eq, first, apart))


def test_functions_around_what_was_changed_in_place_are_not_the_same() -> None:
    array, entries = np.zeros(3), [1.0]
    entries.append(entries)  # type: ignore[arg-type]

    def function(inputs: Any) -> Any:
        return array * entries[0] * inputs

    before = identity_of(function)
    assert identity_of(function) == before
    array[0] = 1
    assert identity_of(function) != before
    array[0], entries[0] = 0, 2.0
    assert identity_of(function) != before
    entries[0] = 1.0
    assert identity_of(function) == before


def test_a_function_is_another_once_what_it_reads_is() -> None:
    array, listed, named = np.ones(3), [1.0], {"one": {"two": 2.0}}

    def set_factor(by: float) -> None:
        nonlocal factor
        factor = by

    factor = 1.0

    def helper(value: Any) -> Any:
        return value * factor

    def call(model: Any, inputs: Any, *, device: Any = range(3)) -> Any:
        return [helper(one) * array * listed[0] * named["one"]["two"] * SCALE for one in inputs[: GLOBAL["length"]]]

    changes: list[Callable[[], Any]] = [
        lambda: array.__setitem__(1, 4.0),
        lambda: listed.__setitem__(0, 4.0),
        lambda: named["one"].__setitem__("two", 4.0),
        lambda: set_factor(4.0),
        lambda: GLOBAL.__setitem__("length", 4),
        lambda: globals().__setitem__("SCALE", 4.0),
    ]
    for change in changes:
        before = identity_of(call)
        assert identity_of(call) == before
        assert hash(identity_of(call)) == hash(before)
        change()
        assert identity_of(call) != before


#: What a function above reads.
SCALE, GLOBAL = 1.0, {"length": 2}


class Scale:
    """What a function may be a method of, or be made around."""

    power = 1.0

    def __init__(self, by: float = 1.0) -> None:
        self.by, self.whole = by, self

    def call(self, inputs: Any) -> Any:
        return self.by * inputs**self.power


class Called(Scale):
    """One that can be called by itself."""

    def __call__(self, inputs: Any) -> Any:
        return self.call(inputs)


class Slotted:
    """One whose attributes lie in slots, which weak references do not take."""

    __slots__ = ("by",)

    def __init__(self) -> None:
        self.by = 1.0

    def call(self, inputs: Any) -> Any:
        return self.by * inputs


class Named(NamedTuple):
    """A tuple of the user's with names."""

    by: float


class Table(dict[str, float]):
    """A dict of the user's, which does more."""

    factor = 1.0

    def of(self, name: str) -> float:
        return self[name] * self.factor


class Installed(np.vectorize):
    """Stands for an object of a class of the user's whose base a package has brought, such as a module or a trainer."""

    power, by = 1.0, 1.0

    def _scaled(self, inputs: Any) -> Any:
        return self.by * inputs**self.power

    def call(self, inputs: Any) -> Any:
        return self._scaled(inputs)


def by_class(inputs: Any) -> Any:
    return inputs * Scale.power


def by_attribute(inputs: Any) -> Any:
    return inputs * vars(by_attribute)["by"]


@functools.lru_cache
def by_cache(inputs: Any) -> Any:
    return inputs * Scale.power


def changed_and_back(function: Any, change: Callable[[], Any], back: Callable[[], Any]) -> None:
    before = identity_of(function)
    assert identity_of(function) == before
    assert hash(identity_of(function)) == hash(before)
    change()
    assert identity_of(function) != before
    back()
    assert identity_of(function) == before


@pytest.mark.parametrize("kind", [Scale, Called, Slotted])
def test_what_an_object_of_the_users_holds_counts(kind: Any) -> None:
    held = kind()
    functions = [held.call, lambda inputs, held=held: held.call(inputs), functools.partial(kind.call, held)]
    functions += [held] if callable(held) else []
    for function in functions:
        changed_and_back(function, lambda: setattr(held, "by", 2.0), lambda: setattr(held, "by", 1.0))


def test_what_a_class_of_the_users_holds_counts() -> None:
    held = Called()
    set_power = functools.partial(setattr, Scale, "power")
    for function in (by_class, by_cache, held, held.call, lambda inputs: by_class(inputs)):
        changed_and_back(function, lambda: set_power(2.0), lambda: set_power(1.0))
    method = Scale.call
    changed_and_back(
        held, lambda: setattr(Scale, "call", lambda self, inputs: inputs), lambda: setattr(Scale, "call", method)
    )


def test_what_methods_read_of_an_object_counts_where_a_package_brought_a_base_of_its_class() -> None:
    held, scaled = Installed(len), Installed._scaled
    functions = (held.call, lambda inputs: held.call(inputs), functools.partial(Installed.call, held))
    for function in functions:
        changed_and_back(function, functools.partial(setattr, held, "by", 2.0), functools.partial(delattr, held, "by"))
        changed_and_back(function, lambda: setattr(Installed, "power", 2.0), lambda: setattr(Installed, "power", 1.0))
        changed_and_back(
            function,
            lambda: setattr(Installed, "_scaled", lambda self, inputs: inputs),
            lambda: setattr(Installed, "_scaled", scaled),
        )


def test_what_a_helper_reads_of_an_object_counts_that_it_is_given() -> None:
    held = Installed(len)

    def helper(given: Any, inputs: Any) -> Any:
        return given.by * inputs

    for function in (functools.partial(helper, held), lambda inputs: helper(held, inputs)):
        changed_and_back(function, functools.partial(setattr, held, "by", 2.0), functools.partial(delattr, held, "by"))


def test_what_hangs_on_a_function_counts() -> None:
    def set_by(by: float) -> None:
        by_attribute.by = by  # type: ignore[attr-defined]

    set_by(1.0)
    changed_and_back(by_attribute, lambda: set_by(2.0), lambda: set_by(1.0))


@pytest.mark.parametrize(
    ("held", "change"),
    [
        ({1, 2}, lambda held: held.add(3)),
        ({(1, "a"): {4}}, lambda held: held[1, "a"].add(5)),
        (collections.OrderedDict(a=1.0, b=2.0), lambda held: held.move_to_end("a")),
        (collections.OrderedDict(a=1.0), lambda held: held.update(a=2.0)),
        (collections.defaultdict(lambda: 1.0), lambda held: setattr(held, "default_factory", lambda: 2.0)),
        (collections.Counter("abc"), lambda held: held.update("a")),
        (collections.deque([1.0]), lambda held: held.append(2.0)),
        (collections.ChainMap({"a": 1.0}), lambda held: held.update(a=2.0)),
        (collections.UserDict(a=1.0), lambda held: held.update(a=2.0)),
        (types.SimpleNamespace(by=1.0), lambda held: setattr(held, "by", 2.0)),
        (argparse.Namespace(by=1.0), lambda held: setattr(held, "by", 2.0)),
        (bytearray(b"a"), lambda held: held.append(1)),
        (Table(a=1.0), lambda held: held.update(a=2.0)),
        (Table(a=1.0), lambda held: setattr(held, "factor", 2.0)),
        (np.ma.array([1.0, 2.0], mask=[True, False]), lambda held: setattr(held, "mask", [False, False])),
        (np.array([[1.0], None], object), lambda held: held[0].append(2.0)),
        ([1.0].__len__, lambda held: held.__self__.append(2.0)),
        (weakref.ref(Scale), lambda held: setattr(held(), "later", 1.0)),
    ],
)
def test_what_a_container_holds_counts(held: Any, change: Callable[[Any], Any]) -> None:
    function = lambda inputs: (held, inputs)  # noqa: E731  # as users write it
    before = identity_of(function)
    assert identity_of(function) == before
    change(held)
    assert identity_of(function) != before
    if held.__class__ is weakref.ReferenceType:
        del Scale.later  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "value",
    [
        *(
            range(3),
            slice(1, 2),
            datetime.date(2020, 1, 1),
            fractions.Fraction(1, 2),
            pathlib.PurePath("a"),
            ...,
            object(),
        ),
        *(
            np.dtype("f4"),
            operator.itemgetter(1),
            operator.methodcaller("sum", 1),
            len,
            [].append,
            np.float32(2),
            Scale,
        ),
    ],
)
def test_what_is_a_value_is_equal_to_a_copy(value: Any) -> None:
    one, other = [
        (lambda inputs, held=held: held) for held in (value, value if type(value) is object else copy.copy(value))
    ]
    assert identity_of(one) == identity_of(other)


@pytest.mark.parametrize("held", [[*range(9_999)], {str(number): number for number in range(9_999)}])
def test_many_numbers_and_texts_are_told_at_once(held: Any) -> None:
    calls: list[str] = []

    def function(inputs: Any) -> Any:
        return held, inputs

    before = identity_of(function)
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        assert identity_of(function) == before
    finally:
        sys.setprofile(None)
    assert 0 < len(calls) < 1_000
    place = 7 if isinstance(held, list) else "7"
    held[place] = 7.0
    assert identity_of(function) != before
    held[place] = 7
    assert identity_of(function) == before


@pytest.mark.parametrize(
    "hold", [lambda value: value, lambda value: [1.5, value], lambda value: {"scale": value, "a": np}]
)
@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (0j, -0j), (1, 1.0), (True, 1)])
def test_equal_numbers_that_differ_are_not_the_same(hold: Callable[[Any], Any], one: Any, other: Any) -> None:
    def around(held: Any) -> Any:
        return lambda inputs: (held, inputs)

    assert identity_of(around(hold(one))) == identity_of(around(hold(one)))
    assert identity_of(around(hold(one))) != identity_of(around(hold(other)))


def test_what_is_no_number_is_the_same_as_another() -> None:
    held = [1.5, float("nan")]
    function = lambda inputs: (held, inputs)  # noqa: E731
    before = identity_of(function)
    held[1] = float("nan")
    assert identity_of(function) == before


def test_the_order_of_a_set_does_not_count() -> None:
    one, other = {0, 8}, {8, 0}
    assert [*one] != [*other]
    assert identity_of(functools.partial(by_class, one)) == identity_of(functools.partial(by_class, other))


def test_a_tuple_with_names_counts_by_what_it_holds() -> None:
    one, same, other = [identity_of(functools.partial(by_class, Named(by))) for by in (1.0, 1.0, 2.0)]
    assert one == same != other


def test_a_module_of_the_users_counts_by_what_is_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, inner = types.ModuleType("settings"), types.ModuleType("settings.inner")
    vars(settings).update(by=1.0, other=1.0, inner=inner)
    vars(inner).update(factor=1.0)

    def helper(inputs: Any) -> Any:
        return inputs * settings.inner.factor

    def call(inputs: Any) -> Any:
        return helper(inputs) * settings.by

    for module, name in ((settings, "by"), (inner, "factor")):
        changed_and_back(call, lambda: setattr(module, name, 2.0), lambda: setattr(module, name, 1.0))  # noqa: B023
    before = identity_of(call)
    settings.other = 2.0  # type: ignore[attr-defined]
    assert identity_of(call) == before


def test_a_module_that_a_function_imports_as_it_runs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    package, inner = types.ModuleType("settings_of_mine"), types.ModuleType("settings_of_mine.inner")
    vars(package).update(by=1.0, other=1.0, inner=inner)
    vars(inner).update(factor=1.0, other=1.0)

    def whole(inputs: Any) -> Any:
        import settings_of_mine.inner

        return inputs * settings_of_mine.by * settings_of_mine.inner.factor

    def some(inputs: Any) -> Any:
        from settings_of_mine import by
        from settings_of_mine.inner import factor as of_this

        return [inputs * by * of_this for _ in range(2)]

    def inside(inputs: Any) -> Any:
        return [*(lambda: some(inputs))(), inputs]

    here: dict[str, Any] = {"__package__": "settings_of_mine", "__name__": "settings_of_mine.main"}
    exec(
        "def near(inputs):\n    from . import by\n    from .inner import factor\n    return inputs * by * factor", here
    )
    near, far = here["near"], types.FunctionType(here["near"].__code__, {"__name__": "nowhere"})
    assert identity_of(far) == identity_of(far)  # that it is in no package it finds by itself
    for call in (whole, some, inside, near):
        absent = identity_of(call)
        with monkeypatch.context() as loaded:
            loaded.setitem(sys.modules, "settings_of_mine", package)
            loaded.setitem(sys.modules, "settings_of_mine.inner", inner)
            assert identity_of(call) != absent
            for module, name in ((package, "by"), (inner, "factor")):
                changed_and_back(call, lambda: setattr(module, name, 2.0), lambda: setattr(module, name, 1.0))  # noqa: B023
            before = identity_of(call)
            inner.other = package.other = 2.0  # type: ignore[attr-defined]
            assert identity_of(call) == before
        assert identity_of(call) == absent


def test_a_package_that_a_function_imports_counts_by_the_numbers_that_are_read_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call(inputs: Any) -> Any:
        import numpy as numbers

        return inputs * numbers.core_number  # type: ignore[attr-defined]

    absent = identity_of(call)
    monkeypatch.setattr(np, "another", 1.0, raising=False)
    assert identity_of(call) == absent
    monkeypatch.setattr(np, "core_number", 1.0, raising=False)
    before = identity_of(call)
    monkeypatch.setattr(np, "core_number", 2.0)
    assert absent != identity_of(call) != before


def test_a_package_counts_by_the_numbers_that_are_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(inputs: Any) -> Any:
        return inputs * np.core_number * np.tanh(inputs)  # type: ignore[attr-defined]

    monkeypatch.setattr(np, "core_number", 1.0, raising=False)
    before = identity_of(call)
    monkeypatch.setattr(np, "another", 1.0, raising=False)
    assert identity_of(call) == before
    monkeypatch.setattr(np, "core_number", 2.0)
    assert identity_of(call) != before


def test_what_decorators_have_made_goes_by_what_they_were_given() -> None:
    factor = 1.0

    @contextlib.contextmanager
    def inside() -> Any:
        nonlocal factor
        yield factor

    def set_factor(by: float) -> None:
        nonlocal factor
        factor = by

    changed_and_back(inside, lambda: set_factor(2.0), lambda: set_factor(1.0))


@pytest.mark.parametrize(
    "held", [itertools.count(), iter([1]), (one for one in (1, 2)), np.random.default_rng(), random.Random(0)]
)
def test_what_nothing_tells_of_has_no_identity(held: Any) -> None:
    with pytest.raises(UntoldError, match=f"made around an object of the class '{type(held).__qualname__}'"):
        identity_of(lambda inputs: next(held))


def test_what_is_too_deep_has_no_identity() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UntoldError, match="too many objects, one inside the other"):
        identity_of(lambda inputs: deep)


def test_a_function_that_reads_itself_has_an_identity() -> None:
    around: list[Any] = []

    def call(value: Any) -> Any:
        return call(around) if value else around

    around.append(around)
    assert identity_of(call) == identity_of(call)


def test_what_stands_for_an_object_does_not_keep_it() -> None:
    class Held: ...

    held = Held()
    same = Same(held)
    assert same == Same(held)
    del held
    gc.collect()
    assert same != same
    assert Same(3) != Same(3)
