"""Convert a batch from any accepted form: a TokenBatch, a dict, gluonnlp's triple, an array of ids, or texts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import whole_numbers
from embgrad.errors import BatchError, brief, did_you_mean, quote
from embgrad.inputs.batch import CONVENTIONS, ID_NAMES, MASK_NAMES, PACKED, TYPE_NAMES, TokenBatch
from embgrad.inputs.checks import as_array, check_ids, is_text
from embgrad.inputs.encode import encode, is_of_huggingface, is_tokenizer, with_known_tokens, with_tokens
from embgrad.inputs.fast_tokenizers import words_of
from embgrad.inputs.keras_hub import inner_tokenizer, preprocessor_of

__all__ = ["as_batch", "batch_of", "tokenizer_of"]

#: Attributes of an object with a tokenizer that hold the number of tokens to which it cuts its texts.
LENGTHS: Final = ("max_seq_length", "max_length")


def batch_of(batch: Any, tokenizer: Any, max_length: int | None = None, model: Any = None) -> TokenBatch:
    """Return the batch from any accepted form.

    Args:
        tokenizer: encodes texts, and names the tokens of ids. None uses the model's own tokenizer for texts, if it has one.
        max_length: the most tokens of an example, for texts. None uses the model's own limit if its tokenizer is used, and no
            limit otherwise.
        model: an object that may have a tokenizer, such as a pipeline or a sentence encoder; None for none.
    """
    if is_text(batch):
        made = _of_own_features(model, batch, max_length) if tokenizer is None else None
        if made is not None:
            return made
        tokenizer_of_model = getattr(model, "tokenizer", None) if tokenizer is None else None
        if tokenizer is tokenizer_of_model is None:
            tokenizer_of_model = preprocessor_of(model)
        if tokenizer_of_model is not None:
            return encode(batch, tokenizer_of_model, max_length=_length_of(model) if max_length is None else max_length)
        return as_batch(batch) if tokenizer is None else encode(batch, tokenizer, max_length=max_length)
    if tokenizer is not None and isinstance(batch, (list, tuple)) and not batch:
        raise BatchError("the batch is an empty list: expected at least one text or pair of texts")
    checked = as_batch(batch, model)
    if max_length is not None:
        raise BatchError(
            f"max_length={brief(max_length)} cuts texts, and the batch holds ids: expected ids of that length, ids[:, "
            f":{brief(max_length)}], with mask and types alike; omit max_length"
        )
    return checked if tokenizer is None else with_tokens(checked, tokenizer)


def _length_of(model: Any) -> int | None:
    """Return the number of tokens to which a model with a tokenizer cuts its texts; None where it does not cut them."""
    lengths = (getattr(model, name, None) for name in LENGTHS)
    return next((length for length in lengths if type(length) is int and length > 0), None)


def as_batch(batch: Any, model: Any = None) -> TokenBatch:
    """Return a TokenBatch from a TokenBatch, a dict in a known convention, gluonnlp's triple or an array of ids.

    Args:
        model: the model, by whose own names of inputs a dict may give them; None for known conventions alone.
    """
    if isinstance(batch, TokenBatch):
        return batch
    if (
        is_text(batch) or getattr(getattr(batch, "dtype", None), "name", "") == "string"
    ):  # TensorFlow's tensors of texts
        raise BatchError(
            "the batch is raw text, and a model reads token ids: pass tokenizer=..., or build the batch with "
            "embgrad.encode(texts, tokenizer). For a model that makes the ids itself give these, with call=lambda model, ids: "
            "model(texts)"
        )
    if isinstance(batch, Mapping):
        return _from_mapping(batch, model)
    _expect_no_model(batch)
    _expect_one_batch(batch)
    if isinstance(batch, tuple) and len(batch) == 3 and _is_triple(*batch):
        return _from_triple(*batch)
    return TokenBatch(batch, convention="ids")


def _expect_no_model(value: Any) -> None:
    """Raise an error if a model or an objective was passed as the batch."""
    is_objective = any(base.__module__.startswith("embgrad.objectives") for base in type(value).__mro__)
    is_array = hasattr(value, "shape") or hasattr(value, "__array__")
    if is_objective or (callable(value) and not is_array):
        raise BatchError(
            f"the batch is a {type(value).__name__}: expected token ids there, the model first and the objective last, as in "
            "embgrad.gradients(model, batch, objective)"
        )


def _expect_one_batch(value: Any) -> None:
    """Raise an error for a list of uncollated examples, an (ids, labels) pair, or an iterable of batches."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        raise BatchError(
            f"the batch is a {type(value).__name__} of {len(value)} dicts: expected one dict of arrays, (example, position), as "
            "tokenizer.pad or a collate function makes it; embgrad.stream takes many batches"
        )
    if isinstance(value, (list, tuple)) and len(value) == 2 and [_axes(entry) for entry in value] == [2, 1]:
        raise BatchError(
            "the batch is a pair of arrays with two axes and one axis: expected the ids alone, or a dict of inputs; "
            "labels go into the objective, embgrad.CrossEntropy(labels)"
        )
    is_array = hasattr(value, "shape") or hasattr(value, "__array__")
    if hasattr(value, "__iter__") and not is_array and not isinstance(value, (list, tuple)):
        raise BatchError(
            f"the batch is a {type(value).__name__}: expected one batch, as next(iter(...)) gives it, or embgrad.stream for all"
        )


