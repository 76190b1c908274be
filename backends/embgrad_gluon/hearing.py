"""Hears of the backward passes of this thread, and reads the gradients at what was marked in the forward passes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embgrad.arrays import owned
from embgrad.backend import Listener
from embgrad.errors import UnsupportedError
from embgrad.interception import Interception
from embgrad.points import split_name
from embgrad_gluon.graph import Way, regrouped, way_to
from embgrad_gluon.importing import import_mxnet

__all__ = ["Marks", "hearing"]

_backward = Interception(lambda: import_mxnet().autograd, "backward")
_grad = Interception(lambda: import_mxnet().autograd, "grad")
_method = Interception(lambda: import_mxnet().nd.NDArray, "backward")


@dataclass(eq=False)
class Marks:
    """What was marked in one forward pass.

    Attributes:
        listener: is told of the gradients.
        told: what it gave for the pass.
        arrays: by the points' keys, marked.
        among: where these are held as long as a backward pass may come to them.
    """

    listener: Listener
    told: Any
    arrays: Mapping[str, Any]
    among: list[Marks] = field(repr=False)

    def heard(self) -> None:
        """What a backward pass has written, zeros where a gradient is stopped among them, was heard of."""
        for array in self.arrays.values():
            array._fresh_grad = False

    def is_unheard(self) -> bool:
        """Whether one has written since."""
        return any(array._fresh_grad for array in self.arrays.values())


@dataclass(frozen=True)
class _Reached:
    marks: Marks
    key: str
    array: Any


@contextlib.contextmanager
def hearing(
    marks: Callable[[], Sequence[Marks]], expect_right: Callable[[Way, bool], None], heard: Callable[[], None]
) -> Iterator[None]:
    """This thread's backward passes are heard of.

    Args:
        marks: gives those that may be reached.
        expect_right: refuses a way to some of them, by the mode of the backward pass.
        heard: is called after a backward pass that reached some.
    """

    def reached_by(heads: Any, training: bool) -> list[_Reached]:
        return _reached(marks(), heads, lambda way: expect_right(way, training))

    def pull(original: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bound(original, args, kwargs)
        reached = reached_by(bound.get("heads", bound.get("self")), bool(bound["train_mode"]))
        returned = original(*args, **kwargs)
        for one in marks():
            one.heard()
        if reached:
            _tell(reached, [one.array.grad for one in reached], heard, keep=bool(bound["retain_graph"]))
        return returned

    def compute(original: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bound(original, args, kwargs)
        reached = reached_by(bound["heads"], bool(bound["train_mode"]))
        if not reached:
            return original(*args, **kwargs)
        given = bound["variables"]
        variables = [given] if isinstance(given, import_mxnet().nd.NDArray) else list(given)
        found = original(**{**bound, "variables": [*variables, *(one.array for one in reached)]})
        keep = bound["create_graph"] if bound["retain_graph"] is None else bound["retain_graph"]
        _tell(reached, found[len(variables) :], heard, keep=bool(keep))
        return found[: len(variables)]

    with _backward.by(pull), _method.by(pull), _grad.by(compute):
        yield


def _bound(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _reached(marks: Sequence[Marks], heads: Any, expect_right: Callable[[Way], None]) -> list[_Reached]:
    """What the backward pass comes to.

    Raises:
        UnsupportedError: a mark changes the order in which MXNet adds up.
    """
    known = [_Reached(one, key, array) for one in marks for key, array in one.arrays.items()]
    if not known:
        return []
    outputs = [heads] if isinstance(heads, import_mxnet().nd.NDArray) else list(heads)
    ways = [way_to(output, [one.array for one in known]) for output in outputs]
    reached = [one for place, one in enumerate(known) if any(way.reached[place] for way in ways)]
    for one in reached:
        if split_name(one.key).side is not None and any(regrouped(way, one.array) for way in ways):
            raise UnsupportedError(
                f"what is at the point {one.key!r} is used past it, too, and MXNet would add up its gradient in another order "
                "than without the capture: name the output of the module that made it, or capture at='word'"
            )
    for way in ways if reached else ():
        expect_right(way)
    return reached


def _tell(reached: Sequence[_Reached], gradients: Sequence[Any], heard: Callable[[], None], *, keep: bool) -> None:
    """Each listener is told once of all that it is to hear."""
    told: dict[int, tuple[Listener, list[tuple[Any, str, np.ndarray]]]] = {}
    for one, gradient in zip(reached, gradients, strict=True):
        _, entries = told.setdefault(id(one.marks.listener), (one.marks.listener, []))
        entries.append((one.marks.told, one.key, owned(gradient.asnumpy())))
        if not keep and one.marks in one.marks.among:  # its graph is gone
            one.marks.among.remove(one.marks)
    heard()
    for listener, entries in told.values():
        listener.step(entries)
