"""Points of a pass: values are overridden, added to and copied, and gradients are received by hooks and edited.

`Taps` are the points of embgrad's own passes, `CapturedPoints` and `PerturbedPoints` those of the user's passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch._C._dynamo import eval_frame
from torch.overrides import TorchFunctionMode

from embgrad.backend import PointChanges, Request
from embgrad.errors import UnsupportedError
from embgrad.keras import errors_unchanged
from embgrad.toolkit import coarsest, first
from embgrad_torch.checkpoints import in_reentrant_segment, in_segment
from embgrad_torch.inputs import computation_dtype, is_floating, like, to_numpy
from embgrad_torch.state import drawn_by_the_user, running

__all__ = [
    *("CapturedPoints", "PerturbedPoints", "PointHandler", "Taps", "Unwatched"),
    *("compute_dtype", "expect_uncompiled", "expect_unwritten", "run_again"),
]

#: Returns the compiler of the Python functions that this thread calls; None outside compiled functions.
_compiler_callback: Callable[[], Any] = getattr(eval_frame, "get_eval_frame_callback", lambda: None)


class PointHandler(Protocol):
    """The interface of what handles the points of a forward pass.

    Attributes:
        plain: whether every lookup must be computed by the function that the model calls.
    """

    plain: bool

    def lookup(self, key: str | None, table: Any, compute: Callable[[], Any], *, word: bool) -> Any:
        """Return the rows that replace those of a lookup.

        Args:
            key: the point's key; None where the point is not requested.
            compute: makes the lookup.
            word: whether the ids are looked up.
        """
        ...

    def tensor(self, key: str, tensor: Any, *, aliased: bool = False) -> Any:
        """Return the tensor that replaces another at a requested point.

        Args:
            aliased: whether other tensors may share its memory, and show what is written into it.
        """
        ...


class Taps:
    """The points of one request.

    Attributes:
        values: by key, the values after changes, of the points to read.
        marks: by key, the tensors whose gradients are taken.
        gradients: by key, the gradients of the current pullback, after edits.
        pulling: whether a pullback runs.
        aliased: the keys and clones of tensors whose memory others may share.
        attached: whether rows stay on the graph of their table, so that the model or the objective may differentiate by it.
        ending: whether a pullback ends at the marks of attached rows: a table then receives only the gradients of other uses.

    Args:
        request: the request.
    """

    plain = False

    def __init__(self, request: Request, *, attached: bool = False) -> None:
        self.attached = attached
        self.ending = attached and request.tables
        self.values: dict[str, np.ndarray] = {}
        self.marks: dict[str, Any] = {}
        self.gradients: dict[str, np.ndarray] = {}
        self.pulling = False
        self.aliased: list[tuple[str, Any]] = []
        self._changes = PointChanges[Any](request, to_numpy, like, run_unwatched)
        self._readable = None if "word" in request.points or request.record else frozenset(request.points)

    def lookup(self, key: str | None, table: Any, compute: Callable[[], Any], *, word: bool) -> Any:
        """Return the rows; at a requested point, detached from the table unless rows stay attached.

        A computed table stays on the graph, since another point may lie below it; a view of a parameter does not, since its
        gradient is that of its other uses. The rows of the ids always require gradients: some models branch on that, and every
        pass must take the same branch.
        """
        if key is not None:
            attached = self.attached and torch.is_grad_enabled()
            if not attached and (table.grad_fn is None or (table._is_view() and table._base.is_leaf)):
                with torch.inference_mode(False), torch.no_grad():
                    rows = compute()
                return self.tensor(key, rows)
            return self.tensor(key, compute())
        rows = compute()
        return _differentiable(rows) if word and is_floating(rows) and not rows.requires_grad else rows

    def tensor(self, key: str, tensor: Any, *, aliased: bool = False) -> Any:
        """Override the tensor, add to it and mark it; a hook on the mark receives and edits its gradient.

        Return a clone of the mark, because models write into their inputs (scale them in place).
        """
        with torch.inference_mode(False), torch._C.DisableTorchFunction():
            value = self._changes.value(key, tensor)
            mark = value.clone() if value.requires_grad or value.is_inference() else value.detach()
            mark.requires_grad_()
            mark.register_hook(lambda grad: self._receive(key, grad))
            self.marks[key] = mark
            if self._readable is None or key in self._readable:
                self.values[key] = to_numpy(mark)
            new = mark.clone()
        if aliased:
            self.aliased.append((key, new))
        return new

    @property
    def before(self) -> dict[str, np.ndarray]:
        """The gradients before their edit, by key."""
        return self._changes.before

    def start(self) -> None:
        """Begin a pullback."""
        self.gradients, self._changes.before, self.pulling = {}, {}, True

    def stop(self) -> None:
        """End a pullback."""
        self.pulling = False

    def forget(self) -> None:
        """Release the tensors of a pass that has ended: they and their hooks, which lead here, would keep each other alive."""
        self.marks.clear()
        self.aliased.clear()

    def _receive(self, key: str, grad: Any) -> Any:
        """Return the gradient that replaces one that arrived; None, which keeps it, also outside a pullback."""
        if not self.pulling or grad is None:
            return None
        if key in self.gradients:
            raise UnsupportedError(
                f"the gradient at the point {key!r} arrived in several parts in one backward pass, because a "
                "torch.autograd.Function of the model runs code again that uses the point's tensor without taking it as an "
                "argument. Pass the tensor to the function's apply"
            )
        with torch._C.DisableTorchFunction():  # lookups of the user's function are not the model's
            edited = self._changes.gradient(key, grad)
            self.gradients[key] = to_numpy(edited)
            if self._changes.edits(key):
                return edited
            return torch.zeros_like(grad) if self.ending else None


class CapturedPoints:
    """The points of one forward pass of the user's. After the pass only the hooks on its graph refer to them.

    Args:
        receive: called with the points, the key and the gradient.

    Attributes:
        token: identifies the pass to the listener; None until it has ended.
    """

    plain = True

    def __init__(self, receive: Callable[[Any, str, Any], None]) -> None:
        self.token: Any = None
        self.values: dict[str, np.ndarray] = {}
        self.dtype = "float32"
        self._receive = receive
        self._aliased: list[tuple[str, Any]] = []

    def lookup(self, key: str | None, table: Any, compute: Callable[[], Any], *, word: bool) -> Any:
        """Return the rows that the model computes, with a hook at a requested point."""
        expect_uncompiled()
        rows = compute()
        if key is None:
            return rows
        # Only the model's next operation will use the rows: a hook on them receives the whole gradient, and no sum changes.
        return self._hook(key, rows, unshared=rows.grad_fn is not None)

    def tensor(self, key: str, tensor: Any, *, aliased: bool = False) -> Any:
        """Return a clone that only later operations use, so that its gradient is that of the point."""
        hooked = self._hook(key, tensor)
        if aliased and hooked is not tensor:
            self._aliased.append((key, hooked))
        return hooked

    def _hook(self, key: str, tensor: Any, *, unshared: bool = False) -> Any:
        """Return the tensor, or a clone unless it is unshared, with a hook; the tensor itself where gradients are off."""
        dtype = computation_dtype([tensor])
        self.dtype = coarsest([self.dtype, dtype]) if self.values else dtype
        self.values[key] = to_numpy(tensor)
        if not torch.is_grad_enabled():
            if in_reentrant_segment():
                raise UnsupportedError(
                    f"the lookup {key!r} is made inside a gradient checkpoint with use_reentrant=True, whose second run cannot "
                    "be captured. Set use_reentrant=False, or move the lookup out of the checkpoint"
                )
            return tensor
        if not tensor.requires_grad and in_segment():
            raise UnsupportedError(
                f"the point {key!r} lies behind frozen weights alone inside a gradient checkpoint, which must save the same "
                "tensors both times. Name a point outside of it, or let the weights before the point require gradients"
            )
        hooked = tensor if unshared and tensor.requires_grad else _differentiable(tensor)
        hooked.register_hook(lambda grad: self._receive(self, key, grad))
        return hooked

    def expect_unwritten(self) -> None:
        """Refuse a pass whose result the clones have changed, see the function `expect_unwritten`."""
        expect_unwritten(self._aliased)

    def forget(self) -> None:
        """Release the clones at the end of the pass: they and their hooks, which lead here, would keep each other alive."""
        self._aliased.clear()


class PerturbedPoints(CapturedPoints):
    """The points of one forward pass of the user's at which arrays are added."""

    def __init__(self, request: Request) -> None:
        super().__init__(lambda *_: None)
        self._changes = PointChanges[Any](request, to_numpy, like, _aside)

    def lookup(self, key: str | None, table: Any, compute: Callable[[], Any], *, word: bool) -> Any:
        """Return the rows that the model computes, with the addition at a requested point."""
        expect_uncompiled()
        rows = compute()
        return rows if key is None else self.tensor(key, rows)

    def tensor(self, key: str, tensor: Any, *, aliased: bool = False) -> Any:
        """Return the sum of the tensor and the addition."""
        if in_segment():
            raise UnsupportedError(
                f"the point {key!r} lies inside a gradient checkpoint, which runs again in the backward pass, possibly after the "
                "perturbation is closed. Name a point outside of it, such as 'word', or switch gradient checkpointing off "
                "(model.gradient_checkpointing_disable() in transformers)"
            )
        changed = self._changes.value(key, tensor)
        if aliased:
            self._aliased.append((key, changed))
        return changed