def _axes(value: Any) -> int | None:
    return len(value.shape) if hasattr(value, "shape") else None


def _is_triple(ids: Any, types: Any, valid_length: Any) -> bool:
    """Return whether the values are gluonnlp's triple rather than three rows of ids."""
    return as_array(ids, "ids").ndim != 1 and as_array(valid_length, "valid_length").ndim == 1


def _of_own_features(model: Any, texts: Any, max_length: int | None) -> TokenBatch | None:
    """Return texts as a sentence encoder makes its own inputs of them; None for other models.

    A tokenizer of Hugging Face makes the same ids, and more of what is known of the texts. Where the model's method takes no list
    of texts, a tokenizer that `encode` takes serves.
    """
    names = [name for name in ("preprocess", "tokenize") if callable(getattr(model, name, None))]
    tokenizer = getattr(model, "tokenizer", None)
    if not names or not callable(getattr(model, "encode", None)) or tokenizer is None or is_of_huggingface(tokenizer):
        return None
    if max_length is not None:
        raise BatchError(
            f"max_length is {brief(max_length)}, and {type(model).__name__} makes ids of texts by its own method {names[0]!r}: "
            "set the model's max_seq_length, and omit max_length"
        )
    rows = [texts] if isinstance(texts, str) else list(texts)
    try:
        features = getattr(model, names[0])(rows)
    except Exception as error:
        if is_tokenizer(tokenizer):
            return None
        raise BatchError(
            f"{type(model).__name__} raised {type(error).__name__} for these texts in its own method {names[0]!r}: expected "
            "texts that model.encode takes, or ids"
        ) from error
    if not isinstance(features, Mapping):
        return None
    made = as_batch(features, model)
    return with_known_tokens(made.replace(texts=rows), tokenizer)


def _from_packed(mapping: Mapping[str, Any]) -> TokenBatch | None:
    """Return the batch of a dict with ids in one row and `offsets`, where each example begins; None for other dicts."""
    rows = {key: array for key, value in mapping.items() if (array := _row_of_whole(value)) is not None}
    starts = rows.pop("offsets", None)
    names = [name for name in (*(keys[0] for keys in CONVENTIONS.values()), *ID_NAMES, *rows) if name in rows]
    if starts is None or not names:
        return None
    ids = rows[names[0]]
    lengths = np.diff(np.append(starts, len(ids)))
    if not len(starts) or starts[0] != 0 or (lengths < 1).any():
        raise BatchError(
            f"offsets is {brief(starts.tolist())} for {len(ids)} ids in one row: expected the index at which each example "
            f"begins, rising from 0, of examples with one id at least{_of_the_end(starts, len(ids))}"
        )
    real = np.arange(lengths.max()) < lengths[:, None]
    filled = np.zeros(real.shape, np.int64)
    filled[real] = ids
    extras = {key: value for key, value in mapping.items() if key not in (names[0], "offsets")}
    return TokenBatch(filled, real, extras=extras, convention=PACKED)


