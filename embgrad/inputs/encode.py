"""Convert text to a TokenBatch with any tokenizer: add special tokens, pad to the longest, report truncation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.common.options import count_or_none
from embgrad.errors import BatchError, EmbgradWarning, brief, did_you_mean, level_of_user, quote
from embgrad.inputs.batch import CONVENTIONS, TokenBatch
from embgrad.inputs.collate import Encoded, Padding, pad
from embgrad.inputs.fast_tokenizers import (
    padding_of_huggingface,
    padding_of_tokenizers,
    with_huggingface,
    with_tokenizers,
)
from embgrad.inputs.keras_hub import inner_tokenizer, is_of_keras_hub, padding_of_keras_hub, with_keras_hub
from embgrad.inputs.special_tokens import special_ids
from embgrad.inputs.tfhub import is_preprocessor, preprocess

__all__ = [
    "BERT_SPECIAL",
    "as_example",
    "encode",
    "encode_examples",
    "expect_id",
    "is_of_huggingface",
    "is_tokenizer",
    "is_vocabulary",
    "listed_tokens",
    "padding_of",
    "warn_of_doubled",
    "with_known_tokens",
    "with_tokens",
]

#: BERT's special tokens, for tokenizers that only split text and number the pieces.
BERT_SPECIAL: Final = ("[CLS]", "[SEP]", "[PAD]")


def encode(
    texts: Any,
    tokenizer: Any,
    *,
    max_length: int | None = None,
    padding_side: str | None = None,
    pad_id: int | None = None,
) -> TokenBatch:
    """Return a batch from texts: special tokens as the tokenizer adds them, padded to the longest, types 0 and 1 for pairs.

    Fields that the tokenizer does not return are None in the batch. This matters for types: to GPT-2, zeros differ from none.
    The batch keeps the texts, and the `offsets` of the tokens in them where the tokenizer returns these: that is a
    `tokenizers.Tokenizer`, or a Hugging Face tokenizer that holds one.

    Args:
        texts: a text, or a list of texts and of pairs of texts, (premise, hypothesis).
        tokenizer: a Hugging Face tokenizer; a `tokenizers.Tokenizer`; an object with `tokenize` and
            `convert_tokens_to_ids`, whose pieces are surrounded with BERT's special tokens; a callable that takes a text, or
            two for a pair, and returns ids, or a dict in a known convention, which the batch then has; a TF Hub preprocessing
            model, loaded by `hub.load` or as a `hub.KerasLayer`; or a preprocessor of keras-hub, or its tokenizer, which adds no
            special tokens.
        max_length: the most tokens of an example, special tokens included; the batch's `truncated` counts the tokens cut
            off. None cuts off nothing. A plain callable must cut the texts itself.
        padding_side: "right" or "left"; None for the tokenizer's own side, or else right.
        pad_id: the padding id; None for the tokenizer's own, or else 0.

    Raises:
        BatchError: the texts or the tokenizer are of another type, or the tokenizer returned no ids.
    """
    examples = _examples(texts)
    if padding_side is not None and (not isinstance(padding_side, str) or padding_side not in ("right", "left")):
        raise BatchError(
            f"padding_side is {padding_side!r}: expected 'right' or 'left'."
            f"{did_you_mean(str(padding_side), ('right', 'left'))}"
        )
    expect_id(pad_id)
    padding = padding_of(tokenizer)
    unpadded = encode_examples(examples, tokenizer, max_length)
    warn_of_doubled(unpadded, tokenizer)
    padding = Padding(
        padding.id if pad_id is None else pad_id, padding.type, padding.token, padding_side or padding.side
    )
    return pad(unpadded, padding)


def with_tokens(batch: TokenBatch, tokenizer: Any) -> TokenBatch:
    """Return a batch of ids with the tokens that the tokenizer has for them; a batch that has tokens is returned unchanged."""
    if batch.tokens is not None:
        return batch
    _expect_instance(tokenizer)
    tokenizer = inner_tokenizer(tokenizer)
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        token_of = tokenizer.convert_ids_to_tokens
    elif hasattr(tokenizer, "id_to_token"):
        token_of = tokenizer.id_to_token
    elif (listed := listed_tokens(tokenizer)) is not None:
        token_of = listed.__getitem__
    else:
        raise BatchError(
            f"the batch holds ids, and the tokenizer, a {type(tokenizer).__name__}, cannot name them: expected an object with "
            "convert_ids_to_tokens or id_to_token, a list of tokens, or texts as the batch. Leave the tokenizer out for ids "
            "without tokens"
        )
    tokens = {number: _token(token_of, number, tokenizer) for number in np.unique(batch.ids).tolist()}
    return batch.replace(tokens=[[tokens[number] for number in row] for row in batch.ids.tolist()])


def listed_tokens(tokenizer: Any) -> dict[int, str] | None:
    """Return the tokens by id of a vocabulary, or of a tokenizer that lists its tokens; None where it does not."""
    listed = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else getattr(tokenizer, "vocab", tokenizer)
    if isinstance(listed, (list, tuple)):
        return {number: str(token) for number, token in enumerate(listed)}
    if not isinstance(listed, Mapping):
        return None
    if all(isinstance(key, (int, np.integer)) for key in listed):
        return {int(id_): str(token) for id_, token in listed.items()}
    return {int(id_): str(token) for token, id_ in listed.items()}


def is_vocabulary(tokenizer: Any) -> bool:
    """Return whether an object in place of a tokenizer names ids alone: a list of tokens, a mapping of tokens to ids or back."""
    return isinstance(tokenizer, (Mapping, list, tuple))


def with_known_tokens(batch: TokenBatch, tokenizer: Any) -> TokenBatch:
    """Return what `with_tokens` does, and the batch unchanged where the tokenizer does not name all its ids, or there is none."""
    if tokenizer is None:
        return batch
    try:
        return with_tokens(batch, tokenizer)
    except BatchError:  # models may have more ids than their tokenizers, and a function names none
        return batch


def _token(token_of: Callable[[int], Any], number: int, tokenizer: Any) -> str:
    """Return the token of an id; where there is none, libraries return None or raise."""
    try:
        token = token_of(number)
    except (IndexError, KeyError, OverflowError):
        token = None
    if token is None:
        raise BatchError(
            f"the tokenizer, a {type(tokenizer).__name__}, has no token for the id {number}: expected the tokenizer that made "
            "the ids. Leave the tokenizer out for ids without tokens"
        )
    return str(token)


def expect_id(pad_id: Any) -> None:
    """Raise an error if `pad_id` is not a valid id, even where there is nothing to pad."""
    whole = isinstance(pad_id, (int, np.integer)) and not isinstance(pad_id, bool)
    if pad_id is not None and not (whole and 0 <= pad_id < 2**63):
        raise BatchError(f"pad_id is {brief(pad_id)}: expected the id that pads, a whole number of at least 0, or None")


def padding_of(tokenizer: Any) -> Padding:
    """Return the tokenizer's own padding."""
    return _encoder_of(tokenizer)[1]