def _differentiable(tensor: Any) -> Any:
    """Return a clone that requires a gradient, even if the tensor does not, or gradients are switched off."""
    with torch.inference_mode(False):
        if not tensor.requires_grad:
            tensor = (tensor.clone() if tensor.is_inference() else tensor.detach()).requires_grad_()
        return tensor.clone()


def expect_uncompiled() -> None:
    """Raise inside a function that a compiler traces, or that it runs as Python because it could not trace embgrad."""
    if torch.compiler.is_compiling() or _compiler_callback():
        raise UnsupportedError(
            "the model is called inside a function that torch.compile compiles, and compiled code cannot be captured or "
            "perturbed. Call the uncompiled function meanwhile, or use embgrad.gradients, which takes compiled models"
        )


def run_again(what: str) -> str:
    """Return the message for a point at which a function of the model computes again in the backward pass."""
    return (
        f"a torch.autograd.Function of the model makes {what} again in the backward pass, as gradient checkpoints of other "
        "libraries do, so that the point's gradient cannot be taken. Use torch.utils.checkpoint there, which embgrad switches "
        "off, or name a point outside of the function"
    )


def compute_dtype(
    marks: Sequence[Any], outputs: Sequence[Any], returned: Any, parameters: Iterable[Any], halves: Iterable[str]
) -> str:
    """Return the coarsest dtype of the points, the outputs that were read, autocast and products in half precision.

    Where nothing was read an output or a parameter stands for the points.
    """
    tensors = [*marks, *outputs]
    if not tensors:
        tensors.append(next(tensor for tensor in (first(returned, is_floating), *parameters) if tensor is not None))
    return coarsest([computation_dtype(tensors), *halves])


def expect_unwritten(clones: Iterable[tuple[str, Any]]) -> None:
    """Raise where the model wrote into a clone: tensors that share the original's memory would have had to change."""
    for key, clone in clones:
        if not clone.is_inference() and clone._version:
            raise UnsupportedError(
                f"the tensor at the point {key!r} shares its memory with another, and the model writes into it in place. "
                "Write x = x * 2 instead of x *= 2 there, or name another point, such as the output of the module before"
            )


@contextlib.contextmanager
def run_unwatched() -> Iterator[None]:
    """Let a function of the user's run unrecorded while the context is open; it may call embgrad, on this model too."""
    with torch._C._EnableTorchFunction(), Unwatched(), drawn_by_the_user(), errors_unchanged():
        yield


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Let a function of the user's run inside a pass of the user's; its calls of the model are no passes."""
    with run_unwatched(), running():
        yield


class Unwatched(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """A mode that hides every function call from the modes that were entered before it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {}))
