"""encode: texts to a TokenBatch with each kind of tokenizer."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import embgrad
from embgrad.inputs.fast_tokenizers import words_of
from embgrad.inputs.tfhub import is_preprocessor
from tests.support.wordpiece import SENTENCES, train_wordpiece
from tests.unit.refusals import refused


@pytest.fixture
def tokenizer() -> Tokenizer:
    """Return a tokenizer as BERT's: WordPiece with [CLS] and [SEP], trained on three sentences."""
    return train_wordpiece(70)


@pytest.fixture
def byte_level() -> Tokenizer:
    """Return a tokenizer as GPT-2's: byte-pair encoding without special tokens."""
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=60, show_progress=False))
    return built


class Pieces:
    """A BERT tokenizer that can only split and number the pieces."""

    vocabulary = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film", "##s", "plot")

    def tokenize(self, text: str) -> list[str]:
        return text.replace("films", "film ##s").split()

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [self.vocabulary.index(token) if token in self.vocabulary else 1 for token in tokens]


def letters(text: str) -> list[int]:
    return [ord(letter) - 96 for letter in text]


def test_special_tokens_padding_types_and_words(tokenizer: Tokenizer) -> None:
    batch = embgrad.encode(["a gripping film", ("the plot", "is thin")], tokenizer)
    assert batch.tokens == (
        ("[CLS]", "a", "gripping", "film", "[SEP]", "[PAD]", "[PAD]"),
        ("[CLS]", "the", "plot", "[SEP]", "is", "thin", "[SEP]"),
    )
    assert batch.mask.tolist() == [[1, 1, 1, 1, 1, 0, 0], [1] * 7]
    assert batch.types.tolist() == [[0] * 7, [0, 0, 0, 0, 1, 1, 1]]
    assert batch.words.tolist() == [[-1, 0, 1, 2, -1, -1, -1], [-1, 0, 1, -1, 2, 3, -1]]
    assert batch.ids[0].tolist() == [*tokenizer.encode("a gripping film").ids, 0, 0]
    assert batch.truncated.tolist() == [0, 0]
    assert batch.convention == "huggingface"


def test_pieces_of_a_word_have_its_number(tokenizer: Tokenizer) -> None:
    batch = embgrad.encode("filming a plot", tokenizer)
    pieces = [token for token, word in zip(batch.tokens[0], batch.words[0], strict=True) if word == 0]
    assert len(pieces) > 1
    assert "".join(piece.removeprefix("##") for piece in pieces) == "filming"


def test_one_text_is_a_batch_of_one(tokenizer: Tokenizer) -> None:
    assert embgrad.encode("a film", tokenizer) == embgrad.encode(["a film"], tokenizer)
    assert embgrad.encode(np.array(["a film", "the plot"]), tokenizer) == embgrad.encode(
        ["a film", "the plot"], tokenizer
    )
    assert embgrad.encode([["the plot", "is thin"]], tokenizer) == embgrad.encode([("the plot", "is thin")], tokenizer)


def test_an_example_does_not_depend_on_the_others(tokenizer: Tokenizer) -> None:
    alone = embgrad.encode("a film", tokenizer)
    beside = embgrad.encode(["the plot is thin but gripping", "a film"], tokenizer)
    width = alone.shape[1]
    np.testing.assert_array_equal(beside.ids[1, :width], alone.ids[0])
    np.testing.assert_array_equal(beside.real[1], np.arange(beside.shape[1]) < width)


def test_types_of_zeros_are_omitted(tokenizer: Tokenizer, byte_level: Tokenizer) -> None:
    """These tokenizers return zeros for any model, and to GPT-2 zeros differ from no types."""
    assert embgrad.encode(["a film", "the plot"], tokenizer).types is None
    assert embgrad.encode(["a film", "the plot"], byte_level).types is None


