"""Windows: batches sorted by length give the same numbers, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.errors import EmbgradWarning, ObjectiveError, UnsupportedError
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.streams import DIM, LABELLED, VOCAB, forward, model, rows, texts, tokenizer


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 40), st.booleans())
def test_a_window_returns_the_same_numbers(count: int, size: int, window: int, several: bool) -> None:
    at = ["word", "block"] if several else "word"
    options: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": size, "at": at}
    plain = list(embgrad.stream(model(), rows(count), LABELLED, **options))
    windowed = list(embgrad.stream(model(), rows(count), LABELLED, window=window, **options))
    for expected, actual in zip(plain, windowed, strict=True):
        for name in expected if several else ["word"]:
            first, second = (expected[name], actual[name]) if several else (expected, actual)
            np.testing.assert_array_equal(first.ids, second.ids)
            np.testing.assert_array_equal(first.mask, second.mask)
            real = first.real
            np.testing.assert_allclose(second.values[real], first.values[real], rtol=1e-5, atol=1e-7)
            np.testing.assert_array_equal(second.activations[real], first.activations[real])
            np.testing.assert_allclose(second.objective, first.objective, rtol=1e-6)
            assert second.provenance["objective"] == first.provenance["objective"]
            assert second.provenance["output_shape"] == first.provenance["output_shape"]
            assert embgrad.compare(first, second).agrees
            assert (second.values.flags.c_contiguous, second.values.flags.owndata) == (True, True)


def test_a_window_runs_less_padding() -> None:
    runs: list[tuple[int, ...]] = []

    def counting(self: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
        runs.append(input_ids.shape)
        return forward(self, input_ids, attention_mask)

    def positions(window: int | None) -> int:
        runs.clear()
        counted = ReferenceModel(counting, weights(model()))
        given = ["a" * length for length in [1, 20] * 8]
        for _ in embgrad.stream(counted, given, embgrad.Logit(0), tokenizer=tokenizer, batch_size=4, window=window):
            pass
        return sum(rows * columns for rows, columns in runs)

    assert positions(None) == 16 * 22
    spared = 22  # one example once more, with the padding that it is spared
    alike = (
        4 * 22 + 4 * 3
    )  # the first batch of each length with other ids: equal texts do not show the order of examples
    assert positions(16) == 8 * 22 + 8 * 3 + spared + alike


class Left:
    padding: ClassVar[dict[str, Any]] = {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]", "direction": "left"}

    @classmethod
    def from_str(cls, _: str) -> Left:
        return cls()

    def to_str(self) -> str:
        return "{}"

    def no_padding(self) -> None: ...

    def no_truncation(self) -> None: ...

    def encode_batch(self, given: list[str]) -> list[Any]:
        return [
            type("E", (), {"ids": ids, "tokens": list(map(str, ids)), "type_ids": [0] * len(ids)} | _words(ids))
            for ids in map(tokenizer, given)
        ]


def _words(ids: list[int]) -> dict[str, Any]:
    return {"word_ids": list(range(len(ids))), "sequence_ids": [0] * len(ids)}


def test_a_window_of_texts_padded_on_the_left() -> None:
    plain = list(embgrad.stream(model(), rows(9), LABELLED, tokenizer=Left(), batch_size=3))
    by_length = list(embgrad.stream(model(), rows(9), LABELLED, tokenizer=Left(), batch_size=3, window=9))
    assert plain[0].mask is not None
    assert plain[0].mask[:, -1].all()
    assert not plain[0].mask.all()
    for first, second in zip(plain, by_length, strict=True):
        np.testing.assert_array_equal(first.ids, second.ids)
        np.testing.assert_allclose(second.values[first.real], first.values[first.real], rtol=1e-5, atol=1e-7)
        assert (first.tokens, first.provenance["truncated"]) == (second.tokens, second.provenance["truncated"])


@pytest.mark.parametrize("position", [0, 6, [1] * 9])
@pytest.mark.parametrize("fixed", [False, True])
def test_a_column_of_a_batch_padded_on_the_left_is_refused(position: Any, fixed: bool) -> None:
    def of_batch(batch: Any) -> embgrad.Objective:
        return embgrad.Logit(0, position=position[: len(batch)] if isinstance(position, list) else position)

    objective = embgrad.Logit(0, position=position) if fixed else embgrad.PerBatch(of_batch)
    with pytest.raises(ObjectiveError, match=r"position=.* is a column of a batch, .* since this tokenizer pads on"):
        list(embgrad.stream(model(), texts(9), objective, tokenizer=Left(), batch_size=3, window=9))


def test_a_scalar_for_each_batch_is_refused() -> None:
    objective = embgrad.Labelled(lambda labels: embgrad.Scalar(lambda out: out.sum()))
    with pytest.raises(ObjectiveError, match="a Scalar objective reduces over a batch: omit window"):
        list(embgrad.stream(model(), rows(9), objective, tokenizer=tokenizer, batch_size=3, window=9))


def test_an_output_with_classes_for_each_position_has_its_own_shape() -> None:
    def classified(self: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        return lookup(self["E"], input_ids) @ self["U"]

    asked: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 3}
    classifier, source = ReferenceModel(classified, weights(model())), ["a", "bcd", "efghi"] * 3
    plain, windowed = (
        list(embgrad.stream(classifier, source, embgrad.Sum(), window=window, **asked)) for window in (None, 9)
    )
    width = classifier["U"].value.shape[1]
    for first, second in zip(plain, windowed, strict=True):
        assert second.provenance["output_shape"] == first.provenance["output_shape"] == [*second.ids.shape, width]


def test_an_output_with_a_number_for_each_position_is_refused() -> None:
    def starts(self: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        return ((lookup(self["E"], input_ids) @ self["U"]).tanh()).sum(2)

    answering = ReferenceModel(starts, weights(model()))
    asked: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 3}
    assert len(list(embgrad.stream(answering, texts(9), embgrad.Sum(), **asked))) == 3
    with pytest.raises(UnsupportedError, match="a number for each position, padding included"):
        list(embgrad.stream(answering, ["a", "bcd", "efghi"] * 3, embgrad.Sum(), window=9, **asked))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": True}, "with split=True results depend on the examples of a batch: omit one of the two"),
        ({"training": True}, "with training=True results depend on"),
        ({"tokenizer": None}, "the source yields whole batches: pass texts with tokenizer"),
    ],
)
def test_options_that_depend_on_the_batch_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        embgrad.stream(model(), [[[3]]], embgrad.Sum(), **{"tokenizer": tokenizer, "window": 8, **options})
    with pytest.raises(ObjectiveError, match="a Scalar objective reduces over a batch: omit window"):
        embgrad.stream(model(), [], embgrad.Scalar(lambda out: out.sum()), tokenizer=tokenizer, window=8)


def test_a_point_with_channels_before_positions_is_refused() -> None:
    def convolving(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
        rows = lookup(model["E"], input_ids) * Tensor(attention_mask[..., None].astype("float32"))
        return model.module("channels", lambda x: x.swap(1, 2), rows).sum(2) @ model["W"]

    built = ReferenceModel(convolving, weights(model()), ["channels"])
    plain = embgrad.stream(built, rows(6), LABELLED, tokenizer=tokenizer, batch_size=2, at="channels")
    assert [item.values.shape[:2] for item in plain] == [(2, DIM)] * 3
    message = (
        r"the point 'channels' has the shapes \(\d, 4, \d+\) and \(\d, 4, \d+\), which depend on the length of the "
        r"batch in an axis other than the second of three. window requires \(example, position, …\): omit it"
    )
    with pytest.raises(UnsupportedError, match=message):
        list(embgrad.stream(built, rows(6), LABELLED, tokenizer=tokenizer, batch_size=2, window=6, at="channels"))


def test_a_point_with_pairs_of_positions_is_refused() -> None:
    def attending(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
        rows = lookup(model["E"], input_ids) * Tensor(attention_mask[..., None].astype("float32"))
        return model.module("scores", paired, rows).sum(1)

    def paired(rows: Tensor) -> Tensor:
        length = rows.value.shape[1]
        value = np.repeat(rows.value.sum(2)[:, :, None], length, axis=2)
        return Tensor(value, [(rows, lambda grad: np.repeat(grad.sum(2)[:, :, None], DIM, axis=2))])

    shared = weights(model())

    def attended(source: list[str], **options: Any) -> list[Any]:
        built = ReferenceModel(attending, shared, ["scores"])
        return list(
            embgrad.stream(built, source, embgrad.Sum(), tokenizer=tokenizer, batch_size=2, at="scores", **options)
        )

    assert [item.shape for item in attended(["ab", "abc"])] == [(2, 5, 5)]
    for source in (["ab", "abc", "ab", "xyz"], ["ab", "ab", "abc", "xyzu"]):
        with pytest.raises(UnsupportedError, match=r"the point 'scores' has the shapes .*omit it"):
            attended(source, window=4)


def _with_positions(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
    positions = lookup(model["P"], np.arange(input_ids.shape[1])[None])
    read = np.where(attention_mask.any(1, keepdims=True), attention_mask, 1)  # as attention does where all is masked
    rows = (lookup(model["E"], input_ids) + positions) * Tensor(read[..., None].astype("float64"))
    return model.module("pooled", Tensor.tanh, rows.sum(1)) @ model["W"]


def with_positions() -> ReferenceModel:
    random = np.random.default_rng(0)
    shapes = {"E": (40, DIM), "P": (20, DIM), "W": (DIM, 3)}
    return ReferenceModel(
        _with_positions, {name: random.normal(size=shape) for name, shape in shapes.items()}, ["pooled"]
    )


def weights(model: ReferenceModel) -> dict[str, np.ndarray]:
    return {name: parameter.value for name, parameter in model.parameters.items()}


def streamed(source: list[str], **options: Any) -> list[Any]:
    asked = {"tokenizer": tokenizer, "batch_size": 2, **options}
    return list(embgrad.stream(with_positions(), source, embgrad.Logit(0), **asked))


@pytest.mark.parametrize("lengths", [[1, 9, 2, 3, 8], [DIM - 2, DIM - 2, 9, 9], [2, 2, 2, 2]])
def test_a_point_without_positions_is_unchanged(lengths: list[int]) -> None:
    source = ["abcdefghi"[:length] for length in lengths]
    plain = streamed(source, at="pooled")
    for first, second in zip(plain, streamed(source, at="pooled", window=8), strict=True):
        assert first.shape == second.shape == (len(first.ids), DIM)
        np.testing.assert_allclose(second.values, first.values, rtol=1e-12)
        np.testing.assert_allclose(second.activations, first.activations, rtol=1e-12)
        np.testing.assert_array_equal(second.ids, first.ids)
        np.testing.assert_array_equal(second.mask, first.mask)
        assert second.tokens == first.tokens


def test_a_table_that_all_examples_share_is_refused() -> None:
    source = texts(6)
    assert [len(first.values) for first in streamed(source, at="P")] == [1, 1, 1]
    runs: list[int] = []

    def counting(self: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        runs.append(len(input_ids))
        return _with_positions(self, input_ids, attention_mask)

    counted = ReferenceModel(counting, weights(with_positions()), ["pooled"])
    with pytest.raises(
        UnsupportedError, match=r"'P' has the shape \(1, \d+, 4\) in a batch of 2 examples, which share"
    ):
        list(embgrad.stream(counted, source, embgrad.Logit(0), tokenizer=tokenizer, batch_size=2, window=6, at="P"))
    assert set(runs) == {2}
    assert len(runs) < 4, "it is refused before the window's other batches are run"
    for first, second in zip(streamed(source, at="position"), streamed(source, at="position", window=6), strict=True):
        np.testing.assert_allclose(second.values[first.real], first.values[first.real], rtol=1e-12)
        np.testing.assert_array_equal(second.ids[first.real], first.ids[first.real])


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("option", ["add", "override"])
def test_arrays_with_an_entry_for_each_example_are_refused(option: str, window: int | None) -> None:
    source = ["ab", "cd", "ef", "gh"]
    for wrong in (np.ones((2, DIM)), np.ones((4, DIM))):
        with pytest.raises(UnsupportedError, match=r"an entry for each example, but it is for many batches"):
            streamed(source, **{option: {"pooled": wrong}, "window": window})
    for right in (np.ones(DIM), np.ones((1, DIM))):
        assert len(streamed(source, at="pooled", **{option: {"pooled": right}, "window": window})) == 2
    for right in (np.ones((4, DIM)), np.ones((1, 4, DIM))):  # an entry for each position
        assert len(streamed(source, add={"word": right, "position": right}, window=window)) == 2


class Bare(Left):
    padding: ClassVar[dict[str, Any]] = {**Left.padding, "direction": "right"}

    def encode_batch(self, given: list[str]) -> list[Any]:
        actual = super().encode_batch(given)
        for item in actual:
            for name in ("ids", "tokens", "type_ids", "word_ids", "sequence_ids"):
                setattr(item, name, getattr(item, name)[1:-1])
        return actual


def test_texts_without_tokens() -> None:
    source = ["abc", "", "", "abcdef", "a", ""]
    plain = streamed(source, tokenizer=Bare())
    for first, second in zip(plain, streamed(source, tokenizer=Bare(), window=6), strict=True):
        np.testing.assert_array_equal(first.ids, second.ids)
        np.testing.assert_array_equal(first.mask, second.mask)
        np.testing.assert_allclose(second.objective, first.objective, rtol=1e-12)


def _from_the_left(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
    positions = lookup(model["P"], np.broadcast_to(np.arange(input_ids.shape[1]), input_ids.shape))
    rows = (lookup(model["E"], input_ids) + positions).tanh()
    return (rows * Tensor(attention_mask[..., None].astype("float64"))).sum(1) @ model["W"]


def _maskless(model: Any, input_ids: np.ndarray) -> Tensor:
    return lookup(model["E"], input_ids).tanh().sum(1).tanh() @ model["W"]


class Right(Left):
    padding: ClassVar[dict[str, Any]] = {**Left.padding, "direction": "right"}


@pytest.mark.filterwarnings("ignore:the model .* mask")
@pytest.mark.parametrize("at", ["word", ["word", "position"]])
@pytest.mark.parametrize(
    ("forwards", "side", "counts"),
    [(_from_the_left, Left, True), (_from_the_left, Right, False), (_maskless, Right, True), (_maskless, Left, True)],
)
def test_a_model_that_padding_changes_is_refused(forwards: Any, side: Any, counts: bool, at: Any) -> None:
    asked: dict[str, Any] = {"tokenizer": side(), "batch_size": 3, "at": "word" if forwards is _maskless else at}
    runs: list[int] = []

    def counting(self: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        runs.append(len(input_ids))
        return forwards(self, input_ids, *([attention_mask] if forwards is _from_the_left else []))

    built = ReferenceModel(counting, weights(with_positions()))
    plain = list(embgrad.stream(built, texts(12), embgrad.Logit(0), **asked))
    before = len(runs)
    if not counts:
        assert len(plain) == len(list(embgrad.stream(built, texts(12), embgrad.Logit(0), window=12, **asked)))
        assert runs[before:].count(1) >= 1, "an example was run alone"
        return
    with pytest.raises(
        UnsupportedError, match=r"example \d+ of the source has other results alone than with \d+ positions of padding"
    ):
        list(embgrad.stream(built, texts(12), embgrad.Logit(0), window=12, **asked))
    alone = runs[before:].count(1)
    assert alone
    # A pass may be repeated where all examples share a tensor.
    assert 2 <= runs[before:].count(3) <= 2 * alone, "a batch is run, and once more: the window's others are not"


def taking(takes: Any) -> ReferenceModel:
    def forward(self: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        if not takes(attention_mask):
            raise ValueError(f"a batch of {len(input_ids)}")
        return _from_the_left(self, input_ids, attention_mask)

    return ReferenceModel(forward, weights(with_positions()))


def test_a_model_of_a_fixed_batch_size_is_probed_with_copies() -> None:
    of_three = taking(lambda mask: len(mask) == 3)
    asked: dict[str, Any] = {"tokenizer": Left(), "batch_size": 3}
    assert len(list(embgrad.stream(of_three, texts(12), embgrad.Logit(0), **asked))) == 4
    with pytest.raises(UnsupportedError, match=r"example \d+ of the source has other results alone than with"):
        list(embgrad.stream(of_three, texts(12), embgrad.Logit(0), window=12, **asked))
    asked["tokenizer"] = Right()
    assert len(list(embgrad.stream(of_three, texts(12), embgrad.Logit(0), window=12, **asked))) == 4


def test_a_model_that_cannot_be_probed_is_a_warning() -> None:
    with_padding = taking(lambda mask: not mask.all())
    asked: dict[str, Any] = {"tokenizer": Right(), "batch_size": 3, "window": 3}
    with pytest.warns(
        EmbgradWarning,
        match=r"padding changes .* did not accept example \d+ of the source without padding \(ValueError\('a batch of 3'\)\)",
    ) as warned:
        actual = list(embgrad.stream(with_padding, ["ab", "abc", "abcd"], embgrad.Logit(0), **asked))
    assert len(actual) == 1
    assert [item.filename for item in warned] == [__file__]


@pytest.mark.filterwarnings("ignore:the model .* mask")
def test_an_example_without_a_gradient_is_skipped_as_a_probe() -> None:
    maskless = ReferenceModel(_maskless, weights(with_positions()))
    source = [(text, float(len(text) > 5)) for text in ["ab", "abc", "abcd", "abcdefg", "abcdefgh", "abcdefghi"]]
    objective = embgrad.Labelled(lambda weights: embgrad.Projection(np.outer(weights, [1.0, 2.0, 3.0])))
    with pytest.raises(UnsupportedError, match=r"example 3 of the source has other results alone than with 2"):
        list(embgrad.stream(maskless, source, objective, tokenizer=Right(), batch_size=3, window=6))


@pytest.mark.filterwarnings("ignore:the model .* mask")
@pytest.mark.parametrize("side", [Left, Right])
def test_sub_batches_without_padding_do_not_hide_that_padding_counts(side: Any) -> None:
    maskless = ReferenceModel(_maskless, weights(with_positions()))
    asked: dict[str, Any] = {"tokenizer": side(), "batch_size": 2}
    for source in (["a", "abcdef"] * 2, ["abcdef", "a"] * 2, ["a", "abc", "abcdef"] * 2):
        with pytest.raises(UnsupportedError, match=r"other results alone than with \d+ positions of padding"):
            list(embgrad.stream(maskless, source, embgrad.Logit(0), window=6, **asked))


@pytest.mark.filterwarnings("ignore:the model .* mask", "ignore:the mask is 0")
def test_a_text_without_tokens_is_no_probe() -> None:
    class Plain(Right):
        def encode_batch(self, given: list[str]) -> list[Any]:
            encoded = super().encode_batch(given)
            for each in encoded:
                for name in ("ids", "tokens", "type_ids", "word_ids", "sequence_ids"):
                    setattr(each, name, getattr(each, name)[1:-1])
            return encoded

    maskless = ReferenceModel(_maskless, weights(with_positions()))
    with pytest.raises(UnsupportedError, match="example 1 of the source has other results alone than with 5 positions"):
        list(embgrad.stream(maskless, ["", "a", "abcdef"], embgrad.Logit(0), tokenizer=Plain(), batch_size=3, window=3))


def slotted() -> ReferenceModel:
    random = np.random.default_rng(0)
    drawn = {"E": random.normal(size=(VOCAB, DIM)), "S": random.normal(size=(DIM, 5 * DIM))}

    def forward(self: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = (lookup(self["E"], input_ids).tanh() * Tensor(attention_mask[..., None].astype(float))).sum(1)
        slots = self.module("slots", lambda value: (value @ self["S"]).reshape(len(input_ids), 5, DIM), rows)
        return slots.tanh().sum(1)

    return ReferenceModel(forward, drawn, ["slots"])


def test_an_axis_as_long_as_the_batch_by_chance_is_not_cut(tmp_path: Path) -> None:
    source = [*["a"] * 4, *["abc"] * 3, "a", *["ab"] * 2]  # five tokens is as many as slots
    asked: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 4, "at": "slots"}
    plain = list(embgrad.stream(slotted(), source, embgrad.Logit(0), **asked))

    def through(source: Any, **more: Any) -> embgrad.results.Stream:
        return embgrad.stream(slotted(), source, embgrad.Logit(0), window=12, **asked, **more)

    written = list(through(source, to=tmp_path / "whole"))
    with through(source, to=tmp_path / "part") as begun:
        next(begun), next(begun)
    resumed = list(through(source, to=tmp_path / "part"))
    for actual in (written, resumed, list(through(source))):
        assert [first.shape for first in actual] == [(4, 5, DIM), (4, 5, DIM), (2, 5, DIM)]
        for first, second in zip(plain, actual, strict=True):
            np.testing.assert_allclose(second.values, first.values, rtol=1e-5, atol=1e-7)


def test_random_numbers_do_not_refuse_a_window() -> None:
    random, sizes = np.random.default_rng(0), list[int]()

    def noise(value: np.ndarray) -> np.ndarray:
        sizes.append(len(value))
        return random.normal(size=value.shape)

    asked: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 3, "window": 12, "add": {"word": noise}}
    assert len(list(embgrad.stream(model(), texts(12), embgrad.Logit(0), **asked))) == 4
    assert sorted(sizes) == [1, 3, 3, 3, 3, 3], "one example is run alone, and beside the others once more"
    sizes.clear()
    asked |= {"batch_size": 2, "window": 4}
    assert len(list(embgrad.stream(model(), ["ab", "abcdefgh"] * 2, embgrad.Logit(0), **asked))) == 2
    assert sorted(sizes) == [1, 1, 2, 2], "one example is run with the padding of its own batch, twice"


@pytest.mark.parametrize("scale", [1.0, 1e6])
@pytest.mark.parametrize("share", [1e-4, 1e-2])
def test_padding_counts_by_the_relative_difference(share: float, scale: float) -> None:
    """Padding on the left moves a text, whose positions are added to its embeddings by a share."""
    params = weights(with_positions())

    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        places = lookup(model["P"], np.broadcast_to(np.arange(input_ids.shape[1]), input_ids.shape)) * share
        rows = (lookup(model["E"], input_ids) + places).tanh() * Tensor(attention_mask[..., None].astype("float64"))
        return rows.sum(1) @ model["W"] * scale

    def gradient(ids: list[int], first: int) -> np.ndarray:
        places = params["P"][first : first + len(ids)] * share
        return np.asarray((1 - np.tanh(params["E"][ids] + places) ** 2) * params["W"][:, 0] * scale)

    def streamed() -> list[Any]:
        asked = {"tokenizer": Left(), "batch_size": 2, "window": 2}
        return list(embgrad.stream(ReferenceModel(forward, params), ["abc", "abcdefgh"], embgrad.Logit(0), **asked))

    ids = tokenizer("abc")
    alone, beside = gradient(ids, 0), gradient(ids, 5)
    difference = np.linalg.norm(alone - beside) / max(np.linalg.norm(alone), np.linalg.norm(beside))
    if difference < 1e-3:
        assert len(streamed()) == 1
    else:
        with pytest.raises(UnsupportedError, match=rf"at 'word' their relative difference is {difference:.2g}, and"):
            streamed()
