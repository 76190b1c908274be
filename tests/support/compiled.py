"""What a call with a trace must give beside one without: the same, in every framework."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np


class Settings:
    """What the class of a caller holds."""

    factor = 1.0


class Caller(Settings):
    """Calls a model, by itself or by a method."""

    def __init__(self) -> None:
        self.by = 1.0

    def __call__(self, model: Any, inputs: Any) -> Any:
        return model(inputs) * self.by * self.factor

    def method(self, model: Any, inputs: Any) -> Any:
        return self(model, inputs)


def calls_that_change() -> dict[str, tuple[Callable[..., Any], Callable[[], Any]]]:
    """Functions `call` that multiply what a model gives by 1, and what makes that 3."""
    caller, class_caller, bound = Caller(), Caller(), Caller()
    held, ordered = {1}, OrderedDict(by=1.0)

    class Own(Settings):
        pass

    def by_attribute(model: Any, inputs: Any) -> Any:
        return model(inputs) * vars(by_attribute).get("by", 1.0)

    return {
        "a class": (lambda model, inputs: model(inputs) * Own.factor, lambda: setattr(Own, "factor", 3.0)),
        "a set": (lambda model, inputs: model(inputs) * len(held), lambda: held.update({2, 3})),
        "an OrderedDict": (lambda model, inputs: model(inputs) * ordered["by"], lambda: ordered.update(by=3.0)),
        "an object that is called": (caller, lambda: setattr(caller, "by", 3.0)),
        "the class of one": (class_caller, lambda: setattr(class_caller, "factor", 3.0)),
        "the object of a method": (bound.method, lambda: setattr(bound, "by", 3.0)),
        "an attribute of the function": (by_attribute, lambda: setattr(by_attribute, "by", 3.0)),
    }


def same(plain: Any, compiled: Any, rel: float = 1e-10) -> None:
    """Assert that a trace was run, and gave what the model gives, relative to the largest entry."""
    assert compiled.provenance["compiled"] is True, compiled.provenance["uncompiled"]
    assert compiled.provenance["uncompiled"] is None
    for name in ("values", "activations", "objective"):
        one, other = getattr(plain, name), getattr(compiled, name)
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=0, atol=rel * max(np.abs(one).max(), 1e-30))
    assert plain.provenance["path"] == compiled.provenance["path"]
    assert plain.provenance["compute_dtype"] == compiled.provenance["compute_dtype"]