def test_left_padding(tokenizer: Tokenizer) -> None:
    right = embgrad.encode(["a film", ("the plot", "is thin")], tokenizer)
    left = embgrad.encode(["a film", ("the plot", "is thin")], tokenizer, padding_side="left")
    gap = 3
    for name in ("ids", "mask", "types", "words"):
        np.testing.assert_array_equal(getattr(left, name)[0], np.roll(getattr(right, name)[0], gap))
        np.testing.assert_array_equal(getattr(left, name)[1], getattr(right, name)[1])
    assert left.tokens[0] == ("[PAD]", "[PAD]", "[PAD]", "[CLS]", "a", "film", "[SEP]")


def test_the_tokenizers_own_padding_is_followed(tokenizer: Tokenizer) -> None:
    tokenizer.enable_padding(direction="left", pad_id=1, pad_type_id=1, pad_token="[UNK]", length=20)
    batch = embgrad.encode(["a film", ("the plot", "is thin")], tokenizer)
    assert batch.shape == (2, 7)  # to the longest, not to the tokenizer's fixed length
    assert batch.ids[0, :3].tolist() == [1, 1, 1]
    assert batch.types[0, :3].tolist() == [1, 1, 1]
    assert batch.tokens[0][:3] == ("[UNK]",) * 3
    assert embgrad.encode(["a film", "the"], tokenizer, padding_side="right", pad_id=0).ids[1, -1] == 0


