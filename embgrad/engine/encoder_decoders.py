"""Encoder-decoders: the decoder ids that a model accepts, derives, or looks up, for an objective."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.protocol import BoundModel
from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.common.tracebacks import errors_of_model
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import IDS, LABELS, MASK, NAMES, UNDECIDED, decoder_by_labels, decoder_names, decoder_of
from embgrad.inputs.extras import equals, mask_of_further
from embgrad.keras.inputs import declared_names
from embgrad.model_points.points import WORD, Lookup, layout_of
from embgrad.toolkit.signature import as_parts, parameters_of

__all__ = ["further_text", "parameters_of_call", "takes_decoder", "with_decoder"]

#: The beginnings of names that decoder ids have outside of the known conventions.
BEGINNINGS: Final = ("decoder", "tgt", "trg", "prev_output")

#: The ends of names of inputs that hold the number of tokens of each example.
LENGTHS: Final = ("valid_length", "valid_lengths", "lengths")

#: The number of examples of a pass that shows which further inputs are looked up.
PROBED: Final = 2


class FurtherText(NamedTuple):
    """A further input whose numbers a model looks up, as it does the ids.

    Attributes:
        is_decoders: whether its name says that it is the decoder's.
    """

    name: str
    is_decoders: bool


#: By model, or by the user's function that calls it, and by the names of a batch's further inputs, the further text among them.
_texts: WeakKeyDictionary[Any, dict[Hashable, FurtherText | None]] = WeakKeyDictionary()


def with_decoder(bound: BoundModel, batch: TokenBatch) -> TokenBatch:
    """Return the batch for an objective: its decoder's ids and mask have the names `IDS` and `MASK`.

    It has decoder ids also where the model derives them from the labels, and where it looks up a further input as a second text;
    if that may be another text than the decoder's, or if its mask is not known, the entry `UNDECIDED` names it. The batch has
    none where the model does not accept any.
    """
    if not batch.extras:
        return batch
    names = decoder_names(batch.extras)
    if names is not None:
        others = {name: value for name, value in batch.extras.items() if name not in names}
        if bound.call is None and takes_decoder(bound.model) is False:
            return batch.replace(extras=others)
        return _with(batch.replace(extras=others), decoder_of(batch))
    if LABELS in batch.extras and takes_decoder(bound.model):
        return _with(batch, decoder_by_labels(batch))
    text = further_text(bound, batch)
    if text is None:
        return batch
    ids = _ids(batch.extras[text.name], len(batch))
    assert ids is not None, "a further text is an array of ids"
    mask, is_known = _mask_of(text.name, ids, batch.extras)
    decoder = TokenBatch(ids, mask)
    is_open = decoder.shape == batch.shape and not text.is_decoders and not np.array_equal(decoder.real, batch.real)
    undecided = {UNDECIDED: text.name} if is_open or not is_known else {}
    return _with(batch.replace(extras={**batch.extras, **undecided}), decoder)


def _with(batch: TokenBatch, decoder: TokenBatch | None) -> TokenBatch:
    if decoder is None:
        return batch
    mask = {} if decoder.mask is None else {MASK: decoder.mask}
    return batch.replace(extras={**batch.extras, IDS: decoder.ids, **mask})


def further_text(bound: BoundModel, batch: TokenBatch) -> FurtherText | None:
    """Return the further input that the model looks up as a second text; None where there is none.

    Such an input holds whole numbers, (example, position), and is read from the table of the batch's ids; or from another table
    if a mask belongs to it by its name, or if its name is one of a decoder's ids. A pass on some of the examples shows it. No
    pass is run where no further input can be a text, or where the model's configuration says that it is no encoder-decoder.
    """
    candidates = [
        name
        for name, value in batch.extras.items()
        if "position" not in name and name != LABELS and _ids(value, len(batch)) is not None
    ]
    configs = (getattr(part, "config", None) for part in as_parts(bound.model))
    if not candidates or any(getattr(config, "is_encoder_decoder", None) is False for config in configs):
        return None
    known = _memory_of(bound)
    form = (batch.convention, tuple(candidates), tuple(map(type, as_parts(bound.model))))
    if known is not None and form in known:
        return known[form]
    text = _look_up(bound, batch[:PROBED], candidates)
    # A text that equals the ids is not distinguished from them.
    if known is not None and (
        text is not None or not any(equals(batch.extras[name], batch.ids) for name in candidates)
    ):
        known[form] = text
    return text


def _memory_of(bound: BoundModel) -> dict[Hashable, FurtherText | None] | None:
    """Return what is remembered of a model, or of the user's function that calls it; None where neither takes references."""
    owner = bound.model if bound.call is None else bound.call
    try:
        return _texts.setdefault(owner, {})
    except TypeError:
        return None