def _of_the_end(starts: np.ndarray, count: int) -> str:
    """Return what to do where the last offset is the end of the row, as `include_last_offset` of PyTorch has it."""
    if not len(starts) or starts[-1] != count:
        return ""
    return f". {count} is the end of the row: omit it, and append it in call=... for a model that takes it"


def _row_of_whole(value: Any) -> np.ndarray | None:
    """Return a value with one axis of whole numbers as int64; None for others."""
    try:
        array = None if value is None else as_array(value, "ids")
    except BatchError:
        return None
    return whole_numbers(array) if array is not None and array.ndim == 1 else None


def _from_mapping(mapping: Mapping[str, Any], model: Any) -> TokenBatch:
    if mapping.get("inputs_embeds") is not None:
        raise BatchError(
            "the batch holds 'inputs_embeds', and the gradient is taken where the model looks up ids: expected the ids in its "
            "place, and the embeddings as override={'word': array}"
        )
    packed = _from_packed(mapping) if "offsets" in mapping else None
    if packed is not None:
        return packed
    known = {keys[0]: name for name, keys in CONVENTIONS.items()}
    id_keys = [key for key in known if key in mapping]
    own = None if id_keys else _own_name_of_ids(mapping, model)
    if own is not None:
        return _from_own_names(mapping, own)
    if not id_keys:
        near = next((hint for key in mapping if (hint := did_you_mean(str(key), known))), "")
        raise BatchError(
            f"the batch is a dict with the keys {quote(mapping)}, and none of them holds the token ids: expected one "
            f"of {quote(known)}.{near} For other names pass embgrad.TokenBatch(ids=...) and call=..."
        )
    if len(id_keys) > 1:
        raise BatchError(
            f"the batch is a dict with token ids under {quote(id_keys)}: expected only one of these keys; remove the others"
        )
    convention = known[id_keys[0]]
    ids, mask, types = CONVENTIONS[convention]
    extras = {key: value for key, value in mapping.items() if key not in (ids, mask, types)}
    foreign = {key: name for name, keys in CONVENTIONS.items() for key in keys[1:] if key in extras}
    if foreign:
        key, convention_of_key = next(iter(foreign.items()))
        raise BatchError(
            f"the batch mixes conventions: {ids!r} goes with {mask!r} and {types!r}, but there is also {key!r}, which "
            f"goes with {CONVENTIONS[convention_of_key][0]!r}; rename it"
        )
    as_bool = mapping.get(mask) is not None and as_array(mapping[mask], "mask").dtype == bool
    result = TokenBatch(
        mapping[ids], mapping.get(mask), mapping.get(types), extras=extras, convention=convention, mask_is_bool=as_bool
    )
    return _with_encodings(result, getattr(mapping, "encodings", None))


def _own_name_of_ids(mapping: Mapping[str, Any], model: Any) -> str | None:
    """Return the key of the ids in a dict with the model's own names of inputs; None where they are not known by their names.

    A Keras model declares its inputs; that of the ids has a known name, or is the only one for whole numbers of two axes. Of
    another model's parameters it is the first with a known name, or else the first, as when the model is called.
    """
    names = _find_declared_names(model)
    if names is not None:
        fitting = [name for name in names if _holds_ids(mapping.get(name)) and name not in (*MASK_NAMES, *TYPE_NAMES)]
        fitting = [name for name in ID_NAMES if name in fitting] or fitting
        return fitting[0] if len(fitting) == 1 else None
    parameters = _parameter_names(model)
    first = next((name for name in ID_NAMES if name in parameters), next(iter(parameters), None))
    return first if first is not None and _holds_ids(mapping.get(first)) else None


