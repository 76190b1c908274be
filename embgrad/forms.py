"""The forms in which a batch may be given: as it is, as a dict, as gluonnlp's triple, as an array of ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embgrad.arrays import whole_numbers
from embgrad.batch import CONVENTIONS, TokenBatch
from embgrad.encoding import encode, with_tokens
from embgrad.errors import BatchError, brief, did_you_mean, listed
from embgrad.fast_tokenizers import words_of
from embgrad.holders import own_length, own_tokenizer
from embgrad.validation import as_array, checked_ids, is_text

__all__ = ["as_batch", "batch_of"]


def batch_of(given: Any, tokenizer: Any, model: Any = None) -> TokenBatch:
    """Return the batch from any form in which it may be given.

    Args:
        given: the batch, see `as_batch`; or texts.
        tokenizer: makes ids of texts, and names the tokens of ids; None for the model's own, which texts alone need.
        model: what may have a tokenizer, such as a pipeline or a sentence encoder; None for none.
    """
    if not is_text(given):
        return as_batch(given) if tokenizer is None else with_tokens(as_batch(given), tokenizer)
    if tokenizer is not None:
        return encode(given, tokenizer)
    own = own_tokenizer(model)
    return as_batch(given) if own is None else encode(given, own, max_length=own_length(model))


def as_batch(given: Any) -> TokenBatch:
    """A TokenBatch from a batch, a dict in a known convention, gluonnlp's triple or an array of ids.

    Raises:
        BatchError: strings (which need a tokenizer), or what is in none of these forms.
    """
    if isinstance(given, TokenBatch):
        return given
    if is_text(given):
        raise BatchError(
            "the batch is raw text, and a model reads token ids: pass tokenizer=..., or build the batch with "
            "embgrad.encode(texts, tokenizer)"
        )
    if isinstance(given, Mapping):
        return _from_mapping(given)
    if isinstance(given, tuple) and len(given) == 3 and _is_triple(*given):
        return _from_triple(*given)
    return TokenBatch(given, convention="ids")


def _is_triple(ids: Any, types: Any, valid_length: Any) -> bool:
    """Whether this is gluonnlp's triple, and not three rows of ids."""
    return as_array(ids, "ids").ndim != 1 and as_array(valid_length, "valid_length").ndim == 1


def _from_mapping(given: Mapping[str, Any]) -> TokenBatch:
    known = {keys[0]: name for name, keys in CONVENTIONS.items()}
    found = [key for key in known if key in given]
    if not found:
        near = next((hint for key in given if (hint := did_you_mean(str(key), known))), "")
        raise BatchError(
            f"the batch is a dict with the keys {listed(given)}, and none of them holds the token ids: expected one "
            f"of {listed(known)}.{near} For other names pass embgrad.TokenBatch(ids=...) and call=..."
        )
    if len(found) > 1:
        raise BatchError(
            f"the batch is a dict with token ids under {listed(found)}: expected one of them; leave one out"
        )
    convention = known[found[0]]
    ids, mask, types = CONVENTIONS[convention]
    extras = {key: value for key, value in given.items() if key not in (ids, mask, types)}
    foreign = {key: name for name, keys in CONVENTIONS.items() for key in keys[1:] if key in extras}
    if foreign:
        key, other = next(iter(foreign.items()))
        raise BatchError(
            f"the batch mixes conventions: {ids!r} goes with {mask!r} and {types!r}, but there is also {key!r}, which "
            f"goes with {CONVENTIONS[other][0]!r}; rename it"
        )
    as_bool = given.get(mask) is not None and as_array(given[mask], "mask").dtype == bool
    batch = TokenBatch(
        given[ids], given.get(mask), given.get(types), extras=extras, convention=convention, mask_is_bool=as_bool
    )
    return _with_encodings(batch, getattr(given, "encodings", None))


def _with_encodings(batch: TokenBatch, encodings: Any) -> TokenBatch:
    """Return the batch with the tokens and words of a fast tokenizer's encodings, which a `BatchEncoding` keeps beside the ids.

    They count while they are those of the ids: the user may have changed the ids since.
    """
    if not isinstance(encodings, list) or [list(getattr(one, "ids", ())) for one in encodings] != batch.ids.tolist():
        return batch
    return batch.replace(
        tokens=[one.tokens for one in encodings],
        words=[words_of(one.word_ids, one.sequence_ids) for one in encodings],
    )


def _from_triple(ids: Any, types: Any, valid_length: Any) -> TokenBatch:
    checked = checked_ids(ids)
    lengths = whole_numbers(as_array(valid_length, "valid_length"))
    if lengths is None or lengths.shape != (len(checked),) or (lengths < 1).any() or (lengths > checked.shape[1]).any():
        raise BatchError(
            f"valid_length is {brief(valid_length)}: expected {len(checked)} whole numbers, one an example, from 1 to "
            f"{checked.shape[1]}, the number of positions, in gluonnlp's (ids, types, valid_length); if these are labels, pass "
            "them to the objective, and the inputs as a dict"
        )
    mask = np.arange(checked.shape[1]) < lengths[:, None]
    return TokenBatch(ids, mask, types, convention="gluonnlp")
