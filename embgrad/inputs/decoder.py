"""Find the positions that an encoder-decoder's output belongs to: those of the encoder's ids or those of the decoder's."""

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

#: The input from which an encoder-decoder derives the decoder's ids itself, by a shift, so that both are equally long.
LABELS: Final = "labels"


def positions_of(shape: Sequence[int], batch: TokenBatch, output: str | None) -> TokenBatch:
    """Return the ids and the mask of the positions that an output belongs to: the batch itself, or its decoder's side.

    If the batch holds the decoder's ids, the output is taken as the decoder's, unless its name says that it is the encoder's,
    or its shape fits the encoder's positions alone.

    Args:
        shape: the shape of the output.
        batch: the batch that the model is run on.
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
    """Return the decoder's ids and mask as a batch; None where the batch has no decoder ids."""
    ids = batch.extras.get(IDS)
    return None if ids is None else TokenBatch(ids, batch.extras.get(MASK))


def decoder_by_labels(batch: TokenBatch) -> TokenBatch | None:
    """Return the decoder's positions as given by labels padded with -100; None where the batch has no such labels."""
    labels = batch.extras.get(LABELS)
    label_array = None if labels is None else whole_numbers(as_array(labels, LABELS))
    if label_array is None or label_array.ndim != 2 or len(label_array) != len(batch):
        return None
    real = label_array != IGNORED
    return TokenBatch(np.where(real, label_array, 0), real)