@pytest.mark.parametrize(("token", "expected"), [("[PAD]", 2), ("<pad>", 2), ("other", 0)])
def test_the_pad_id_is_found_by_the_usual_names(token: str, expected: int) -> None:
    built = Tokenizer(models.WordLevel({"a": 0, "b": 1, token: 2}, unk_token="a"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    assert embgrad.encode(["a b", "a"], built).ids[1].tolist() == [0, expected]


def test_truncation_is_reported(tokenizer: Tokenizer) -> None:
    texts = ["a gripping film", "a", ("the plot", "is thin")]
    batch = embgrad.encode(texts, tokenizer, max_length=4)
    assert batch.tokens[:2] == (("[CLS]", "a", "gripping", "[SEP]"), ("[CLS]", "a", "[SEP]", "[PAD]"))
    assert len(batch.tokens[2]) == 4  # which of the pair it cuts is the tokenizer's affair
    assert batch.truncated.tolist() == [1, 0, 3]
    assert embgrad.encode(texts, tokenizer, max_length=np.int64(4)) == batch  # NumPy's numbers are numbers
    assert embgrad.encode(texts, tokenizer).truncated.tolist() == [0, 0, 0]
    assert "4 tokens cut off 2 examples" in repr(batch)


def test_the_tokenizers_own_truncation_is_reported(tokenizer: Tokenizer) -> None:
    tokenizer.enable_truncation(3)
    batch = embgrad.encode(["a gripping film", "a"], tokenizer)
    assert batch.shape == (2, 3)
    assert batch.truncated.tolist() == [2, 0]
    assert embgrad.encode(["a gripping film"], tokenizer, max_length=4).truncated.tolist() == [1]


@pytest.mark.parametrize("max_length", [None, 4])
def test_the_users_tokenizer_is_as_it_was(tokenizer: Tokenizer, max_length: int | None) -> None:
    tokenizer.enable_truncation(6, stride=1, strategy="only_first")
    tokenizer.enable_padding(length=9, pad_id=1)
    before = tokenizer.to_str()
    embgrad.encode(["a gripping film", "a"], tokenizer, max_length=max_length)
    assert tokenizer.to_str() == before


@pytest.mark.parametrize("texts", [["a film"], [("the plot", "is thin")]])
def test_no_room_for_the_special_tokens_is_an_error(tokenizer: Tokenizer, texts: Any) -> None:
    with pytest.raises(
        embgrad.errors.BatchError, match=r"max_length is 1, .* of example 0: expected room for its special"
    ):
        embgrad.encode(texts, tokenizer, max_length=1)


def test_texts_of_any_letters(tokenizer: Tokenizer, byte_level: Tokenizer) -> None:
    texts = ["", "naïve 電影 🎬", "a\u0301\x00b", " \t\n"]
    assert embgrad.encode(texts, tokenizer).ids[0, :2].tolist() == [2, 3]
    assert embgrad.encode(["", "a film"], byte_level).real[0].any() == np.False_
    with pytest.raises(embgrad.errors.BatchError, match="returned no tokens for any text"):
        embgrad.encode([""], byte_level)


def test_pieces_get_berts_special_tokens() -> None:
    batch = embgrad.encode(["a plot", ("films", "a")], Pieces())
    assert batch.tokens == (
        ("[CLS]", "a", "plot", "[SEP]", "[PAD]", "[PAD]"),
        ("[CLS]", "film", "##s", "[SEP]", "a", "[SEP]"),
    )
    assert batch.ids.tolist() == [[2, 4, 7, 3, 0, 0], [2, 5, 6, 3, 4, 3]]
    assert batch.types.tolist() == [[0] * 6, [0, 0, 0, 0, 1, 1]]
    assert batch.words is None


def test_pieces_are_cut_off_the_longer_text() -> None:
    batch = embgrad.encode([("films a plot", "a plot"), "a"], Pieces(), max_length=6)
    assert batch.tokens[0] == ("[CLS]", "film", "[SEP]", "a", "plot", "[SEP]")
    assert batch.truncated.tolist() == [3, 0]
    with pytest.raises(embgrad.errors.BatchError, match="max_length is 2: expected room for 3 special tokens"):
        embgrad.encode([("a", "a")], Pieces(), max_length=2)
    assert embgrad.encode([("a", "a")], Pieces(), max_length=3).tokens == (("[CLS]", "[SEP]", "[SEP]"),)


@pytest.mark.parametrize("wrap", [list, np.array, lambda ids: np.array([ids]), lambda ids: np.array(ids, np.float32)])
def test_a_callable_that_returns_ids(wrap: Any) -> None:
    batch = embgrad.encode(["ab", "abc"], lambda text: wrap(letters(text)))
    assert batch.ids.tolist() == [[1, 2, 0], [1, 2, 3]]
    assert batch.mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch.types is batch.tokens is batch.words is None


def test_a_callable_that_can_split_and_not_number_returns_ids_itself() -> None:
    class Splitting(list[str]):
        tokenize = staticmethod(list)

        def __call__(self, text: str) -> list[int]:
            return letters(text)

    assert embgrad.encode(["ab"], Splitting()).ids.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "keys",
    [
        ("input_ids", "attention_mask", "token_type_ids"),
        ("input_word_ids", "input_mask", "input_type_ids"),
        ("token_ids", "padding_mask", "segment_ids"),
    ],
)
def test_a_callable_that_returns_a_padded_dict(keys: tuple[str, str, str]) -> None:
    def preprocess(*texts: str) -> dict[str, Any]:
        ids = [number for text in texts for number in letters(text)]
        types = [number for number, text in enumerate(texts) for _ in text]
        pad = [0] * (9 - len(ids))
        values = (ids + pad, [1] * len(ids) + pad, types + pad)
        return {key: np.array([value]) for key, value in zip(keys, values, strict=True)}

    batch = embgrad.encode(["ab", ("ab", "c")], preprocess, pad_id=9)
    assert batch.ids.tolist() == [[1, 2, 9], [1, 2, 3]]
    assert batch.types.tolist() == [[0, 0, 0], [0, 0, 1]]
    assert embgrad.encode(["ab"], lambda text: {keys[0]: letters(text)}).types is None


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ({"tokenizer": lambda text: ["a", "b"]}, ["returned ['a', 'b'] for example 0", "at least one whole number"]),
        *(
            ({"tokenizer": lambda text, value=value: value}, [f"returned {value} for example 0"])
            for value in ([], None, [[1], [2, 3]], [[1, 2], [3, 4]], [1.5])
        ),
        ({"tokenizer": lambda text: {"ids": [1]}}, ["a dict with the keys 'ids'", "the ids under one of 'input_ids'"]),
        (
            {"tokenizer": lambda _: {"input_ids": [1, 2], "attention_mask": [1]}},
            ["2 ids and 1 numbers under 'attention_"],
        ),
        (
            {"tokenizer": lambda _: {"input_ids": [1, 2], "token_type_ids": [1, 0, 0]}},
            ["2 ids and 3 numbers under 'token"],
        ),
        ({"texts": []}, ["texts is []", "a list of at least one text"]),
        ({"texts": None}, ["texts is None"]),
        ({"texts": 3}, ["texts is 3"]),
        ({"texts": b"text"}, ["texts is b'text'", "expected a text"]),
        ({"texts": ("premise", "hypothesis")}, ["a tuple of 2", "[(premise, hypothesis)]"]),
        ({"texts": ["a", 3]}, ["example 1 is 3", "expected a text or a pair of texts"]),
        ({"texts": ["a", None]}, ["example 1 is None"]),
        ({"texts": [("a", "b", "c")]}, ["example 0 is ('a', 'b', 'c')"]),
        ({"texts": [("a", None)]}, ["example 0 is ('a', None)"]),
        ({"texts": {"text": "a"}}, ["texts is {'text': 'a'}"]),
        (
            {"tokenizer": "bert"},
            ["is of type str", "a tokenizers.Tokenizer", "a callable that returns ids; in place of"],
        ),
        ({"tokenizer": None}, ["the tokenizer is of type NoneType"]),
        ({"tokenizer": Tokenizer}, ["the tokenizer is the class Tokenizer", "expected an instance"]),
        ({"tokenizer": Pieces}, ["the tokenizer is the class Pieces"]),
        *(
            ({"max_length": value}, [f"max_length is {value!r}", "a whole number of at least 1, or None"])
            for value in (0, 4.0, True, "4")
        ),
        ({"max_length": 4}, ["max_length is not supported for a callable", "cut the ids in the callable"]),
        ({"padding_side": "lefty"}, ["padding_side is 'lefty'", "Did you mean 'left'?"]),
        ({"padding_side": 1}, ["padding_side is 1", "expected 'right' or 'left'"]),
        *(({"pad_id": value}, [f"pad_id is {value!r}", "a whole number"]) for value in (-1, 1.5, "0", 2**63)),
        ({"padding_side": np.array(["left", "right"])}, ["padding_side is array", "expected 'right' or 'left'"]),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], fragments: list[str]) -> None:
    with refused(embgrad.errors.BatchError, *fragments):
        embgrad.encode(**{"texts": ["a", "ab"], "tokenizer": letters, **arguments})


