"""Tells whether a model's Python goes by numbers that it draws from generators of Python's or NumPy's."""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from embgrad.generators import Beside, drawn, states_of
from embgrad.interception import Interception

__all__ = ["DRAWS", "Drawing"]

#: Why a model that does has no trace.
DRAWS: Final = "the model draws random numbers from Python's or NumPy's generator, which a trace would draw once"

#: What gives one number between two, as models draw it that leave layers out in training.
_ONE_NUMBER: Final = (
    *(Interception(lambda: random, name) for name in ("random", "uniform")),
    *(Interception(lambda: np.random, name) for name in ("random", "random_sample", "rand", "uniform")),
)

#: What can be asked of a float: by itself, and beside another, which may be an array that knows no more than floats.
_ALONE: Final = (
    *("bool", "float", "int", "hash", "str", "repr", "format"),
    *("neg", "pos", "abs", "round", "trunc", "floor", "ceil"),
)
_BESIDE: Final = {
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")},
    "divmod": divmod,
}
_REFLECTED: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod")


class Drawing:
    """While it is open, it is seen whether what is run in this thread goes by what it draws.

    A number that is drawn and that nobody looks at is of no account, as that of a model which draws it in either mode and asks
    for the mode first.

    Args:
        own: generators that the model has of its own; whatever is drawn from them counts.

    Attributes:
        seen: whether it does, as far as it has run; of its own generators when it is closed.
        suspected: whether something was drawn that code of the user's beside it may have drawn as well.
    """

    def __init__(self, own: Sequence[Any] = ()) -> None:
        self.seen = self.suspected = False
        self._own = own
        self._stood = states_of(own)
        self._beside = Beside()
        self._last = drawn()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Drawing:
        for one in _ONE_NUMBER:
            self._stack.enter_context(one.by(self._draw))
        return self

    def __exit__(self, *told: object) -> None:
        self._stack.close()
        self._look()
        self.seen = self.seen or states_of(self._own) != self._stood

    def _draw(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._look()
        value = original(*args, **kwargs)
        self._last = drawn()
        if type(value) is float:
            return _Drawn(value, self._tell)
        self._tell()
        return value

    def _look(self) -> None:
        """Whether something was drawn by another way, of which nothing shows what becomes of it."""
        if drawn() != self._last:
            self.suspected = True
            self.seen = self.seen or not self._beside.ran

    def _tell(self) -> None:
        self.seen = True


class _Drawn:
    """A number that tells when it is looked at. It is no float: what takes these might look at one without asking it."""

    def __init__(self, value: float, tell: Callable[[], None]) -> None:
        self._value = value
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        self._tell()
        return getattr(self._value, name)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self._tell()
        return np.asarray(self._value, *args, **kwargs)


def _asking(answer: Callable[..., Any]) -> Callable[..., Any]:
    def asked(self: _Drawn, *args: Any) -> Any:
        self._tell()
        return answer(self._value, *args)

    return asked


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value, other: function(other, value)


for _name in _ALONE:
    setattr(_Drawn, f"__{_name}__", _asking(getattr(float, f"__{_name}__")))
for _name, _function in _BESIDE.items():
    setattr(_Drawn, f"__{_name}__", _asking(_function))
for _name in _REFLECTED:
    setattr(_Drawn, f"__r{_name}__", _asking(_reflected(_BESIDE[_name])))