def encode_examples(examples: list[tuple[str, ...]], tokenizer: Any, max_length: int | None = None) -> list[Encoded]:
    """Return each example before padding, see `encode`; `pad` makes a batch of any of those that were encoded together."""
    max_length = count_or_none(max_length, "max_length")
    unpadded = _encoder_of(tokenizer)[0](tokenizer, examples, max_length)
    _expect_short(unpadded, max_length)
    return unpadded


def warn_of_doubled(examples: Sequence[Encoded], tokenizer: Any) -> None:
    """Warn where the tokenizer adds a special token to a text that has it already, as one made with a chat template has."""
    special = special_ids(tokenizer)
    doubled: dict[str, str] = {}
    for example in examples:
        if not example.tokens or not example.texts:
            continue
        for side, step, text in (("begins", 1, example.texts[0]), ("ends", -1, example.texts[-1])):
            token = example.tokens[::step][0]
            is_special = token in BERT_SPECIAL if special is None else example.ids[::step][0] in special
            in_text = _count_at_end(text, token, step) if is_special else 0
            if in_text and all(other == token for other in example.tokens[::step][: in_text + 1]):
                doubled.setdefault(token, side)
    for token, side in doubled.items():
        warnings.warn(
            f"the tokenizer adds {token!r} to a text that {side} with it already, so that it stands there twice: remove it "
            "from the texts, or pass ids in their place, which the tokenizer makes with add_special_tokens=False",
            EmbgradWarning,
            stacklevel=level_of_user() + 1,
        )


