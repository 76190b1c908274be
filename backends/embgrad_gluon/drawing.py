"""Keeps what embgrad does beside the user's own passes from drawing random numbers: MXNet's generators cannot be put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embgrad.errors import UnsupportedError
from embgrad_gluon.graph import DRAWING, in_order
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.operators import Handler, Operation

__all__ = ["Draws", "drawing_nothing"]


class Draws:
    """What the operators that draw random numbers gave in one pass through a hybridised block that runs operator by operator."""

    def __init__(self) -> None:
        self._gave: list[Any] = []

    def take_down(self, operation: Operation, gave: Any) -> None:
        """Take down that an operator ran."""
        if _draws(operation):
            self._gave.append(gave[0] if isinstance(gave, (list, tuple)) else gave)

    def expect_in_order(self, block: Any, returned: Any) -> None:
        """Refuse a block whose graph draws in another order than its Python: each layer then gets other random numbers.

        Raises:
            UnsupportedError: that is so, or cannot be told.
        """
        outputs = [array for array in import_mxnet().gluon.block._flatten(returned, "output")[0] if array is not None]
        if self._gave and not in_order(outputs, self._gave):
            raise UnsupportedError(
                f"{type(block).__name__} {block.name!r} is hybridised and draws random numbers, as by dropout, in another order "
                "there than where it runs operator by operator, as it must while a gradient inside of it is captured, so that "
                "the training would end with other weights: call hybridize(False) before the capture, or use it without dropout"
            )


def _draws(operation: Operation) -> bool:
    """Whether it draws in the mode of the thread."""
    training = import_mxnet().autograd.is_training() or operation.attributes.get("mode") == "always"
    if operation.name in ("Dropout", "RNN"):
        return training and float(operation.attributes.get("p", 0.5 if operation.name == "Dropout" else 0)) > 0
    return True


def drawing_nothing() -> dict[str, Handler]:
    """Handlers for a pass beside the user's own: by operators' names what lets none of them draw."""

    def refuse(operation: Operation, proceed: Callable[[], Any]) -> Any:
        raise UnsupportedError(
            f"the model draws random numbers in evaluation mode, by {operation.name!r}: to find the point embgrad makes one "
            "forward pass beside your own, and MXNet's generator cannot be put back after it; capture at='word', or draw under "
            "autograd.is_training() alone"
        )

    def without(operation: Operation, proceed: Callable[[], Any]) -> Any:
        operation.attributes["p"] = 0.0
        return proceed()

    handlers: dict[str, Handler] = dict.fromkeys(DRAWING, refuse)
    del handlers["RNN"]  # which the cures see to
    return {**handlers, "Dropout": without}
