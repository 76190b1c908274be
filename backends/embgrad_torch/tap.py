"""Points of a pass: values overridden, added to and copied, gradients received by a hook and edited.

`Taps` for a pass that is asked for, `Listening` for the user's own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch._C._dynamo import eval_frame
from torch.overrides import TorchFunctionMode

from embgrad.backend import Request
from embgrad.backend.cotangents import Answer
from embgrad.backend.point_changes import PointChanges
from embgrad.common.pytree import first
from embgrad.common.tolerance import coarsest
from embgrad.errors import UnsupportedError
from embgrad_torch.checkpoints import in_reentrant_segment, in_segment
from embgrad_torch.inputs import computed_in, is_floating, like, to_numpy
from embgrad_torch.state import drawn_by_the_user

__all__ = [
    "At",
    "Listening",
    "Taps",
    "Unwatched",
    "dtype_of",
    "expect_uncompiled",
    "expect_unwritten",
    "is_floating",
]


#: What compiles the Python functions that this thread calls, while it runs in one that was compiled; None for nothing.
_callback: Callable[[], Any] = getattr(eval_frame, "get_eval_frame_callback", lambda: None)


class At(Protocol):
    """The interface of points in a forward pass.

    Attributes:
        plain: every lookup must be made as the model makes it, by the same function of PyTorch.
        changed: the keys of the points whose values are changed.
    """

    plain: bool
    changed: Collection[str]

    def lookup(
        self, key: str | None, table: Any, compute: Callable[[], Any], *, word: bool, again: bool = False
    ) -> Any:
        """The rows that go on in place of those that a lookup computes.

        Args:
            key: of the point, where it is asked for.
            table: the table.
            compute: makes the lookup.
            word: whether the ids are looked up.
            again: it was made before, and a checkpointed segment runs once more.
        """
        ...

    def tensor(self, key: str, tensor: Any, *, again: bool = False, aliased: bool = False) -> Any:
        """The tensor that goes on in place of another at a point of a module that is asked for.

        Args:
            key: of the point.
            tensor: what would go on.
            again: it was there before, and a checkpointed segment runs once more.
            aliased: others may hold the same memory, and see what is written into it.
        """
        ...


class Taps:
    """The points of one request.

    Attributes:
        plain: see `At`.
        changed: see `At`.
        values: by key the values that went on, of the points to read.
        marks: by key the tensors whose gradients are taken.
        gradients: by key the gradients of the pullback that runs, as they went on.
        pulling: whether a pullback runs.
        aliased: by key the clones that went on in place of tensors whose memory others may hold.
        attached: whether rows stay on the graph of their table, by which the model or the objective may differentiate.
        ending: whether nothing goes on below the marks in a pullback, where the rows are attached: what reaches a table then is
            what comes by other ways.

    Args:
        request: what is asked.
        attached: see above.
    """

    plain = False

    def __init__(self, request: Request, *, attached: bool = False) -> None:
        self.attached = attached
        self.ending = attached and request.tables
        self.changed: Collection[str] = {*request.override, *request.add}
        self.values: dict[str, np.ndarray] = {}
        self.marks: dict[str, Any] = {}
        self.gradients: dict[str, np.ndarray] = {}
        self.pulling = False
        self.aliased: list[tuple[str, Any]] = []
        self._changes = PointChanges[Any](request, to_numpy, like, aside)
        self._made: dict[str, tuple[Any, Any]] = {}  # by key what a segment that runs again gets
        self._hears_all = False
        self._readable = None if "word" in request.points else frozenset(request.points)

    def lookup(
        self, key: str | None, table: Any, compute: Callable[[], Any], *, word: bool, again: bool = False
    ) -> Any:
        """Return the rows; at a point of the request cut off the table, unless rows stay attached.

        A computed table stays on the graph, as another point may lie below it, but for a mere view of a parameter, whose own
        gradient is then what reaches it by other ways. The rows of the ids require gradients also where nobody asks for them:
        whether they do can decide which way a model takes, and every pass is to go the same way.
        """
        if key is not None:
            attached = self.attached and torch.is_grad_enabled()
            if not attached and (table.grad_fn is None or _is_view_of_leaf(table)):
                with torch.inference_mode(False), torch.no_grad():
                    rows = compute()
                return self.tensor(key, rows, again=again)
            return self.tensor(key, compute(), again=again)
        rows = compute()
        return _differentiable(rows) if word and is_floating(rows) and not rows.requires_grad else rows

    def tensor(self, key: str, tensor: Any, *, again: bool = False, aliased: bool = False) -> Any:
        """Overridden, added to, marked; its gradient is received, and edited, by a hook on the mark.

        What goes on is a clone of the mark, because models write into what they are given (scale it in place).
        """
        with torch.inference_mode(False), torch._C.DisableTorchFunction():
            if again:
                over, added = self._made[key]
            else:
                over, added = self._made[key] = self._changes.parts(key, tensor)
            value = tensor if over is None else over
            value = value if added is None else value + added
            mark = value.clone() if value.requires_grad or value.is_inference() else value.detach()
            mark.requires_grad_()
            if again or self._changes.edits(key):
                self._hook(key, mark)
            if not again:
                self.marks[key] = mark
                if self._readable is None or key in self._readable:
                    self.values[key] = to_numpy(mark)
            new = mark.clone()
        if aliased and not again:
            self.aliased.append((key, new))
        return new

    @property
    def before(self) -> dict[str, np.ndarray]:
        """The gradients before their edit, by key."""
        return self._changes.before

    def hear(self) -> None:
        """From now on hooks receive the gradients of all marks: the pullback will not give them itself."""
        for key in self._unheard():
            self._hook(key, self.marks[key])
        self._hears_all = True

    def came(self, gradients: Sequence[Any]) -> None:
        """Take the gradients that the pullback returned for the marks without hooks."""
        found = dict(zip(self.marks, gradients, strict=True))
        for key in self._unheard():
            self._came(key, found[key])

    def _unheard(self) -> list[str]:
        """The keys of the marks on which there is no hook."""
        return [] if self._hears_all else [key for key in self.marks if not self._changes.edits(key)]

    def _hook(self, key: str, mark: Any) -> None:
        mark.register_hook(lambda grad: self._came(key, grad))

    def start(self) -> None:
        """Begin a pullback."""
        self.gradients, self._changes.before, self.pulling = {}, {}, True

    def stop(self) -> None:
        """End a pullback."""
        self.pulling = False

    def _came(self, key: str, grad: Any) -> Any:
        """The gradient that goes on in place of one that came. What others than the pullback differentiate is left alone."""
        if not self.pulling or grad is None:
            return None
        if key in self.gradients:
            raise UnsupportedError(
                f"the gradient at the point {key!r} came several times in one backward pass: a gradient checkpoint with "
                "use_reentrant=True computes with it and was not given it; expected use_reentrant=False, or it among the "
                "checkpoint's arguments"
            )
        with torch._C.DisableTorchFunction():  # what the user's function does is nothing to be watched
            gone_on = self._changes.gradient(key, grad)
            self.gradients[key] = to_numpy(gone_on)
            if self._changes.edits(key):
                return gone_on
            return torch.zeros_like(grad) if self.ending else None


class Listening:
    """The points of one forward pass of the user's.

    Args:
        came: is told the pass, the key, the gradient that came there, and whether it came out of a reentrant segment.

    Attributes:
        passing: gives what the hooks keep alive, as long as the graph keeps them: whose points these are.
        over: whether the forward pass ended.
        plain: see `At`.
        changed: see `At`.
        values: by key the values at the points.
        dtype: in which the model computed there.
        awaited: the keys of points in reentrant segments, whose gradients come when these run again.
    """

    plain = True
    changed: Collection[str] = ()

    def __init__(self, came: Callable[[Any, str, Any, bool], None]) -> None:
        self.passing: Callable[[], Any] = lambda: None
        self.over = False
        self.values: dict[str, np.ndarray] = {}
        self.dtype = "float32"
        self.awaited: set[str] = set()
        self._came = came
        self._traced = torch.is_grad_enabled()  # else it is an evaluation pass
        self._aliased: list[tuple[str, Any]] = []

    def lookup(
        self, key: str | None, table: Any, compute: Callable[[], Any], *, word: bool, again: bool = False
    ) -> Any:
        """The rows that the model computes."""
        expect_uncompiled()
        rows = compute()
        if key is None:
            return rows
        if self._traced and in_reentrant_segment():
            raise UnsupportedError(
                f"the lookup {key!r} is made inside a gradient checkpoint with use_reentrant=True, whose second run cannot be "
                "heard: expected use_reentrant=False, or the lookup outside of the checkpoint"
            )
        if self._traced and not rows.requires_grad and in_segment():
            raise UnsupportedError(
                f"the lookup {key!r} in a frozen table is made inside a gradient checkpoint, which must save the same tensors "
                "both times: expected the lookup outside of the checkpoint, or a table that requires gradients"
            )
        self._take(key, rows)
        if not self._traced:
            return rows
        # Nobody else holds the rows yet: a hook on them hears of all, and does not change the order of any sum.
        heard = rows if rows.requires_grad and rows.grad_fn is not None else _differentiable(rows)
        self._hook(key, heard, again=False)
        return heard

    def tensor(self, key: str, tensor: Any, *, again: bool = False, aliased: bool = False) -> Any:
        """A clone, which what comes behind the point uses, and nothing else: its gradient is that of the point."""
        if not again:
            self._take(key, tensor)
        if not self._traced:
            return tensor
        if not again and not torch.is_grad_enabled() and in_reentrant_segment():
            self.awaited.add(key)
            return tensor
        heard = _differentiable(tensor)
        if not again or key in self.awaited:
            self._hook(key, heard, again)
        if aliased and not again:
            self._aliased.append((key, weakref.ref(heard)))
        return heard

    def _take(self, key: str, tensor: Any) -> None:
        dtype = computed_in([tensor])
        self.dtype = coarsest([self.dtype, dtype]) if self.values else dtype
        self.values[key] = to_numpy(tensor)

    def _hook(self, key: str, tensor: Any, again: bool) -> None:
        passing = self.passing()
        tensor.register_hook(lambda grad: self._came(passing, key, grad, again))

    def expect_unwritten(self) -> None:
        """Refuse what would change the user's computation, see `expect_unwritten`."""
        expect_unwritten((key, reference()) for key, reference in self._aliased)


