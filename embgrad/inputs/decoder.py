"""The decoder's side of an encoder-decoder: which positions an output is over, and what a call without decoder ids means."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from embgrad.backend.signature import parameters_of
from embgrad.common.arrays import whole_numbers
from embgrad.errors import BatchError, EmbgradError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import as_array
from embgrad.objectives.selection import IGNORED

__all__ = ["expecting_decoder", "positions_of", "with_decoder"]

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
    by_labels = _decoder_by_labels(batch)
    return by_labels if by_labels is not None and tuple(shape[:2]) == by_labels.shape != batch.shape else batch


def with_decoder(model: Any, batch: TokenBatch) -> TokenBatch:
    """Return the batch as an objective sees it: with decoder ids where the model makes these of the labels, and without any
    where the model takes none.
    """
    if IDS not in batch.extras and LABELS not in batch.extras:
        return batch
    takes = _takes_decoder(model)
    if IDS in batch.extras:
        return batch if takes is not False else batch.replace(extras=_without(batch, IDS, MASK))
    decoder = _decoder_by_labels(batch) if takes else None
    if decoder is None:
        return batch
    return batch.replace(extras={**batch.extras, IDS: decoder.ids, MASK: decoder.mask})


@contextlib.contextmanager
def expecting_decoder(model: Any, batch: TokenBatch, call: Any) -> Iterator[None]:
    """Say of an error that the decoder's ids are missing, where an encoder-decoder was called without.

    Some encoder-decoders make decoder ids of the encoder's, as BART does: so nothing is refused before the call.

    Raises:
        BatchError: they are.
    """
    try:
        yield
    except EmbgradError:
        raise
    except Exception as error:
        given = {IDS, "decoder_inputs_embeds", LABELS} & set(batch.extras)
        if call is not None or given or not _takes_decoder(model):
            raise
        raise BatchError(
            f"the model {type(model).__name__} is an encoder-decoder, and raised {type(error).__name__} without decoder ids: "
            f"expected {IDS!r} in the batch's dict, of shape (example, decoder position). Give {MASK!r} beside them where they "
            "are padded"
        ) from error


def _decoder(batch: TokenBatch) -> TokenBatch | None:
    """Return the decoder's ids and mask; None where the batch has none."""
    ids = batch.extras.get(IDS)
    return None if ids is None else TokenBatch(ids, batch.extras.get(MASK))


def _decoder_by_labels(batch: TokenBatch) -> TokenBatch | None:
    """Return the decoder's positions as the labels say them, which are padded by -100; None where there are no such labels."""
    given = batch.extras.get(LABELS)
    labels = None if given is None else whole_numbers(as_array(given, LABELS))
    if labels is None or labels.ndim != 2 or len(labels) != len(batch):
        return None
    real = labels != IGNORED
    return TokenBatch(np.where(real, labels, 0), real)


def _takes_decoder(model: Any) -> bool | None:
    """Return whether the model takes decoder ids; None where its signature leaves that open."""
    function = next((one for name in ("forward", "call") if (one := getattr(model, name, None)) is not None), None)
    try:
        parameters = parameters_of(function)
    except (TypeError, ValueError):  # it has no signature
        return None
    if any(p.name == IDS for p in parameters):
        return True
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return False
    said = getattr(getattr(model, "config", None), "is_encoder_decoder", None)
    return said if isinstance(said, bool) else None


def _without(batch: TokenBatch, *names: str) -> dict[str, Any]:
    return {name: value for name, value in batch.extras.items() if name not in names}