class _Spaces:
    """A pre-tokenizer in Python, which the library cannot serialise."""

    def pre_tokenize(self, text: Any) -> None:
        text.split(lambda _, part: part.split(" ", "removed"))


@pytest.mark.parametrize("max_length", [None, 2])
def test_tokenizers_with_parts_in_python(max_length: int | None) -> None:
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "film": 2, "gripping": 3}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(_Spaces())
    made.enable_padding(length=9)
    made.enable_truncation(7, direction="left")
    before = made.truncation, made.padding
    batch = embgrad.encode(["a gripping film", "film"], made, max_length=max_length)
    assert batch.ids.tolist() == ([[1, 3, 2], [2, 0, 0]] if max_length is None else [[3, 2], [2, 0]])
    assert batch.truncated.tolist() == [0 if max_length is None else 1, 0]
    assert (made.truncation, made.padding) == before


@pytest.mark.parametrize("limited", [False, True])
def test_special_tokens_in_a_text_are_what_the_tokenizer_says(tokenizer: Tokenizer, limited: bool) -> None:
    if limited:
        tokenizer.enable_truncation(30)
    for spelled in (False, True):
        tokenizer.encode_special_tokens = spelled
        text = "a [SEP] film"
        assert embgrad.encode([text], tokenizer).ids.tolist() == [tokenizer.encode(text).ids]
    assert tokenizer.encode_special_tokens


def test_a_random_tokenizer_reports_no_false_truncation() -> None:
    merges = [("a", "b"), ("c", "d"), ("ab", "cd")]
    vocabulary = {token: number for number, token in enumerate(["a", "b", "c", "d", "ab", "cd", "abcd"])}
    drawing = Tokenizer(models.BPE(vocabulary, merges, dropout=0.5))
    for max_length in (None, 4):
        for _ in range(20):
            assert not embgrad.encode(["abcd"] * 8, drawing, max_length=max_length).truncated.any()
    cut = embgrad.encode(["abcdabcdabcd"] * 8, drawing, max_length=1)
    assert (cut.truncated >= 0).all()
    assert cut.ids.shape == (8, 1)


