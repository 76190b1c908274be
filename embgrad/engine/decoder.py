"""Encoder-decoders: the batch as an objective sees it, and the error of a call without decoder ids."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from embgrad.backend.signature import parameters_of
from embgrad.errors import BatchError, EmbgradError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import IDS, LABELS, MASK, decoder_by_labels

__all__ = ["expecting_decoder", "with_decoder"]


def with_decoder(model: Any, batch: TokenBatch) -> TokenBatch:
    """Return the batch as an objective sees it: with decoder ids where the model makes these of the labels, and without any
    where the model takes none.
    """
    if IDS not in batch.extras and LABELS not in batch.extras:
        return batch
    takes = _takes_decoder(model)
    if IDS in batch.extras:
        return batch if takes is not False else batch.replace(extras=_without(batch, IDS, MASK))
    decoder = decoder_by_labels(batch) if takes else None
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