def _find_declared_names(model: Any) -> list[str] | None:
    """Return the names of the inputs of a functional Keras model; None for other models."""
    inputs = getattr(model, "inputs", None)
    names = [getattr(entry, "name", None) for entry in inputs] if isinstance(inputs, (list, tuple)) else []
    return [str(name) for name in names] if names and all(isinstance(name, str) for name in names) else None


def _parameter_names(model: Any) -> list[str]:
    """Return the names of the parameters of a model's own call, or none where its signature does not show them."""
    function = next(
        (method for name in ("forward", "call") if (method := getattr(model, name, None)) is not None), None
    )
    try:
        parameters = [] if function is None else list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # the function has no signature
        return []
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _holds_ids(value: Any) -> bool:
    """Return whether a value is an array of whole numbers with two axes."""
    try:
        array = None if value is None else as_array(value, "ids")
    except BatchError:
        return False
    return array is not None and array.ndim == 2 and whole_numbers(array) is not None


def _own(names: Sequence[str], mapping: Mapping[str, Any], ids: str) -> str | None:
    """Return the first of the names under which a dict holds an array of the ids' shape; None where there is none."""
    shape = as_array(mapping[ids], "ids").shape
    present = [name for name in names if mapping.get(name) is not None]
    return next((name for name in present if as_array(mapping[name], name).shape == shape), None)


def _from_own_names(mapping: Mapping[str, Any], ids: str) -> TokenBatch:
    """Return the batch of a dict with a model's own names of inputs."""
    mask, types = _own(MASK_NAMES, mapping, ids), _own(TYPE_NAMES, mapping, ids)
    return TokenBatch(
        mapping[ids],
        None if mask is None else mapping[mask],
        None if types is None else mapping[types],
        extras={key: value for key, value in mapping.items() if key not in (ids, mask, types)},
        mask_is_bool=mask is not None and as_array(mapping[mask], "mask").dtype == bool,
    )


def _with_encodings(batch: TokenBatch, encodings: Any) -> TokenBatch:
    """Return the batch with the tokens and words of a fast tokenizer's encodings, which a `BatchEncoding` holds beside the ids.

    Encodings are ignored where their ids differ from the batch's: the user may have changed the ids since.
    """
    if (
        not isinstance(encodings, list)
        or [list(getattr(encoding, "ids", ())) for encoding in encodings] != batch.ids.tolist()
    ):
        return batch
    return batch.replace(
        tokens=[encoding.tokens for encoding in encodings],
        words=[words_of(encoding.word_ids, encoding.sequence_ids) for encoding in encodings],
    )


def _from_triple(ids: Any, types: Any, valid_length: Any) -> TokenBatch:
    checked = check_ids(ids)
    lengths = whole_numbers(as_array(valid_length, "valid_length"))
    if lengths is None or lengths.shape != (len(checked),) or (lengths < 1).any() or (lengths > checked.shape[1]).any():
        raise BatchError(
            f"valid_length is {brief(valid_length)}: expected {len(checked)} whole numbers, one for each example, from 1 to "
            f"{checked.shape[1]}, the number of positions, in gluonnlp's (ids, types, valid_length); if these are labels, pass "
            "them to the objective, and the inputs as a dict"
        )
    mask = np.arange(checked.shape[1]) < lengths[:, None]
    return TokenBatch(ids, mask, types, convention="gluonnlp")


def tokenizer_of(model: Any, tokenizer: Any) -> Any:
    """Return the user's tokenizer, or else the one that the model holds as `tokenizer`; None where there is neither.

    Of a preprocessor of keras-hub it is the tokenizer.
    """
    return inner_tokenizer(getattr(model, "tokenizer", None) if tokenizer is None else tokenizer)
