"""The decoder's side of an encoder-decoder: which positions an output is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from embgrad.common.arrays import whole_numbers
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import IGNORED, as_array

__all__ = ["IDS", "LABELS", "MASK", "decoder_by_labels", "positions_of"]

#: The further inputs that hold the decoder's ids and mask.
IDS: Final = "decoder_input_ids"
MASK: Final = "decoder_attention_mask"

#: The input from which an encoder-decoder makes the decoder's ids itself, by a shift, so that they are as many.
LABELS: Final = "labels"


def positions_of(shape: Sequence[int], batch: TokenBatch, output: str | None) -> TokenBatch:
    """Return the ids and the mask of the positions that an output is over: the batch itself, or those of its decoder.

    With the decoder's ids in the batch these are the decoder's, unless the output is named as the encoder's, or fits the
    encoder's positions alone.

    Args:
        shape: the output's.
        batch: what the model is run on.
        output: the output's name, or None for the default.
    """
    if output is not None and output.startswith("encoder"):
        return batch
    decoder = _decoder(batch)
    if decoder is not None:
        return batch if tuple(shape[:2]) == batch.shape != decoder.shape else decoder
    by_labels = decoder_by_labels(batch)
    return by_labels if by_labels is not None and tuple(shape[:2]) == by_labels.shape != batch.shape else batch


def _decoder(batch: TokenBatch) -> TokenBatch | None:
    """Return the decoder's ids and mask; None where the batch has none."""
    ids = batch.extras.get(IDS)
    return None if ids is None else TokenBatch(ids, batch.extras.get(MASK))


def decoder_by_labels(batch: TokenBatch) -> TokenBatch | None:
    """Return the decoder's positions as the labels say them, which are padded by -100; None where there are no such labels."""
    given = batch.extras.get(LABELS)
    labels = None if given is None else whole_numbers(as_array(given, LABELS))
    if labels is None or labels.ndim != 2 or len(labels) != len(batch):
        return None
    real = labels != IGNORED
    return TokenBatch(np.where(real, labels, 0), real)
