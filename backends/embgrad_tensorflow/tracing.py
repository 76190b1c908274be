"""Mark the calls of modules in a graph while a model is traced, so that the graph can be cut where they begin and end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf

from embgrad.backend import INPUT, OUTPUT, UntraceableError
from embgrad_tensorflow.tap import with_mask

__all__ = ["MARK", "TracedCall", "TracedCalls"]

#: The names of the identities that mark the first tensor with which a call begins or ends, with the number of the call.
MARK: Final = re.compile(rf"(?:^|/)embgrad_call_(\d+)_({INPUT}|{OUTPUT})$")


@dataclass(frozen=True)
class TracedCall:
    """A call of a module in a traced forward pass."""

    path: str
    kind: str
    occurrence: int


class TracedCalls:
    """The calls of requested modules in a traced forward pass, in the order in which they begin; see `CallRecorder`.

    Attributes:
        everything: False, as only requested modules are recorded.
        counted: nothing is counted, because a graph makes the same calls every time.
    """

    everything = False
    counted: frozenset[str] = frozenset()

    def __init__(self, modules: Collection[str]) -> None:
        self.modules = frozenset(modules)
        self.calls: list[TracedCall] = []
        self._graph = tf.compat.v1.get_default_graph()
        self._seen: Counter[str] = Counter()
        self._open: list[int] = []

    def enter(self, path: str, kind: str, tensor: Any, shape: Any, also: Sequence[str] = ()) -> str | None:
        """Record that a call begins, and return the name of the mark of its input, where there is one."""
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise UntraceableError(f"the point {path!r} lies inside a loop or a branch of the graph")
        number = len(self.calls)
        self.calls.append(TracedCall(path, kind, self._seen[path]))
        self._seen[path] += 1
        self._open.append(number)
        return None if tensor is None else f"embgrad_call_{number}_{INPUT}"

    def leave(self, tensor: Any, shape: Any) -> str | None:
        """Record that the innermost call ends, and return the name of the mark of its output."""
        number = self._open.pop()
        if tensor is None:
            raise UntraceableError(f"a call of {self.calls[number].path!r} returns no floating-point tensor")
        return f"embgrad_call_{number}_{OUTPUT}"

    def mark(self, name: str, tensor: Any) -> Any:
        """Return an identity of that name, with the Keras mask that hangs on the tensor."""
        return with_mask(tf.identity(tensor, name=name), tensor)

    def count(self, path: str) -> None:
        """See `counted`."""

    def replace_tensor(self, tensor: Any, new: Any) -> None:
        """Do nothing: a trace does not record which tensors are the same."""

    def exit_on_error(self) -> None:
        """Record that the innermost call raised."""
        self._open.pop()
