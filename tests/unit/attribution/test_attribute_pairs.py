"""Attributions of pairs of texts: closed forms, single calls, pooling, equal texts, the page, and what is refused."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import EmbgradWarning, TokenBatch, attribute_pairs
from embgrad.attribution import attribute_pairs as module
from embgrad.attribution.pair_encoder import Encoder
from embgrad.backend.registry import bind
from embgrad.errors import BatchError, EmbgradError, NoGradientError, ObjectiveError, UnsupportedError
from embgrad.methods import InputXGradient, IntegratedGradients, IntegratedJacobians
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.models import CLASSES, Tokenizer, curved, linear
from tests.unit.results.attributed import byte_level
from tests.unit.stored import expect_restored

A = TokenBatch([[2, 7, 7, 5], [1, 4, 9, 3]], [[1, 1, 1, 0], [1, 1, 1, 1]])
B = TokenBatch([[3, 8, 6], [10, 6, 0]], [[1, 1, 1], [1, 1, 0]])
W = linear()
ROWS = W["E"].value @ W["W"].value


def _products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the inner products of the rows of the linear model at the positions of two texts."""
    return np.asarray(np.einsum("pic,pjc->pij", first, second))


def test_of_a_linear_encoder_a_score_is_the_inner_product_of_both_rows() -> None:
    made = attribute_pairs(linear(), (A, B), similarity="dot")
    rows = [np.where(batch.real[..., None], ROWS[batch.ids], 0) for batch in (A, B)]
    np.testing.assert_allclose(made.scores, _products(*rows), atol=1e-13)
    vectors = [side.sum(1) for side in rows]
    expected = (vectors[0] * vectors[1]).sum(1)
    np.testing.assert_allclose(made.similarity, expected, rtol=1e-12)
    np.testing.assert_allclose(made.explained, expected, rtol=1e-12)
    np.testing.assert_allclose(made.delta, 0, atol=1e-13)
    lengths = np.linalg.norm(vectors[0], axis=1) * np.linalg.norm(vectors[1], axis=1)
    cosine = attribute_pairs(linear(), (A, B))
    np.testing.assert_allclose(cosine.scores, _products(*rows) / lengths[:, None, None], atol=1e-13)
    np.testing.assert_allclose(cosine.similarity, expected / lengths, rtol=1e-12)


def test_of_several_outputs_the_embedding_of_the_text_is_read() -> None:
    def call(model: Any, inputs: Any) -> Any:
        made = model(**inputs)
        return {"twice": made + made, "sentence_embedding": made}

    for options, factor in ({}, 1), ({"output": "twice"}, 4):
        made = attribute_pairs(linear(), (A, B), similarity="dot", call=call, **options)
        np.testing.assert_allclose(made.scores, factor * attribute_pairs(linear(), (A, B), similarity="dot").scores)


def test_with_a_row_as_baseline_the_scores_are_of_the_differences_from_it() -> None:
    made = attribute_pairs(linear(), (A, B), IntegratedJacobians(3, baseline=11), similarity="dot")
    rows = [np.where(batch.real[..., None], ROWS[batch.ids] - ROWS[11], 0) for batch in (A, B)]
    np.testing.assert_allclose(made.scores, _products(*rows), atol=1e-13)
    np.testing.assert_allclose(made.explained, (rows[0].sum(1) * rows[1].sum(1)).sum(1), rtol=1e-12)
    assert not np.allclose(made.similarity, made.explained)
    np.testing.assert_allclose(made.a.baseline_objective, made.similarity - made.explained)


