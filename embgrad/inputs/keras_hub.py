"""Encode texts with keras-hub's tokenizers, which only split, and with its preprocessors, which add special tokens and pad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.errors import BatchError, brief
from embgrad.inputs.batch import CONVENTIONS
from embgrad.inputs.collate import Encoded, Padding

__all__ = ["inner_tokenizer", "is_of_keras_hub", "padding_of_keras_hub", "preprocessor_of", "with_keras_hub"]

#: The names of ids, mask and types.
NAMES: Final = CONVENTIONS["keras_hub"]

#: What a message proposes where a preprocessor does not pack the texts.
WAY: Final = "give ids as the batch, such as the dict that preprocessor(...) returns for the model"


def is_of_keras_hub(tokenizer: object) -> bool:
    """Return whether an object is a tokenizer or a preprocessor of keras-hub, by its type, without importing keras-hub."""
    is_ours = any(base.__module__.partition(".")[0] == "keras_hub" for base in type(tokenizer).__mro__)
    return is_ours and hasattr(_inner(tokenizer), "id_to_token")


def inner_tokenizer(tokenizer: Any) -> Any:
    """Return the tokenizer of a preprocessor of keras-hub; anything else is returned unchanged."""
    return _inner(tokenizer) if is_of_keras_hub(tokenizer) else tokenizer


def _inner(tokenizer: Any) -> Any:
    return tokenizer if hasattr(tokenizer, "id_to_token") else getattr(tokenizer, "tokenizer", tokenizer)


def preprocessor_of(model: Any) -> Any:
    """Return the preprocessor that a model of keras-hub holds; None where there is none."""
    preprocessor = getattr(model, "preprocessor", None)
    return preprocessor if is_of_keras_hub(preprocessor) else None


def padding_of_keras_hub(tokenizer: Any) -> Padding:
    """Return the padding of a tokenizer, or of a preprocessor's."""
    inner = inner_tokenizer(tokenizer)
    id_ = getattr(inner, "pad_token_id", None)
    return Padding() if id_ is None else Padding(id=int(id_), token=str(inner.id_to_token(int(id_))))


def with_keras_hub(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    """Return each example as a tokenizer splits it, without special tokens, or as a preprocessor packs it, without padding."""
    if inner_tokenizer(tokenizer) is tokenizer:
        return [_split(tokenizer, example, number, max_length) for number, example in enumerate(examples)]
    name = type(tokenizer).__name__
    if max_length is not None:
        raise BatchError(
            f"max_length is {max_length}, and {name} cuts texts itself, to its sequence_length of "
            f"{getattr(tokenizer, 'sequence_length', None)}: set preprocessor.sequence_length, and omit max_length"
        )
    packed: dict[int, Encoded] = {}
    for count in (1, 2):
        numbers = [number for number, example in enumerate(examples) if len(example) == count]
        if numbers:
            columns = [[examples[number][part] for number in numbers] for part in range(count)]
            made = _pack(tokenizer, columns[0] if count == 1 else tuple(columns))
            for row, number in enumerate(numbers):
                packed[number] = _row(tokenizer, {key: array[row] for key, array in made.items()}, examples[number])
    return [packed[number] for number in range(len(examples))]


def _split(tokenizer: Any, example: tuple[str, ...], number: int, max_length: int | None) -> Encoded:
    if len(example) > 1:
        raise BatchError(
            f"example {number} is a pair of texts, and {type(tokenizer).__name__} splits single ones: expected the preprocessor "
            "as tokenizer=..., which joins them, such as a TextClassifierPreprocessor"
        )
    ids = _numbers(tokenizer(example[0]))
    kept = ids if max_length is None else ids[:max_length]
    return Encoded(
        kept, None, _tokens(tokenizer, kept), None, len(ids) - len(kept), convention="keras_hub", texts=example
    )


def _pack(preprocessor: Any, texts: Any) -> Mapping[str, np.ndarray]:
    """Return the arrays that a preprocessor makes of texts, (example, position)."""
    name = type(preprocessor).__name__
    try:
        made = preprocessor(x=texts)  # alone, a tuple would be texts and labels
    except Exception as error:
        raise BatchError(
            f"{name} raised {type(error).__name__} for {'texts' if isinstance(texts, list) else 'pairs of texts'}: {WAY}"
        ) from error
    inputs = made[0] if isinstance(made, (tuple, list)) and made else made
    if not isinstance(inputs, Mapping) or not {*NAMES[:2]} <= {*inputs}:
        raise BatchError(f"{name} returned {brief(inputs)}: expected a dict with {NAMES[0]!r} and {NAMES[1]!r}; {WAY}")
    if "mask_positions" in inputs:
        raise BatchError(
            f"{name} puts the mask in place of random tokens: expected a preprocessor that keeps the text; {WAY}"
        )
    return {key: to_numpy(value).astype(np.int64) for key, value in inputs.items() if key in NAMES}


def _row(preprocessor: Any, made: Mapping[str, np.ndarray], example: tuple[str, ...]) -> Encoded:
    """Return an example from its rows of the arrays that a preprocessor made."""
    tokenizer = inner_tokenizer(preprocessor)
    real = made[NAMES[1]] != 0
    kept = made[NAMES[0]][real].tolist()
    special = set(getattr(tokenizer, "special_token_ids", ()))
    wanted, packed = (
        sum(id_ not in special for id_ in ids)
        for ids in ([id_ for text in example for id_ in _numbers(tokenizer(text))], kept)
    )
    if wanted < packed or (wanted > packed and not real.all()):
        raise BatchError(
            f"{type(preprocessor).__name__} made {packed} tokens of {brief(example)}, which has {wanted}: expected the tokens of "
            f"the text, or of both texts of a pair; {WAY}"
        )
    types = made.get(NAMES[2])
    return Encoded(
        kept,
        None if types is None else types[real].tolist(),
        _tokens(tokenizer, kept),
        truncated=wanted - packed,
        convention="keras_hub",
        texts=example,
    )


def _numbers(ids: Any) -> list[int]:
    return [int(id_) for id_ in to_numpy(ids).ravel()]


def _tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return [str(tokenizer.id_to_token(id_)) for id_ in ids]
