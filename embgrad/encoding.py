"""Text to a TokenBatch, with any tokenizer: special tokens in, padding to the longest, truncation reported."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.arrays import to_numpy, whole_numbers
from embgrad.batch import CONVENTIONS, TokenBatch
from embgrad.errors import BatchError, brief, did_you_mean, listed
from embgrad.preprocessing import is_preprocessor, preprocessed
from embgrad.validation import count_or_none

__all__ = [
    "Encoded",
    "Padding",
    "as_example",
    "encode",
    "encoded",
    "expect_id",
    "expect_tokens",
    "padded",
    "padding_of",
]

#: BERT's special tokens, for tokenizers that only split text and number the pieces.
BERT_SPECIAL: Final = ("[CLS]", "[SEP]", "[PAD]")


@dataclass(frozen=True)
class Encoded:
    """One example before padding: a list of the same length in each field.

    Attributes:
        ids: the token ids.
        types: segment numbers; None where the tokenizer does not say, since zeros are not the same to every model (GPT-2
            adds the embedding of token 0).
        tokens: the tokens' texts; None where the tokenizer does not say.
        words: the number of each token's word, -1 for none; None where the tokenizer does not say.
        truncated: how many tokens were cut off.
        convention: the convention in which the tokenizer answered; None where it was none.
    """

    ids: Sequence[int]
    types: Sequence[int] | None = None
    tokens: Sequence[str] | None = None
    words: Sequence[int] | None = None
    truncated: int = 0
    convention: str | None = None


@dataclass(frozen=True)
class Padding:
    """What fills up the shorter examples."""

    id: int = 0
    type: int = 0
    token: str = "[PAD]"
    side: str = "right"


def encode(
    texts: Any,
    tokenizer: Any,
    *,
    max_length: int | None = None,
    padding_side: str | None = None,
    pad_id: int | None = None,
) -> TokenBatch:
    """A batch from texts: special tokens as the tokenizer sets them, padded to the longest, types 0 and 1 for pairs.

    What the tokenizer does not tell is None in the batch, types above all: to GPT-2 zeros are not the same as none.

    Args:
        texts: a text, or a list of texts and of pairs of texts, (premise, hypothesis).
        tokenizer: a Hugging Face tokenizer, a `tokenizers.Tokenizer`, an object with `tokenize` and
            `convert_tokens_to_ids` (which gets BERT's special tokens put around its pieces), or a callable that takes a
            text, or two for a pair, and returns its ids, or a dict of them in a known convention, in which the batch then is;
            or a TF Hub preprocessing model, by `hub.load` or as a `hub.KerasLayer`.
        max_length: the most tokens of an example, special tokens included; what is cut off is counted in the batch's
            `truncated`. None cuts off nothing. A plain callable cuts for itself.
        padding_side: "right" or "left"; None for the tokenizer's own side, or else right.
        pad_id: the id that pads; None for the tokenizer's own, or else 0.

    Raises:
        BatchError: the texts or the tokenizer are not of these kinds, or the tokenizer returned no ids.
    """
    examples = _examples(texts)
    if padding_side is not None and (not isinstance(padding_side, str) or padding_side not in ("right", "left")):
        raise BatchError(
            f"padding_side is {padding_side!r}: expected 'right' or 'left'."
            f"{did_you_mean(str(padding_side), ('right', 'left'))}"
        )
    expect_id(pad_id)
    padding = padding_of(tokenizer)
    found = encoded(examples, tokenizer, max_length)
    padding = Padding(
        padding.id if pad_id is None else pad_id, padding.type, padding.token, padding_side or padding.side
    )
    return padded(found, padding)


def expect_id(pad_id: Any) -> None:
    """Refuse what pads with no id, whether there is anything to pad or not.

    Raises:
        BatchError: it is neither a whole number of at least 0 nor None.
    """
    whole = isinstance(pad_id, (int, np.integer)) and not isinstance(pad_id, bool)
    if pad_id is not None and not (whole and 0 <= pad_id < 2**63):
        raise BatchError(f"pad_id is {brief(pad_id)}: expected the id that pads, a whole number of at least 0, or None")


def padding_of(tokenizer: Any) -> Padding:
    """The tokenizer's own padding.

    Raises:
        BatchError: it is no tokenizer of a known kind.
    """
    return _encoder_of(tokenizer)[1]


def encoded(examples: list[tuple[str, ...]], tokenizer: Any, max_length: int | None = None) -> list[Encoded]:
    """Each example before padding, see `encode`; `padded` makes a batch of any of those that were encoded together.

    Raises:
        BatchError: as `encode`.
    """
    max_length = count_or_none(max_length, "max_length")
    found = _encoder_of(tokenizer)[0](tokenizer, examples, max_length)
    _expect_short(found, max_length)
    return found


def _expect_short(encoded: Sequence[Encoded], max_length: int | None) -> None:
    """Refuse what a tokenizer has left too long: one that has no room for its special tokens cuts nothing at all."""
    if max_length is None:
        return
    for number, one in enumerate(encoded):
        if len(one.ids) > max_length:
            raise BatchError(
                f"max_length is {max_length}, and the tokenizer made {len(one.ids)} tokens of example {number}: expected "
                "room for its special tokens at least; raise max_length"
            )


def _examples(texts: Any) -> list[tuple[str, ...]]:
    """Each example as a tuple of one text or two."""
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
    """A text or a pair of texts, which is the batch's example of that number, as a tuple.

    Raises:
        BatchError: it is neither.
    """
    if isinstance(text, str):
        return (text,)
    if isinstance(text, (tuple, list)) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return tuple(text)
    raise BatchError(f"example {number} is {brief(text)}: expected a text or a pair of texts")


Encoder = Callable[[Any, "list[tuple[str, ...]]", "int | None"], "list[Encoded]"]


def _encoder_of(tokenizer: Any) -> tuple[Encoder, Padding]:
    """Which way the tokenizer is used, told by its type's names and its methods, without importing its library."""
    if isinstance(tokenizer, type):
        raise BatchError(f"the tokenizer is the class {tokenizer.__name__}: expected an instance")
    ancestors = {base.__name__ for base in type(tokenizer).__mro__}
    if "PreTrainedTokenizerBase" in ancestors:
        return _with_huggingface, _padding_of_huggingface(tokenizer)
    if hasattr(tokenizer, "encode_batch") and hasattr(tokenizer, "to_str"):
        return _with_tokenizers, _padding_of_tokenizers(tokenizer)
    if hasattr(tokenizer, "tokenize") and hasattr(tokenizer, "convert_tokens_to_ids"):
        pad = int(_ids_of(tokenizer.convert_tokens_to_ids([BERT_SPECIAL[2]]), 0)[0])
        return _with_pieces, Padding(id=pad)
    if callable(tokenizer):
        return _with_callable, Padding()
    raise BatchError(
        f"the tokenizer is of type {type(tokenizer).__name__}: expected a Hugging Face tokenizer, a tokenizers.Tokenizer, an "
        "object with tokenize and convert_tokens_to_ids, or a callable that returns ids"
    )


def _padding_of_huggingface(tokenizer: Any) -> Padding:
    """The tokenizer's own padding; GPT-2's has none, and under the mask any id serves."""
    return Padding(
        id=0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id),
        type=int(tokenizer.pad_token_type_id),
        token=str(tokenizer.pad_token or "[PAD]"),
        side=str(tokenizer.padding_side),
    )