def _differentiable(tensor: Any) -> Any:
    """Return a clone that has a gradient, also where nothing below it has, or where gradients are off around the point alone."""
    with torch.inference_mode(False):
        if not tensor.requires_grad:
            tensor = (tensor.clone() if tensor.is_inference() else tensor.detach()).requires_grad_()
        return tensor.clone()


def expect_uncompiled() -> None:
    """Refuse to be traced by a compiler, or to run in the Python to which one has fallen back where it could not trace us."""
    if torch.compiler.is_compiling() or _callback():
        raise UnsupportedError(
            "the model is called inside a function that torch.compile compiles, and what runs inside compiled code cannot be "
            "listened to: call the plain function while you capture; embgrad.gradients takes compiled models as they are"
        )


def dtype_of(request: Request, taps: Taps, chosen: Any, answered: Answer, returned: Any, parts: Sequence[Any]) -> str:
    """Return the coarsest dtype of the points, the outputs that were read and autocast; else an output's or a parameter's."""
    met = [taps.marks[chosen[name]] for name in request.points]
    met += [output for one in answered.sets for output, _ in one]
    if not met:
        parameters = (parameter for part in parts for parameter in part.parameters())
        met.append(next(one for one in (first(returned, is_floating), *parameters) if one is not None))
    return computed_in(met)


def expect_unwritten(clones: Iterable[tuple[str, Any]]) -> None:
    """Refuse to have given a clone where something was written into it that others were to see.

    Raises:
        UnsupportedError: it was.
    """
    for key, clone in clones:
        if clone is not None and not clone.is_inference() and clone._version:
            raise UnsupportedError(
                f"the tensor at the point {key!r} shares its memory with another, and the model writes into it, which the other "
                "would have to show: expected x = x * 2 in place of x *= 2 there; or name another point, such as the module "
                "before"
            )


def _is_view_of_leaf(table: Any) -> bool:
    return bool(table._is_view() and table._base.is_leaf)


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Run a function of the user's meanwhile: nothing that it does is watched, but it may call embgrad, of this model too."""
    with torch._C._EnableTorchFunction(), Unwatched(), drawn_by_the_user():
        yield


class Unwatched(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """Modes that were entered before it see nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {}))
