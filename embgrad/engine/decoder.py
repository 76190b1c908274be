"""Encoder-decoders: the decoder ids that a model accepts or derives, for an objective."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from embgrad.backend.signature import parameters_of
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import IDS, LABELS, MASK, decoder_by_labels

__all__ = ["parameters_of_call", "takes_decoder", "with_decoder"]


def with_decoder(model: Any, batch: TokenBatch) -> TokenBatch:
    """Return the batch for an objective.

    It has decoder ids where the model derives them from the labels, and none where the model does not accept any.
    """
    if IDS not in batch.extras and LABELS not in batch.extras:
        return batch
    takes = takes_decoder(model)
    if IDS in batch.extras:
        return batch if takes is not False else batch.replace(extras=_without(batch, IDS, MASK))
    decoder = decoder_by_labels(batch) if takes else None
    if decoder is None:
        return batch
    return batch.replace(extras={**batch.extras, IDS: decoder.ids, MASK: decoder.mask})


def takes_decoder(model: Any) -> bool | None:
    """Return whether the model accepts decoder ids; None where its signature does not show it."""
    parameters = parameters_of_call(model)
    if parameters is None:
        return None
    if any(p.name == IDS for p in parameters):
        return True
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return False
    declared = getattr(getattr(model, "config", None), "is_encoder_decoder", None)
    return declared if isinstance(declared, bool) else None


def parameters_of_call(model: Any) -> Sequence[inspect.Parameter] | None:
    """Return the parameters of the model's own call; None where its signature does not show them."""
    function = next(
        (method for name in ("forward", "call") if (method := getattr(model, name, None)) is not None), None
    )
    try:
        return parameters_of(function)
    except (TypeError, ValueError):  # the function has no signature
        return None


def _without(batch: TokenBatch, *names: str) -> dict[str, Any]:
    return {name: value for name, value in batch.extras.items() if name not in names}
