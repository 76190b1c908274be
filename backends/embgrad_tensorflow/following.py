"""Follows a forward pass's operations, so that the tapes can be given one gradient in place of those of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import record

from embgrad.interception import Interception

__all__ = ["DTYPES", "RECORDINGS", "Follower", "Handler", "is_constant", "one_after_another"]

#: Narrower ones are rounded too coarsely for another order of operations to go unseen.
DTYPES: Final = frozenset({tf.float32, tf.float64})

#: Is told of an operation: of its name, operands, attributes and results.
Handler = Callable[[str, Any, Any, Any], None]

#: Called with a name, outputs and operands by who gives the tapes another gradient of what an operation gave than the
#: operation's own: `tf.custom_gradient` does so of an identity's.
RECORDINGS: Final = tuple(
    Interception(lambda: pywrap_tfe, f"TFE_Py_TapeSetRecordOperation{kind}") for kind in ("", "Backprop")
)


class Follower:
    """Looks for operations that are one thing together.

    Args:
        traced: whether the pass is traced into a graph; then the tapes are given the gradients once it is over.

    Attributes:
        handlers: by the operation's name what is to be told of it, see `Watcher`.
        stopped: whether nothing more is to be found.
    """

    handlers: Mapping[str, Handler]

    def __init__(self, *, traced: bool = False) -> None:
        self.stopped = False
        self._traced = traced
        self._due: list[tuple[Any, Callable[[], None]]] = []

    def stop(self) -> None:
        """Find nothing more, in the midst of one thing as it may be."""
        self.stopped = True

    def forget(self, outputs: Sequence[Any]) -> None:
        """What operations gave has another gradient from now on than theirs, and so has what was made of it meanwhile."""
        self._due = [one for one in self._due if not any(one[0] is output for output in outputs)]

    def passed(self) -> None:
        """The pass is over."""
        due, self._due = self._due, []
        for _, give in due:
            give()

    def give(self, name: str, output: Any, sources: Sequence[Any], backward: Callable[[Any], Sequence[Any]]) -> None:
        """Give the tapes the gradient of what the last operation gave.

        Where TensorFlow records an operation after it has told of it, as it does in a graph, and those that its fast path does
        not take, it would put that over this.

        Args:
            name: what is found, for who looks at a tape.
            output: what its last operation gave just now.
            sources: what it comes from, so that nothing in between has a part in the gradient.
            backward: gives the gradients with respect to these from that of the output, a tensor.
        """

        def given() -> None:
            if not is_constant(output):
                record.record_operation_backprop_only(
                    name,
                    [output],
                    list(sources),
                    lambda gradient: backward(
                        tf.convert_to_tensor(gradient)
                    ),  # IndexedSlices where rows were looked up
                )

        if self._traced:
            self._due.append((output, given))
        else:
            given()


def is_constant(tensor: Any) -> bool:
    """Whether no tape asks for a gradient with respect to it."""
    return not pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop([tensor])


def one_after_another(*handlers: Handler) -> Handler:
    """Tells each of them, in this order."""

    def told(name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        for handler in handlers:
            handler(name, inputs, attrs, outputs)

    return handlers[0] if len(handlers) == 1 else told