def _count_at_end(text: str, token: str, step: int) -> int:
    """Return how many times a text begins with a token, or ends with it where `step` is -1."""
    count = 0
    while True:
        text = text.lstrip() if step == 1 else text.rstrip()
        rest = text.removeprefix(token) if step == 1 else text.removesuffix(token)
        if rest == text:
            return count
        text, count = rest, count + 1


def _expect_short(encoded: Sequence[Encoded], max_length: int | None) -> None:
    """Raise an error if an example is longer than `max_length`: a tokenizer without room for its special tokens cuts nothing."""
    if max_length is None:
        return
    for index, example in enumerate(encoded):
        if len(example.ids) > max_length:
            raise BatchError(
                f"max_length is {max_length}, and the tokenizer made {len(example.ids)} tokens of example {index}: expected "
                "room for its special tokens at least; raise max_length"
            )


def _examples(texts: Any) -> list[tuple[str, ...]]:
    """Return each example as a tuple of one text or two."""
    if isinstance(texts, str):
        return [(texts,)]
    if isinstance(texts, tuple):
        raise BatchError(
            f"texts is a tuple of {len(texts)}, which may mean one pair or several texts: expected a list; write [(premise, "
            "hypothesis)] for a pair"
        )
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    if not isinstance(texts, list) or not texts:
        raise BatchError(f"texts is {brief(texts)}: expected a text, or a list of at least one text or pair of texts")
    return [as_example(text, number) for number, text in enumerate(texts)]


def as_example(text: Any, number: int) -> tuple[str, ...]:
    """Return a text or a pair of texts as a tuple.

    Args:
        number: the example's index in the batch, for the message.
    """
    if isinstance(text, str):
        return (text,)
    if isinstance(text, (tuple, list)) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return tuple(text)
    raise BatchError(f"example {number} is {brief(text)}: expected a text or a pair of texts")


Encoder = Callable[[Any, "list[tuple[str, ...]]", "int | None"], "list[Encoded]"]


def _encoder_of(tokenizer: Any) -> tuple[Encoder, Padding]:
    """Return the encoding function and padding for a tokenizer, by its type's name and methods, without importing its library."""
    _expect_instance(tokenizer)
    if is_of_huggingface(tokenizer):
        return with_huggingface, padding_of_huggingface(tokenizer)
    if hasattr(tokenizer, "encode_batch") and hasattr(tokenizer, "to_str"):
        return with_tokenizers, padding_of_tokenizers(tokenizer)
    if hasattr(tokenizer, "tokenize") and hasattr(tokenizer, "convert_tokens_to_ids"):
        pad = int(_ids_of(tokenizer.convert_tokens_to_ids([BERT_SPECIAL[2]]), 0)[0])
        return _with_pieces, Padding(id=pad)
    if is_of_keras_hub(tokenizer):
        return with_keras_hub, padding_of_keras_hub(tokenizer)
    if callable(tokenizer):
        return _with_callable, Padding()
    if is_vocabulary(tokenizer):
        raise BatchError(
            f"the tokenizer is a vocabulary, a {type(tokenizer).__name__}, which names ids and does not split texts: pass ids as "
            "the batch, or a tokenizer"
        )
    instead = (
        "; in place of a name, what AutoTokenizer.from_pretrained(...) gives" if isinstance(tokenizer, str) else ""
    )
    raise BatchError(
        f"the tokenizer is of type {type(tokenizer).__name__}: expected a Hugging Face tokenizer, a tokenizers.Tokenizer, an "
        f"object with tokenize and convert_tokens_to_ids, or a callable that returns ids{instead}"
    )