# Special tokens that a text has already


def doubled(token: str, side: str) -> str:
    return (
        f"the tokenizer adds '{token}' to a text that {side} with it already, so that it stands there twice: remove it from the "
        "texts, or pass ids in their place, which the tokenizer makes with add_special_tokens=False"
    )


def warnings_of(texts: Any, tokenizer: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        embgrad.encode(texts, tokenizer)
    assert all(item.filename == __file__ and item.category is embgrad.errors.EmbgradWarning for item in caught)
    return [str(item.message) for item in caught]


@pytest.mark.parametrize("kind", ["tokenizers", "pieces"])
def test_a_special_token_that_a_text_has_already_is_a_warning(tokenizer: Tokenizer, kind: str) -> None:
    used = tokenizer if kind == "tokenizers" else Pieces()
    start, end = doubled("[CLS]", "begins"), doubled("[SEP]", "ends")
    assert warnings_of(["a film", "[CLS] a film"], used) == [start]
    assert warnings_of("a film [SEP] ", used) == [end]
    assert warnings_of(["[CLS] a film [SEP]", "[CLS] a"], used) == [start, end]
    assert warnings_of([("[CLS] a", "film [SEP]")], used) == [start, end]
    assert warnings_of(["[CLS] [CLS] a film"], used) == [start]
    assert warnings_of(["a [CLS] film", "film [SEP] a", ("a [SEP]", "film")], used) == []


def test_tokens_that_no_tokenizer_adds_are_no_warning(tokenizer: Tokenizer, byte_level: Tokenizer) -> None:
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")
    assert warnings_of(["[CLS] [CLS] a film [SEP] [SEP]", "a a film film", ""], plain) == []
    assert warnings_of(["a a film", ""], byte_level) == []
    assert warnings_of("aabb", letters) == []


def test_ids_and_continuations_are_no_warning(tokenizer: Tokenizer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embgrad.LogProbability.of("film [SEP]", tokenizer)
        embgrad.inputs.conventions.batch_of([[2, 2, 5, 3, 3]], tokenizer)


def test_words_of_the_second_text_are_counted_on_from_the_first() -> None:
    assert words_of([None, 0, 0, 1, None, 0, 1, None], [None, 0, 0, 0, None, 1, 1, None]) == [-1, 0, 0, 1, -1, 2, 3, -1]
    assert words_of([None, None, 0, None], [None, None, 1, None]) == [-1, -1, 0, -1]
    assert words_of([None, 0, 1, None], [None, 0, 0, None]) == [-1, 0, 1, -1]


def test_only_a_name_is_told_what_makes_a_tokenizer_of_it() -> None:
    with pytest.raises(embgrad.errors.BatchError, match=r"a callable that returns ids\n"):
        embgrad.encode(["a"], 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "takes_strings"),
    [("tensorflow_hub.keras_layer", True), ("keras.src.layers", True), ("tf_keras", True), ("kerasy", False),
        ("a", False)],
)  # fmt: skip
def test_models_of_tensorflow_and_keras_take_tensors_of_strings(module: str, takes_strings: bool) -> None:
    base = type("Layer", (), {"__module__": module})
    assert is_preprocessor(type("Own", (base,), {})()) is takes_strings
    assert is_preprocessor(base()) is takes_strings


def test_the_text_whose_pieces_have_no_numbers_is_named() -> None:
    class Broken(Pieces):
        def convert_tokens_to_ids(self, tokens: list[str]) -> Any:
            return "none" if "plot" in tokens else super().convert_tokens_to_ids(tokens)

    with pytest.raises(
        embgrad.errors.BatchError, match="the tokenizer returned 'none' for example 1: expected a list of at least one"
    ):
        embgrad.encode(["a film", "a plot"], Broken())
