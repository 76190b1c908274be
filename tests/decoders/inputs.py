"""Texts of different lengths as batches, and what is measured of a decoder, for every framework."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.testing.snapshot import different

VOCAB: Final = 320
LENGTHS: Final = (7, 4, 9)
PADDING: Final = 0


@dataclass(frozen=True)
class Inputs:
    """A batch and its labels, the next tokens.

    Attributes:
        batch: by name.
        labels: (example, position); -100 where no token follows.
        mask: (example, position), of the tokens.
    """

    batch: Mapping[str, np.ndarray]
    labels: np.ndarray
    mask: np.ndarray

    def with_positions(self) -> Inputs:
        """Return the same with `position_ids` that do not count padding."""
        positions = (self.mask.cumsum(1) - 1).clip(0)
        return dataclasses.replace(self, batch={**self.batch, "position_ids": positions})


_TEXTS: Final = [np.random.default_rng(0).integers(5, VOCAB, length) for length in LENGTHS]


def padded(side: str, *, encoder: bool = False) -> Inputs:
    """Return all texts in one batch, padded on the right or on the left."""
    width = max(LENGTHS)
    return _inputs([(text, width - len(text) if side == "left" else 0) for text in _TEXTS], width, encoder)


def alone(encoder: bool = False) -> list[Inputs]:
    """Return each text as a batch of its own."""
    return [_inputs([(text, 0)], len(text), encoder) for text in _TEXTS]


def _inputs(texts: list[tuple[np.ndarray, int]], width: int, encoder: bool) -> Inputs:
    ids = np.full((len(texts), width), PADDING)
    mask = np.zeros_like(ids)
    for row, (text, start) in enumerate(texts):
        ids[row, start : start + len(text)] = text
        mask[row, start : start + len(text)] = 1
    batch = {"input_ids": ids, "attention_mask": mask}
    # An encoder-decoder continues with the same tokens in another order, padded as they are.
    continued = np.where(mask == 1, (ids + 11) % (VOCAB - 5) + 5, PADDING) if encoder else ids
    labels = np.full(ids.shape, -100)
    labels[:, :-1] = np.where(mask[:, 1:] * mask[:, :-1] == 1, continued[:, 1:], -100)
    decoder = {"decoder_input_ids": continued, "decoder_attention_mask": mask} if encoder else {}
    return Inputs({**batch, **decoder}, labels, mask)


# Cells


@dataclass(frozen=True)
class Cell:
    """What was measured of a decoder in a mode. Differences are relative, in the L2 norm, the largest over the examples.

    Attributes:
        error: the class and the message of embgrad's error; empty where there is none.
        inapplicable: why the mode has no meaning for the decoder; empty where it has.
        own: the difference from PyTorch's own gradient of the rows, at `word`, with values added and overridden there, and at
            the last layer.
        one_hot: the difference of the products with the table from PyTorch's gradient with respect to one-hot inputs.
        right: the difference of a batch that is padded on the right from its examples alone.
        left: likewise on the left.
        positions: likewise on the left, with `position_ids` that do not count padding; None where the model takes none.
        warned: whether padding on the left was a warning.
        changed: what was not left as it was found.
        from_float32: the difference of the gradient from that of the same model in float32.
    """

    error: str = ""
    inapplicable: str = ""
    own: float | None = None
    one_hot: float | None = None
    right: float | None = None
    left: float | None = None
    positions: float | None = None
    warned: bool = False
    changed: tuple[str, ...] = ()
    from_float32: float | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {**asdict(self), "changed": list(self.changed)}


def relative(values: np.ndarray, expected: np.ndarray) -> float:
    """Return the relative difference in the L2 norm."""
    return float(np.linalg.norm(values - expected) / np.linalg.norm(expected))


def measure(
    gradients: Callable[..., np.ndarray],
    own: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]],
    state: Callable[[], Any],
    dim: int,
    *,
    positions: bool,
) -> Cell:
    """Return what is measured of a model in float32.

    Args:
        gradients: returns embgrad's gradient for inputs and options.
        own: returns the framework's gradients of the rows and of one-hot inputs, and the table; `added` is added to the rows, and
            `put` takes their place.
        state: returns what a call must leave as it was.
        dim: the rows' length.
        positions: whether the model takes `position_ids`.
    """
    right, left, before = padded("right"), padded("left"), state()
    values = gradients(right)
    rows, one_hot, table = own(right)
    generator = np.random.default_rng(3)
    shape = (*right.mask.shape, dim)
    added, put = (0.02 * generator.normal(size=shape)).astype(np.float32), generator.normal(size=shape).astype("f4")
    differences = [
        relative(values, rows),
        relative(gradients(right, add={"word": added}), own(right, added=added)[0]),
        relative(gradients(right, override={"word": put}), own(right, put=put)[0]),
    ]
    assert gradients(right, at="layer.-1").shape == shape
    singles = [gradients(inputs)[0] for inputs in alone()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", embgrad.EmbgradWarning)
        of_left = gradients(left)
    return Cell(
        own=max(differences),
        one_hot=relative(values @ table.T, one_hot),
        right=from_alone(gradients(right), right, singles),
        left=from_alone(of_left, left, singles),
        positions=from_alone(gradients(left.with_positions()), left, singles) if positions else None,
        warned=any("padded on the left" in str(warning.message) for warning in caught),
        changed=tuple(different("", before, state())),
    )


def from_alone(values: np.ndarray, inputs: Inputs, singles: Sequence[np.ndarray]) -> float:
    """Return the largest difference of the gradients of a batch from those of its examples alone."""
    return max(relative(values[row][inputs.mask[row] == 1], single) for row, single in enumerate(singles))