def is_of_huggingface(tokenizer: Any) -> bool:
    """Return whether a tokenizer is one of Hugging Face's transformers, by its type's name."""
    return any(base.__name__ == "PreTrainedTokenizerBase" for base in type(tokenizer).__mro__)


def is_tokenizer(tokenizer: Any) -> bool:
    """Return whether `encode` takes a tokenizer."""
    try:
        _encoder_of(tokenizer)
    except BatchError:
        return False
    return True


def _expect_instance(tokenizer: Any) -> None:
    if isinstance(tokenizer, type):
        raise BatchError(f"the tokenizer is the class {tokenizer.__name__}: expected an instance")


def _with_pieces(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    return [_encode_pieces(tokenizer, example, max_length, number) for number, example in enumerate(examples)]


def _encode_pieces(tokenizer: Any, example: tuple[str, ...], max_length: int | None, number: int) -> Encoded:
    """Encode as [CLS] text [SEP], or [CLS] text [SEP] text [SEP]; where too long, drop pieces from the end of the longer text."""
    start, end, _ = BERT_SPECIAL
    pieces = [[str(piece) for piece in tokenizer.tokenize(text)] for text in example]
    room = None if max_length is None else max_length - 1 - len(pieces)
    if room is not None and room < 0:
        raise BatchError(f"max_length is {max_length}: expected room for {1 + len(pieces)} special tokens at least")
    cut = 0
    while room is not None and sum(map(len, pieces)) > room:
        max(pieces, key=len).pop()
        cut += 1
    tokens, types = [start], [0]
    for part, text_pieces in enumerate(pieces):
        tokens += [*text_pieces, end]
        types += [part] * (len(text_pieces) + 1)
    return Encoded(_ids_of(tokenizer.convert_tokens_to_ids(tokens), number), types, tokens, None, cut, texts=example)


def _with_callable(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    if max_length is not None:
        raise BatchError(
            "max_length is not supported for a callable: expected a tokenizer object; cut the ids in the callable itself"
        )
    outputs = (
        preprocess(tokenizer, examples) if is_preprocessor(tokenizer) else (tokenizer(*example) for example in examples)
    )
    return [_from_output(output, number, examples[number]) for number, output in enumerate(outputs)]


def _from_output(output: Any, number: int, example: tuple[str, ...]) -> Encoded:
    if not isinstance(output, Mapping):
        return Encoded(_ids_of(output, number), texts=example)
    convention = next((name for name, keys in CONVENTIONS.items() if keys[0] in output), None)
    if convention is None:
        known = [keys[0] for keys in CONVENTIONS.values()]
        raise BatchError(
            f"the tokenizer returned a dict with the keys {quote(output)}: expected the ids under one of {quote(known)}"
        )
    keys = CONVENTIONS[convention]
    ids = _ids_of(output[keys[0]], number)
    types = _expect_length(_ids_of(output[keys[2]], number), ids, keys[2], number) if keys[2] in output else None
    mask = (
        _expect_length(_ids_of(output[keys[1]], number), ids, keys[1], number) if keys[1] in output else [1] * len(ids)
    )
    real = np.flatnonzero(mask).tolist()
    return Encoded(
        [ids[position] for position in real],
        None if types is None else [types[position] for position in real],
        convention=convention,
        texts=example,
    )


def _expect_length(numbers: list[int], ids: list[int], key: str, number: int) -> list[int]:
    if len(numbers) != len(ids):
        raise BatchError(
            f"the tokenizer returned {len(ids)} ids and {len(numbers)} numbers under {key!r} for example {number}: expected "
            "equally many"
        )
    return numbers


def _ids_of(output: Any, number: int) -> list[int]:
    """Return the ids of one example from a tokenizer's return value, which may be a batch of one."""
    try:
        array = to_numpy(output)
    except ValueError:
        array = np.empty(0, object)
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    whole = whole_numbers(array) if array.size else None
    if whole is None or whole.ndim != 1:
        raise BatchError(
            f"the tokenizer returned {brief(output)} for example {number}: expected a list of at least one whole number"
        )
    return [int(number) for number in whole]
