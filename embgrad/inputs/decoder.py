"""The decoder's ids and mask of an encoder-decoder's batch, and the positions that an output belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import whole_numbers
from embgrad.errors import BatchError, ObjectiveError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import IGNORED, as_array

__all__ = [
    *("DECODER_MASKS", "IDS", "LABELS", "MASK", "NAMES", "UNDECIDED"),
    *("decoder_by_labels", "decoder_names", "decoder_of", "further_named", "is_undecided"),
    *("positions_of", "undecided_error", "with_decoder_ids"),
]

#: The names of the further inputs that hold the decoder's ids and mask, in each convention.
NAMES: Final = (
    ("decoder_input_ids", "decoder_attention_mask"),
    ("decoder_token_ids", "decoder_padding_mask"),
)

#: The masks' names.
DECODER_MASKS: Final = tuple(mask for _, mask in NAMES)

#: The names among them that messages propose, and that an objective's batch has.
IDS: Final = NAMES[0][0]
MASK: Final = NAMES[0][1]

#: The entry of an objective's batch that names a further input which may be the decoder's ids, or another text's.
UNDECIDED: Final = "undecided decoder ids"

#: The input from which an encoder-decoder derives the decoder's ids itself, by a shift, so that both are equally long.
LABELS: Final = "labels"


def decoder_names(extras: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the names under which further inputs hold the decoder's ids and their mask; None where there are no ids.

    The second name is that of the same convention where there is no mask.
    """
    present = [pair for pair in NAMES if extras.get(pair[0]) is not None]
    if not present:
        return None
    if len(present) > 1:
        raise BatchError(
            f"the batch holds decoder ids under {present[0][0]!r} and {present[1][0]!r}: expected only one of these keys; "
            "remove the other"
        )
    ids, mask = present[0]
    masks = [mask, *(name for _, name in NAMES if name != mask)]
    return ids, next((name for name in masks if extras.get(name) is not None), mask)


def decoder_of(batch: TokenBatch) -> TokenBatch | None:
    """Return the decoder's ids and mask as a batch; None where the batch has no decoder ids."""
    names = decoder_names(batch.extras)
    return None if names is None else TokenBatch(batch.extras[names[0]], batch.extras.get(names[1]))


def with_decoder_ids(batch: TokenBatch, ids: np.ndarray, mask: np.ndarray | None = None) -> TokenBatch:
    """Return the batch with these ids of the decoder, under the batch's own names for them, and with a mask if given."""
    names = decoder_names(batch.extras) or (IDS, MASK)
    of_mask = {} if mask is None else {names[1]: mask}
    return batch.replace(extras={**batch.extras, names[0]: ids, **of_mask})


def further_named(name: str, extras: Mapping[str, Any]) -> str | None:
    """Return the name of the further input that a model's input takes; None where there is none.

    It is the input's own name, or that of the same input of the decoder in another convention.
    """
    if name in extras:
        return name
    same = next((names for names in zip(*NAMES, strict=True) if name in names), ())
    return next((other for other in same if other in extras), None)


def positions_of(shape: Sequence[int], batch: TokenBatch, output: str | None) -> TokenBatch:
    """Return the ids and the mask of the positions that an output belongs to: the batch itself, or its decoder's side.

    If the batch holds the decoder's ids, the output is taken as the decoder's, unless its name says that it is the encoder's,
    or its shape fits the encoder's positions alone.
    """
    if output is not None and output.startswith("encoder"):
        return batch
    decoder = decoder_of(batch)
    if decoder is not None:
        if is_undecided(shape, batch, output):
            if len(shape) > 2:
                raise undecided_error(shape, batch)
            return batch if batch.padded else decoder
        return batch if tuple(shape[:2]) == batch.shape != decoder.shape else decoder
    by_labels = decoder_by_labels(batch)
    return by_labels if by_labels is not None and tuple(shape[:2]) == by_labels.shape != batch.shape else batch


def is_undecided(shape: Sequence[int], batch: TokenBatch, output: str | None) -> bool:
    """Return whether an output of this shape may be of a second text, which may be the decoder's, or whose mask is not known."""
    if UNDECIDED not in batch.extras or (output is not None and output.startswith("encoder")):
        return False
    return bool(tuple(shape[:2]) == np.shape(batch.extras[IDS]))


def undecided_error(shape: Sequence[int], batch: TokenBatch) -> ObjectiveError:
    """Return the error of an output of which it is not known whose positions it has."""
    return ObjectiveError(
        f"the output has the shape {tuple(shape)}, and the model looks up the further input {batch.extras[UNDECIDED]!r} beside "
        "the batch's ids: whether the output's positions are this input's, and which of them are padding, is not known. Name the "
        f"decoder's ids {IDS!r} and their mask {MASK!r}, or let call=... return the batch's own output under a name that begins "
        "with 'encoder'"
    )


def decoder_by_labels(batch: TokenBatch) -> TokenBatch | None:
    """Return the decoder's positions as given by labels padded with -100; None where the batch has no such labels."""
    labels = batch.extras.get(LABELS)
    label_array = None if labels is None else whole_numbers(as_array(labels, LABELS))
    if label_array is None or label_array.ndim != 2 or len(label_array) != len(batch):
        return None
    real = label_array != IGNORED
    return TokenBatch(np.where(real, label_array, 0), real)