def _look_up(bound: BoundModel, batch: TokenBatch, candidates: Sequence[str]) -> FurtherText | None:
    try:
        points = bound.points(batch)
    except errors_of_model():  # the model may accept no other number of examples
        return None
    lookups = [point.lookup for point in points if point.lookup is not None]
    tables = {point.lookup.path for point in points if point.lookup is not None and WORD in point.roles}
    for name in candidates:
        ids = _ids(batch.extras[name], len(batch))
        is_decoders = name.startswith(BEGINNINGS)
        has_mask = ids is not None and mask_of_further(batch.extras, ids) is not None
        own = [lookup for lookup in lookups if is_decoders or has_mask or lookup.path in tables]
        if ids is not None and not np.array_equal(ids, batch.ids) and _are_looked_up(ids, own):
            return FurtherText(name, is_decoders)
    return None


def _are_looked_up(ids: np.ndarray, lookups: Sequence[Lookup]) -> bool:
    """Return whether lookups read these ids, all at once or one position after another."""
    if any(layout_of(lookup.indices, ids) is not None for lookup in lookups):
        return True
    columns = {lookup.indices.astype(np.int64).tobytes() for lookup in lookups if lookup.indices.size == len(ids)}
    return all(column.tobytes() in columns for column in np.ascontiguousarray(ids.T))


def _ids(value: Any, examples: int) -> np.ndarray | None:
    """Return a further input as int64, (example, position), if it can hold ids: whole numbers, and not only 0 and 1."""
    shape = tuple(getattr(value, "shape", ()))
    if len(shape) != 2 or shape[0] != examples:
        return None
    try:
        numbers = whole_numbers(to_numpy(value))
    except (TypeError, ValueError):
        return None
    return numbers if numbers is not None and numbers.size and numbers.min() >= 0 and numbers.max() > 1 else None


def _mask_of(name: str, ids: np.ndarray, extras: Mapping[str, Any]) -> tuple[np.ndarray | None, bool]:
    """Return the mask of a further text, and whether it is known: not where another input with its name's begin may be one."""
    mask = mask_of_further({other: value for other, value in extras.items() if other != UNDECIDED}, ids)
    if mask is not None:
        return mask, True
    beginning = name.partition("_")[0]
    others = [other for other in extras if other != name and other.partition("_")[0] == beginning]
    lengths = next((other for other in others if other.removeprefix(f"{beginning}_") in LENGTHS), None)
    numbers = None if lengths is None else whole_numbers(to_numpy(extras[lengths]))
    if numbers is None or numbers.shape != ids.shape[:1]:
        return None, not others
    return (np.arange(ids.shape[1]) < numbers[:, None]).astype(np.int64), True


def takes_decoder(model: Any) -> bool | None:
    """Return whether the model accepts decoder ids; None where neither its configuration, inputs nor signature show it."""
    if _is_decoder_only(getattr(model, "config", None)):
        return False
    names = declared_names(model)
    of_decoder = {ids for ids, _ in NAMES}
    if names is not None:
        return not of_decoder.isdisjoint(names)
    parameters = parameters_of_call(model)
    if parameters is None:
        return None
    if any(p.name in of_decoder for p in parameters):
        return True
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return False
    declared = getattr(getattr(model, "config", None), "is_encoder_decoder", None)
    return declared if isinstance(declared, bool) else None


def _is_decoder_only(config: Any) -> bool:
    """Return whether the configuration of a model's text part says that it is no encoder-decoder, whatever its signature has.

    A class whose text part may be of either kind, such as BLIP-2, takes decoder ids and passes them on to some.
    """
    if getattr(config, "is_encoder_decoder", None) is True:
        return False
    of_text = getattr(getattr(config, "text_config", None), "is_encoder_decoder", None)
    return getattr(config, "use_decoder_only_language_model", None) is True or of_text is False


def parameters_of_call(model: Any) -> Sequence[inspect.Parameter] | None:
    """Return the parameters of the model's own call; None where its signature does not show them."""
    function = next(
        (method for name in ("forward", "call", "__call__") if (method := getattr(model, name, None)) is not None), None
    )
    try:
        return parameters_of(function)
    except (TypeError, ValueError):  # the function has no signature
        return None