def _padding_of_tokenizers(tokenizer: Any) -> Padding:
    own = tokenizer.padding
    if own:
        return Padding(int(own["pad_id"]), int(own["pad_type_id"]), str(own["pad_token"]), str(own["direction"]))
    for token in (BERT_SPECIAL[2], "<pad>"):
        found = tokenizer.token_to_id(token)
        if found is not None:
            return Padding(id=int(found), token=token)
    return Padding()


#: Held while a Hugging Face tokenizer is used, which is set up anew at each call, and may be that of several streams.
_setting: Final = threading.RLock()


def _with_huggingface(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    with _setting, _settings_kept(getattr(tokenizer, "backend_tokenizer", None)), _failures_told():
        return [_one_with_huggingface(tokenizer, example, max_length) for example in examples]


@contextlib.contextmanager
def _settings_kept(tokenizer: Any) -> Iterator[None]:
    """Give a `tokenizers.Tokenizer` its truncation and padding back, which a Hugging Face tokenizer sets at each call."""
    if tokenizer is None:
        yield
        return
    truncation, padding = tokenizer.truncation, tokenizer.padding
    try:
        yield
    finally:
        tokenizer.no_truncation() if truncation is None else tokenizer.enable_truncation(**truncation)
        tokenizer.no_padding() if padding is None else tokenizer.enable_padding(**padding)


@contextlib.contextmanager
def _failures_told() -> Iterator[None]:
    """As an error of ours what the library `tokenizers` raises where its file is broken: a bare Exception, or none at all."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__module__ != "pyo3_runtime":  # which is Rust's panic
            raise
        raise BatchError(
            f"the tokenizer cannot encode the texts: {error}; expected a tokenizer whose vocabulary holds its special tokens; "
            "fetch its tokenizer.json again"
        ) from error


def _one_with_huggingface(tokenizer: Any, example: tuple[str, ...], max_length: int | None) -> Encoded:
    whole = tokenizer(*example, padding=False, truncation=False, verbose=False)
    cut = whole
    if max_length is not None and len(whole["input_ids"]) > max_length:
        cut = tokenizer(*example, padding=False, truncation=True, max_length=max_length)
    ids = list(cut["input_ids"])
    types = cut.get("token_type_ids")
    words = None
    if getattr(tokenizer, "is_fast", False):
        words = _words(cut.word_ids(0), cut.sequence_ids(0))
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return Encoded(ids, types, [str(token) for token in tokens], words, len(whole["input_ids"]) - len(ids))


def _with_tokenizers(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    """With a copy, since padding and truncation are settings of the tokenizer, and it is the user's."""
    own = type(tokenizer).from_str(tokenizer.to_str())
    own.no_padding()
    if max_length is not None:
        own.enable_truncation(max_length)
    unlimited = type(tokenizer).from_str(tokenizer.to_str())
    unlimited.no_padding()
    unlimited.no_truncation()
    inputs: list[Any] = [example if len(example) == 2 else example[0] for example in examples]
    with _failures_told():
        whole, encoded = unlimited.encode_batch(inputs), own.encode_batch(inputs)
    return [
        Encoded(one.ids, types, one.tokens, _words(one.word_ids, one.sequence_ids), len(full.ids) - len(one.ids))
        for one, full, types in zip(encoded, whole, _types_that_tell(encoded), strict=True)
    ]


def _types_that_tell(encoded: Sequence[Any]) -> list[Sequence[int] | None]:
    """The types of each encoding, or None where all are zero: these tokenizers give zeros whether the model has types or not."""
    tell = any(any(one.type_ids) for one in encoded)
    return [one.type_ids if tell else None for one in encoded]


def _with_pieces(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    return [_one_with_pieces(tokenizer, example, max_length) for example in examples]


def _one_with_pieces(tokenizer: Any, example: tuple[str, ...], max_length: int | None) -> Encoded:
    """[CLS] text [SEP], or [CLS] text [SEP] text [SEP]; what is too long is cut off the longer text, piece by piece."""
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
    for number, part in enumerate(pieces):
        tokens += [*part, end]
        types += [number] * (len(part) + 1)
    return Encoded(_ids_of(tokenizer.convert_tokens_to_ids(tokens), 0), types, tokens, None, cut)


def _with_callable(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    if max_length is not None:
        raise BatchError(
            "max_length cannot be kept with a callable: expected a tokenizer object; cut the ids in the callable itself"
        )
    answers = preprocessed(tokenizer, examples) if is_preprocessor(tokenizer) else (tokenizer(*one) for one in examples)
    return [_of_answer(given, number) for number, given in enumerate(answers)]


def _of_answer(given: Any, number: int) -> Encoded:
    if not isinstance(given, Mapping):
        return Encoded(_ids_of(given, number))
    convention = next((name for name, keys in CONVENTIONS.items() if keys[0] in given), None)
    if convention is None:
        known = [keys[0] for keys in CONVENTIONS.values()]
        raise BatchError(
            f"the tokenizer returned a dict with the keys {listed(given)}: expected the ids under one of {listed(known)}"
        )
    keys = CONVENTIONS[convention]
    ids = _ids_of(given[keys[0]], number)
    types = _as_long(_ids_of(given[keys[2]], number), ids, keys[2], number) if keys[2] in given else None
    mask = _as_long(_ids_of(given[keys[1]], number), ids, keys[1], number) if keys[1] in given else [1] * len(ids)
    real = np.flatnonzero(mask).tolist()
    return Encoded(
        [ids[position] for position in real],
        None if types is None else [types[position] for position in real],
        convention=convention,
    )


def _as_long(given: list[int], ids: list[int], key: str, number: int) -> list[int]:
    if len(given) != len(ids):
        raise BatchError(
            f"the tokenizer returned {len(ids)} ids and {len(given)} numbers under {key!r} for example {number}: expected as "
            "many"
        )
    return given


def _ids_of(given: Any, number: int) -> list[int]:
    """Ids of one example from whatever a tokenizer returns, a batch of one included."""
    try:
        array = to_numpy(given)
    except ValueError:
        array = np.empty(0, object)
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    whole = whole_numbers(array) if array.size else None
    if whole is None or whole.ndim != 1:
        raise BatchError(
            f"the tokenizer returned {brief(given)} for example {number}: expected a list of at least one whole number"
        )
    return [int(one) for one in whole]


def _words(words: Sequence[int | None], sequences: Sequence[int | None]) -> list[int]:
    """Word numbers that go on from the first text of a pair to the second; -1 for special tokens."""
    first = max(
        (word for word, text in zip(words, sequences, strict=True) if text == 0 and word is not None), default=-1
    )
    return [
        -1 if word is None or text is None else word + (first + 1 if text else 0)
        for word, text in zip(words, sequences, strict=True)
    ]


def expect_tokens(there: bool) -> None:
    """Refuse what has no token.

    Raises:
        BatchError: there is none.
    """
    if not there:
        raise BatchError(
            "the tokenizer made no token of any text: expected one at least, a special token if nothing else"
        )


def padded(encoded: Sequence[Encoded], padding: Padding, least: int = 0) -> TokenBatch:
    """The examples as a batch, as long as the longest, or as `least`.

    Raises:
        BatchError: there is no token at all.
    """
    longest = max(least, *(len(one.ids) for one in encoded))
    expect_tokens(longest > 0)

    def filled(rows: Sequence[Sequence[Any]], filler: Any) -> list[list[Any]]:
        gaps = [[filler] * (longest - len(row)) for row in rows]
        if padding.side == "left":
            return [[*gap, *row] for row, gap in zip(rows, gaps, strict=True)]
        return [[*row, *gap] for row, gap in zip(rows, gaps, strict=True)]

    types = [one.types for one in encoded if one.types is not None]
    tokens = [one.tokens for one in encoded if one.tokens is not None]
    words = [one.words for one in encoded if one.words is not None]
    return TokenBatch(
        filled([one.ids for one in encoded], padding.id),
        filled([[1] * len(one.ids) for one in encoded], 0),
        filled(types, padding.type) if len(types) == len(encoded) else None,
        tokens=filled(tokens, padding.token) if len(tokens) == len(encoded) else None,
        words=filled(words, -1) if len(words) == len(encoded) else None,
        truncated=[one.truncated for one in encoded],
        convention=next((one.convention for one in encoded if one.convention is not None), "huggingface"),
    )
