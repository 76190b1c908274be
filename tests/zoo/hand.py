"""What a framework offers to compute gradients by hand, without any part of embgrad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

__all__ = ["DECODER", "WORD", "Case", "Hand", "Pulled", "Unchecked", "place_of"]

#: The rows that are looked up for the batch's ids, and for a decoder's.
WORD = "word"
DECODER = "decoder"


class Unchecked(Exception):
    """The gradient cannot be computed by hand; the message says why."""


@dataclass(frozen=True)
class Case:
    """A model, and what it is given.

    Attributes:
        model: the model.
        batch: its inputs by name, among them the ids and the mask, if it takes one.
        ids: the name of the ids.
        mask: the name of the mask.
        labels: the name of the ids whose log-probabilities the logits are; None for a model that gives none.
        decoder: the name of a decoder's ids; None without a decoder.
    """

    model: Any
    batch: Mapping[str, np.ndarray]
    ids: str = "input_ids"
    mask: str = "attention_mask"
    labels: str | None = None
    decoder: str | None = None

    @property
    def real(self) -> np.ndarray:
        """Where the batch has real tokens, (example, position)."""
        ids = self.batch[self.ids]
        return np.asarray(self.batch.get(self.mask, np.ones_like(ids)), bool)

    @property
    def looked_up(self) -> dict[str, np.ndarray]:
        """The ids whose rows are points."""
        return {WORD: self.batch[self.ids], **({DECODER: self.batch[self.decoder]} if self.decoder else {})}


@dataclass(frozen=True)
class Pulled:
    """What a forward pass and its pullbacks gave.

    Attributes:
        values: the values at the points.
        gradients: for each cotangent the gradients at the points; zeros where the output does not depend on the point.
        last_layer: the path of the last of the repeated blocks whose values depend on the rows; None where there is none.
    """

    values: Mapping[str, np.ndarray]
    gradients: Sequence[Mapping[str, np.ndarray]]
    last_layer: str | None


class Hand(Protocol):
    """A framework's own forward pass, pullback and state of a model."""

    def outputs(self, case: Case) -> dict[str, np.ndarray]:
        """Return the arrays of numbers that the model returns, by name."""
        ...

    def pull(
        self,
        case: Case,
        output: str,
        respond: Callable[[np.ndarray], Sequence[np.ndarray]],
        points: Sequence[str] = (WORD,),
        scale: np.ndarray | None = None,
    ) -> Pulled:
        """Return the gradients at points by the framework's own differentiation, the weights frozen.

        Args:
            case: the model and its batch.
            output: the output that is pulled back.
            respond: returns the cotangents of the output, given its value.
            points: `WORD`, `DECODER`, or a module's path, with `#occurrence`.
            scale: factors of the rows of the batch's ids, (example, position), as on the path of integrated gradients from zero.

        Raises:
            Unchecked: the rows of the ids, or a module, were not reached.
        """
        ...

    def state(self, model: Any) -> dict[str, Any]:
        """Return everything of a model that a call must leave as it was, to be compared by `embgrad.testing.snapshot`."""
        ...


def place_of(given: np.ndarray, ids: np.ndarray) -> slice | None:
    """Return the columns of a lookup's indices that are a batch's ids, which a model may pad on either side; None for none."""
    if given.ndim != 2 or len(given) != len(ids) or given.shape[1] < ids.shape[1]:
        return None
    width = ids.shape[1]
    for columns in (slice(0, width), slice(given.shape[1] - width, given.shape[1])):
        if np.array_equal(given[:, columns], ids):
            return columns
    return None