def test_the_scores_are_the_products_of_integrated_gradients_of_each_number() -> None:
    method = IntegratedJacobians(12, baseline="mask", keep_special=True)
    made = attribute_pairs(curved(), (A, B), method, similarity="dot", tokenizer=Tokenizer())
    single = IntegratedGradients(12, baseline="mask", keep_special=True)
    expected = np.zeros((2, 4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmbgradWarning)
        for number in range(CLASSES):
            first, second = (
                embgrad.attribute(curved(), side, embgrad.Logit(number), single, tokenizer=Tokenizer()).scores
                for side in (A, B)
            )
            expected += first[:, :, None] * second[:, None]
    np.testing.assert_allclose(made.scores, expected, atol=1e-13)


def test_the_error_of_the_sum_falls_with_the_steps_and_is_the_distance_to_what_is_explained() -> None:
    with pytest.warns(EmbgradWarning, match="do not add up") as caught:
        few = attribute_pairs(curved(), (A, B), IntegratedJacobians(1))
    assert [warning.filename for warning in caught] == [__file__], "it is of the user's line"
    many = attribute_pairs(curved(), (A, B), IntegratedJacobians(40))
    for made in (few, many):
        np.testing.assert_allclose(made.delta, made.scores.sum((1, 2)) - made.explained, atol=1e-15)
    assert (np.abs(many.delta) < 1e-6 * np.abs(few.delta)).all()
    np.testing.assert_allclose(few.explained, many.explained, rtol=1e-12)


def test_each_side_is_the_sum_over_the_other() -> None:
    made = attribute_pairs(curved(), (A, B))
    np.testing.assert_allclose(made.a.scores, made.scores.sum(2))
    np.testing.assert_allclose(made.b.scores, made.scores.sum(1))
    for side, batch in ((made.a, A), (made.b, B)):
        np.testing.assert_array_equal(side.ids, batch.ids)
        np.testing.assert_array_equal(side.objective, made.similarity)
        np.testing.assert_allclose(side.delta, made.delta, atol=1e-14)
    assert not made.scores[0, 3].any()
    assert not made.scores[1, :, 2].any()


def test_at_a_hidden_state_the_scores_are_of_its_values() -> None:
    made = attribute_pairs(curved(), (A, B), IntegratedJacobians(5), at="block", similarity="dot")
    single = IntegratedGradients(5)
    first, second = (
        [embgrad.attribute(curved(), side, embgrad.Logit(n), single, at="block").scores for n in range(CLASSES)]
        for side in (A, B)
    )
    np.testing.assert_allclose(made.scores, np.einsum("npi,npj->pij", first, second), atol=1e-13)


def _per_position(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    return lookup(model["E"], input_ids) @ model["W"]


def per_position() -> ReferenceModel:
    """Return a model with a vector at each position, which is linear in its embedding."""
    return ReferenceModel(_per_position, {"E": W["E"].value, "W": W["W"].value})


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_an_output_at_each_position_is_pooled(pooling: str) -> None:
    made = attribute_pairs(per_position(), (A, B), pooling=pooling, similarity="dot")
    rows = []
    for batch in (A, B):
        counts = batch.real.sum(1)
        shares = batch.real / counts[:, None] if pooling == "mean" else np.zeros(batch.shape)
        if pooling != "mean":
            shares[np.arange(len(batch)), 0 if pooling == "first" else counts - 1] = 1
        rows.append(ROWS[batch.ids] * shares[..., None])
    np.testing.assert_allclose(made.scores, _products(*rows), atol=1e-13)
    np.testing.assert_allclose(made.similarity, (rows[0].sum(1) * rows[1].sum(1)).sum(1), rtol=1e-12)


def test_a_text_that_is_in_several_pairs_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = TokenBatch(np.repeat(A.ids[:1], 4, 0), np.repeat(A.mask[:1], 4, 0))
    second = TokenBatch([[3, 8, 6], [10, 6, 2], [3, 8, 6], [1, 2, 3]])
    runs: list[list[int]] = []
    contributions = Encoder.contributions

    def counting(self: Any, texts: np.ndarray, directions: np.ndarray) -> Any:
        runs.append(texts.tolist())
        return contributions(self, texts, directions)

    monkeypatch.setattr(Encoder, "contributions", counting)
    monkeypatch.setattr(module, "MOST_PAIRS", 2)
    done: list[tuple[int, int]] = []
    made = attribute_pairs(curved(), (first, second), progress=lambda *counts: done.append(counts))
    assert runs == [[0], [0, 1], [3]]
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    monkeypatch.undo()
    for pair in range(4):
        alone = attribute_pairs(curved(), (first[pair : pair + 1], second[pair : pair + 1]))
        np.testing.assert_allclose(made.scores[pair], alone.scores[0], atol=1e-14)


def wide() -> ReferenceModel:
    """Return an encoder with many more numbers than texts have positions."""
    random = np.random.default_rng(9)
    weights = {"E": W["E"].value, "V": random.normal(size=(3, 3)), "W": random.normal(size=(3, 40))}

    def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        rows = (lookup(model["E"], input_ids) @ model["V"]).tanh() * Tensor(attention_mask[..., None] * 1.0)
        return (rows.sum(1) @ model["W"]).tanh()

    return ReferenceModel(forward, weights)


@pytest.mark.parametrize(
    ("method", "share"), [(IntegratedJacobians(30), 2e-6), (InputXGradient(), 2e-9)], ids=["line", "texts"]
)
@pytest.mark.parametrize("size", [None, 1])
def test_the_few_directions_of_a_wide_encoding_give_the_scores_of_all_its_numbers(
    method: Any, share: float, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = attribute_pairs(wide(), (A, B), method, batch_size=size)
    monkeypatch.setattr(module, "_take_less", lambda encoders: False)
    every = attribute_pairs(wide(), (A, B), method)
    np.testing.assert_allclose(few.scores, every.scores, atol=share * np.abs(every.scores).max())
    assert (few.scores != every.scores).any()
    np.testing.assert_allclose(few.similarity, every.similarity, rtol=1e-13)
    np.testing.assert_allclose(few.explained, every.explained, rtol=1e-13)


def test_no_pass_has_more_rows_than_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    question = Encoder._question

    def counting(self: Any, texts: np.ndarray, *arguments: Any, **options: Any) -> Any:
        rows.append(len(texts))
        return question(self, texts, *arguments, **options)

    monkeypatch.setattr(Encoder, "_question", counting)
    attribute_pairs(wide(), (A, B), IntegratedJacobians(30), batch_size=3)
    assert max(rows) == 3


def test_few_directions_are_taken_where_they_take_fewer_passes() -> None:
    def take_less(model: ReferenceModel, a: TokenBatch, b: TokenBatch) -> bool:
        sides = [Encoder(bind(model), side, None, None, "word", None, InputXGradient(), None) for side in (a, b)]
        return module._take_less(sides)

    assert take_less(wide(), A, B)
    assert not take_less(curved(), A, B), "an encoding has two numbers"
    repeated = [side.take(np.zeros(40, int)) for side in (A, B)]
    assert not take_less(wide(), *repeated), "all numbers of two texts are enough for forty pairs"


def test_directions_in_which_the_contributions_do_not_lie_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = attribute_pairs(wide(), (A, B), IntegratedJacobians(30))
    nearly = Encoder.nearly
    monkeypatch.setattr(Encoder, "nearly", lambda self, text: nearly(self, text)[::-1])
    turned = attribute_pairs(wide(), (A, B), IntegratedJacobians(30))
    np.testing.assert_allclose(turned.scores, expected.scores, atol=2e-6 * np.abs(expected.scores).max())


@pytest.mark.parametrize(("method", "share"), [(IntegratedJacobians(8), 2e-3), (InputXGradient(), 1e-4)])
def test_differences_of_encodings_are_nearly_the_contributions(method: Any, share: float) -> None:
    encoder = Encoder(bind(wide()), A, None, None, "word", None, method, None)
    exact = encoder.contributions(np.array([1]), np.eye(40))[:, 0]
    assert np.linalg.norm(encoder.nearly(1) - exact) < share * np.linalg.norm(exact)


def test_by_gradients_of_a_linear_encoder_the_scores_are_the_inner_products_of_both_rows() -> None:
    made = attribute_pairs(linear(), (A, B), "input_x_gradient", similarity="dot")
    rows = [np.where(batch.real[..., None], ROWS[batch.ids], 0) for batch in (A, B)]
    np.testing.assert_allclose(made.scores, _products(*rows), atol=1e-13)
    np.testing.assert_allclose(made.delta, 0, atol=1e-13)
    np.testing.assert_allclose(made.explained, made.similarity, rtol=1e-13)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("encoder", [curved, wide])
def test_by_gradients_a_score_is_the_second_derivative_by_the_scales_of_both_tokens(
    encoder: Any, similarity: str
) -> None:
    model = encoder()
    made = attribute_pairs(model, (A, B), InputXGradient(), similarity=similarity)
    width, step = model["W"].value.shape[1], 1e-5
    changes, ends = [], []
    for batch in (A, B):
        values = embgrad.gradients(model, batch, embgrad.Sum()).activations

        def encode(scales: np.ndarray, batch: TokenBatch = batch, values: np.ndarray = values) -> np.ndarray:
            scaled = {"word": values * scales[:, None]}
            return np.stack(
                [embgrad.evaluate(model, batch, embgrad.Logit(n), override=scaled) for n in range(width)], 1
            )

        ones = np.ones(batch.shape[1])
        moves = step * np.eye(batch.shape[1])
        changes.append(np.stack([(encode(ones + move) - encode(ones - move)) / (2 * step) for move in moves], 1))
        ends.append(encode(ones))
    sizes = (
        1.0 if similarity == "dot" else np.prod([np.linalg.norm(end, axis=1) for end in ends], axis=0)[:, None, None]
    )
    expected = _products(*changes) / sizes
    np.testing.assert_allclose(made.scores, expected, atol=3e-7 * np.abs(expected).max())
    np.testing.assert_allclose(made.delta, made.scores.sum((1, 2)) - made.similarity, atol=1e-13)


def test_gradients_have_no_baseline_to_explain_the_similarity_from(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = attribute_pairs(curved(), (A, B), "input_x_gradient")
    assert np.abs(made.delta).max() > 0.01, "no warning of it: the scores need not add up to the similarity"
    for side in (made.a, made.b):
        assert side.baseline_objective is None
        assert side.delta is None
    assert made.method == "InputXGradient"
    made.save(tmp_path / "p.safetensors")
    loaded = embgrad.load(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(loaded.scores, made.scores)
    assert loaded.a.delta is None


def test_pairs_are_a_list_of_pairs_or_a_pair_of_lists_of_texts() -> None:
    def of_bytes(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        rows = lookup(model["E"], input_ids)
        return (rows if attention_mask is None else rows * Tensor(attention_mask[..., None] * 1.0)).sum(1) @ model["W"]

    random = np.random.default_rng(8)
    model = ReferenceModel(of_bytes, {"E": random.normal(size=(257, 3)), "W": random.normal(size=(3, 2))})
    texts = [("ab", "c"), ("d", "ef")]
    made = attribute_pairs(model, texts, tokenizer=byte_level())
    assert made.a.texts == ("ab", "d")
    assert made.b.texts == ("c", "ef")
    turned = attribute_pairs(model, (["ab", "d"], ["c", "ef"]), tokenizer=byte_level())
    np.testing.assert_array_equal(turned.scores, made.scores)
    single = attribute_pairs(model, ("d", "ef"), tokenizer=byte_level())
    np.testing.assert_allclose(single.scores[0], made.scores[1, :1], atol=1e-14)
    assert [piece.text for piece in made.matrix(1, by="spans").inputs] == ["e", "f"]


@pytest.mark.parametrize("size", [None, 1, 2, 3])
def test_the_size_of_a_pass_changes_nothing(size: int | None) -> None:
    expected = attribute_pairs(curved(), (A, B), IntegratedJacobians(12))
    made = attribute_pairs(curved(), (A, B), IntegratedJacobians(12), batch_size=size)
    np.testing.assert_allclose(made.scores, expected.scores, atol=1e-14)


def _encoder(function: Any) -> ReferenceModel:
    """Return an encoder whose encoding is a function of the sum of a text's rows, times a matrix."""
    return ReferenceModel(
        lambda model, input_ids, attention_mask=None: function(lookup(model["E"], input_ids).sum(1)) @ model["W"],
        {"E": W["E"].value, "W": W["W"].value},
    )


def test_texts_that_depend_on_one_another_are_refused_and_those_that_need_their_number_are_run_together() -> None:
    def with_others(sums: Tensor) -> Tensor:
        return sums + Tensor(sums.value[::-1] * 1.0, [(sums, lambda g: g[::-1])])

    def of_two(sums: Tensor) -> Tensor:
        assert len(sums.value) in (1, 2)
        return sums if len(sums.value) == 2 else sums * 0.5

    ids = np.array([[1, 2], [3, 4]]), np.array([[5, 6], [5, 6]])
    with pytest.raises(
        UnsupportedError, match="the encoding of a text depends on the other 1 of the batch: pass one pair at a"
    ):
        attribute_pairs(_encoder(with_others), ids)
    made = attribute_pairs(_encoder(of_two), ids, similarity="dot", batch_size=2)
    np.testing.assert_allclose(made.scores, _products(*(ROWS[side] for side in ids)), atol=1e-13)


@pytest.mark.parametrize("longer", [0, 1])
def test_all_pairs_are_run_together_where_the_texts_of_either_side_need_their_number(
    longer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        share = 0.5 if input_ids.shape[1] == 3 and len(input_ids) != 2 else 1.0
        return lookup(model["E"], input_ids).sum(1) @ model["W"] * share

    sides = [np.array([[5, 6], [7, 8]]), np.array([[5, 6], [7, 8]])]
    sides[longer] = np.array([[1, 2, 9], [3, 4, 10]])
    monkeypatch.setattr(module, "MOST_PAIRS", 1)
    model = ReferenceModel(forward, {"E": W["E"].value, "W": W["W"].value})
    made = attribute_pairs(model, tuple(sides), similarity="dot")
    np.testing.assert_allclose(made.scores, _products(*(ROWS[side] for side in sides)), rtol=1e-9)


def test_an_encoding_without_a_finite_gradient_is_refused() -> None:
    ids = np.array([[1, 2]])
    with pytest.raises(
        NoGradientError, match=r"the encoding does not depend on the point 'word': no path in the graph leads"
    ):
        attribute_pairs(_encoder(lambda sums: sums.detach()), (ids, ids))
    with pytest.raises(
        NoGradientError, match="the gradient of the encoding at 'word' is nan at number 0, row 0, position 0"
    ):
        attribute_pairs(_encoder(lambda sums: Tensor(sums.value, [(sums, lambda g: g * np.nan)])), (ids, ids))


def test_it_is_restored_from_a_file_bit_for_bit(tmp_path: Path) -> None:
    made = attribute_pairs(curved(), (A, B), tokenizer=Tokenizer())
    made.save(tmp_path / "p.safetensors")
    loaded = embgrad.load(tmp_path / "p.safetensors")
    for name in ("scores", "similarity", "explained", "delta"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(made, name))
    expect_restored(made.a, loaded.a)
    expect_restored(made.b, loaded.b)
    embgrad.save({"x": made, "y": made.a}, tmp_path / "q.safetensors")
    assert list(embgrad.load(tmp_path / "q.safetensors")) == ["x", "y"]


def test_the_matrix_has_a_row_for_each_token_of_the_first_text() -> None:
    made = attribute_pairs(curved(), (A, B), tokenizer=Tokenizer())
    matrix = made.matrix(1, by="tokens")
    assert [piece.text for piece in matrix.outputs] == ["t1", "t4", "t9", "t3"]
    assert [piece.text for piece in matrix.inputs] == ["t10", "t6"]
    np.testing.assert_array_equal(matrix.scores, made.scores[1, :, :2])
    assert [piece.score for piece in matrix.outputs] == pytest.approx(made.a.scores[1].tolist())
    assert matrix.lines()[0].summary == f"sum = {made.a.scores[1, 0]:.4g}"


def test_a_text_of_special_tokens_alone_has_no_matrix_without_them() -> None:
    first = TokenBatch([[2, 5]], tokens=[["[CLS]", "[SEP]"]])
    second = TokenBatch([[2, 7]], tokens=[["[CLS]", "cat"]])
    made = attribute_pairs(linear(), (first, second))
    with pytest.raises(EmbgradError, match="a text of the pair 0 has no tokens but special ones: pass special=True"):
        made.matrix(special=False)
    assert made.matrix().scores.shape == (2, 2)


def test_the_page_draws_a_line_for_each_larger_score_in_its_colour() -> None:
    made = attribute_pairs(linear(), (A, B), tokenizer=Tokenizer())
    page = made.to_html(0)
    scores = made.scores[0, :3]
    drawn = int((np.abs(scores) >= 0.05 * np.abs(scores).max()).sum())
    assert page.count("<line ") == drawn
    assert f"{scores[0, 1]:+.4g}: t2 – t8" in page
    assert "words of the first text: click one" in page
    assert "words of the second text" in page
    assert "<svg" in made._repr_html_()


def test_it_is_shown_in_the_terminal_and_in_latex(capsys: pytest.CaptureFixture[str]) -> None:
    made = attribute_pairs(linear(), (A, B), tokenizer=Tokenizer())
    made.show(0)
    assert "t3" in capsys.readouterr().out
    assert "t8" in made.to_latex(0)
    assert "PairAttribution(2 × 4 × 3, IntegratedJacobians of the cosine at 'word'" in repr(made)
    np.testing.assert_array_equal(np.asarray(made), made.scores)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"pairs": ["a text"]}, BatchError, "pairs is ['a text']: expected a list of pairs of texts"),
        ({"pairs": (A, B[:1])}, BatchError, "the batches have 2 and 1 examples: expected as many"),
        (
            {"method": "saliency"},
            EmbgradError,
            "method is 'saliency': expected one of 'integrated_jacobians', 'input_x_gradient'",
        ),
        ({"similarity": "euclid"}, EmbgradError, "similarity is 'euclid': expected one of 'cosine', 'dot'"),
        ({"pooling": "max"}, EmbgradError, "pooling is 'max': expected one of 'mean', 'first', 'last'"),
        (
            {"pooling": "mean"},
            ObjectiveError,
            "the output has the shape (1, 2) for one text, and pooling is 'mean': expected a vector for each position. Name "
            "another with output=..., or omit pooling",
        ),
        (
            {"model": per_position()},
            ObjectiveError,
            "the output has the shape (1, 4, 2) for one text, and pooling is None: expected a vector for each text. Name another "
            "with output=..., or pass pooling='mean', 'first' or 'last', or call=... that returns a vector for each text",
        ),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], error: type[EmbgradError], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        attribute_pairs(arguments.pop("model", linear()), arguments.pop("pairs", (A, B)), **arguments)


def test_a_model_with_a_single_number_is_sent_to_attribute() -> None:
    model = ReferenceModel(
        lambda model, input_ids, attention_mask=None: lookup(model["E"], input_ids).sum(1) @ model["W"],
        {"E": W["E"].value, "W": W["W"].value[:, :1]},
    )
    with pytest.raises(
        ObjectiveError, match=re.escape("call embgrad.attribute(model, [(a, b)], embgrad.Logit(0), method)")
    ):
        attribute_pairs(model, (A, B))


def test_an_encoding_of_zeros_has_no_cosine() -> None:
    model = ReferenceModel(
        lambda model, input_ids, attention_mask=None: lookup(model["E"], input_ids).sum(1) @ model["W"],
        {"E": W["E"].value, "W": np.zeros((3, 2))},
    )
    message = (
        "an encoding of the pair 0 is zero everywhere, so that it has no cosine with another: give similarity='dot'"
    )
    with pytest.raises(ObjectiveError, match=re.escape(message)):
        attribute_pairs(model, (A, B))


@pytest.mark.parametrize(
    ("field", "value"), [("steps", 0), ("baseline", "one"), ("rule", "simpson"), ("keep_special", 1)]
)
def test_arguments_of_the_method_are_checked_when_it_is_made(field: str, value: Any) -> None:
    with pytest.raises(EmbgradError, match=field):
        IntegratedJacobians(**{field: value})
