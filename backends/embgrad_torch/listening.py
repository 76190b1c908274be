"""What happens at a point of the user's own forward pass: a hook on its tensor, which hears of its gradient, and no more."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._C._dynamo import eval_frame

from embgrad.errors import UnsupportedError
from embgrad.interception import Interception
from embgrad.tolerance import coarsest
from embgrad_torch.checkpoints import in_reentrant_segment, in_segment
from embgrad_torch.inputs import computed_in, is_transformed, to_numpy
from embgrad_torch.tap import expect_unwritten, going_on

__all__ = ["Calls", "Listening", "compiled_calls", "expect_uncompiled", "expect_untransformed"]

#: What compiles the Python functions that this thread calls, while it runs in one that was compiled; None for nothing.
_callback: Callable[[], Any] = getattr(eval_frame, "get_eval_frame_callback", lambda: None)


#: What every call of a compiled function asks before it runs.
_compiled = Interception(lambda: sys.modules["torch._dynamo.eval_frame"], "_callback_from_stance")


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
    """A clone that has a gradient, also where nothing below it has."""
    return going_on(tensor if tensor.requires_grad else tensor.detach().requires_grad_())


def expect_untransformed() -> None:
    """Refuse to listen inside a transform of torch.func, whose tensors have no values."""
    if is_transformed():
        raise UnsupportedError(
            "the model is called inside torch.func.grad, torch.vmap or another transform of torch.func, where tensors have no "
            "values that could be kept: expected loss.backward() or torch.autograd.grad in the loop that you capture, or the "
            "transform outside of the capture"
        )


@dataclass
class Calls:
    """Whether there were any."""

    ran: bool = False


@contextlib.contextmanager
def compiled_calls() -> Iterator[Calls]:
    """Tells, while it is open, whether this thread calls what `torch.compile` had made: none of our hooks may run in it."""
    found = Calls()

    def tell(original: Callable[..., Any], *given: Any) -> Any:
        found.ran = True
        return original(*given)

    loaded = hasattr(sys.modules.get("torch._dynamo.eval_frame"), "_callback_from_stance")
    with _compiled.by(tell) if loaded else contextlib.nullcontext():
        yield found


def expect_uncompiled() -> None:
    """Refuse to be traced by a compiler, or to run in the Python to which one has fallen back where it could not trace us."""
    if torch.compiler.is_compiling() or _callback():
        raise UnsupportedError(
            "the model is called inside a function that torch.compile compiles, and what runs inside compiled code cannot be "
            "listened to: call the plain function while you capture; embgrad.gradients takes compiled models as they are"
        )
