"""The rearrangements of a gradient by hand, and other requests to a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.comparison.align import aligned
from embgrad.comparison.diagnosis import rerun
from embgrad.comparison.diagnosis.case import Case
from embgrad.comparison.diagnosis.models import Division, divided
from embgrad.comparison.diagnosis.objectives import OtherMask, Probability, other_objectives
from embgrad.comparison.diagnosis.rearrangements import STRUCTURES, Prediction, order_padded_on, rearrangements
from embgrad.comparison.diagnosis.requests import REQUESTS, _padded_on, _with_moved_labels, head_shares
from embgrad.comparison.diagnosis.rerun import AS_IT_WAS, Source, Variant, _window, batch_of_result, source_of
from embgrad.objectives.objectives import Objective
from embgrad.results.gradients import EmbeddingGradients
from embgrad.testing.reference import ReferenceModel, lookup
from tests.unit.comparison.test_factors import result

IDS = np.array([[7, 5, 7, 0]])
MASK = np.array([[1, 1, 1, 0]])
VALUES = np.array([[[1.0, -2.0], [3.0, 4.0], [0.0, 0.0], [5.0, 6.0]]])


def case(wanted: np.ndarray = VALUES, values: np.ndarray = VALUES) -> Case:
    base = result(ids=IDS, mask=MASK, dim=2)
    source, target = (replace(base, values=array, activations=2 * array) for array in (values, wanted))
    return Case(source, target, aligned(source, target), 1e-6)


def made(cause: str, at: Case | None = None) -> list[tuple[str, list[Any]]]:
    at = case() if at is None else at
    return [(text, values[0].tolist()) for text, values in STRUCTURES[cause](at, at.values)]


def test_zeros_at_padding() -> None:
    assert made("pads-zeroed") == [("that b was set to zero at padding", [[1, -2], [3, 4], [0, 0], [0, 0]])]


def test_shifts_of_up_to_three_positions() -> None:
    found = made("position-shift")
    texts = [
        f"a shift by {n} position{'s' if n > 1 else ''} to the {side} in b"
        for n in (1, 2, 3)
        for side in ("right", "left")
    ]
    assert [text for text, _ in found] == texts
    np.testing.assert_array_equal(found[0][1], [[np.nan, np.nan], [1, -2], [3, 4], [0, 0]])
    np.testing.assert_array_equal(found[3][1], [[0, 0], [5, 6], [np.nan, np.nan], [np.nan, np.nan]])
    short = case(VALUES[:, :1], VALUES[:, :1])
    assert list(STRUCTURES["position-shift"](short, VALUES[:, :1])) == []
    wide = np.zeros((1, 9, 2))
    assert len(list(STRUCTURES["position-shift"](short, wide))) == 6


def test_padding_on_either_side() -> None:
    (found,) = made("padding-side")
    assert found == ("that b is laid out with the padding on the left", [[5, 6], [1, -2], [3, 4], [0, 0]])
    assert order_padded_on(np.array([[True, False, True]]), "right").tolist() == [[0, 2, 1]]
    assert order_padded_on(np.array([[True, False, True]]), "left").tolist() == [[1, 0, 2]]


def test_magnitudes_without_a_sign() -> None:
    assert made("absolute-value") == []  # b has negative numbers
    (found,) = made("absolute-value", case(wanted=np.abs(VALUES)))
    assert found == ("that b holds magnitudes without a sign", np.abs(VALUES)[0].tolist())


def test_scaled_to_length_one() -> None:
    (each, example, whole) = made("normalised")
    assert [text for text, _ in (each, example, whole)] == [
        f"that {what} of b was scaled to length 1" for what in ("each position", "each example", "the whole")
    ]
    root = 5**0.5
    np.testing.assert_allclose(each[1], [[1 / root, -2 / root], [0.6, 0.8], [0, 0], [5 / 61**0.5, 6 / 61**0.5]])
    np.testing.assert_allclose(example[1], VALUES[0] / 91**0.5)
    np.testing.assert_allclose(whole[1], VALUES[0] / 91**0.5)
    huge = list(STRUCTURES["normalised"](case(), VALUES * 1e200))
    np.testing.assert_allclose(huge[2][1], VALUES / 91**0.5)


def test_times_the_embedding() -> None:
    (found,) = made("gradient-times-input")
    assert found == ("that b is the gradient times the embedding", (2 * VALUES**2)[0].tolist())


def test_summed_over_repeats() -> None:
    with_padding, without = made("summed-repeats")
    assert with_padding[1] == [[1, -2], [3, 4], [1, -2], [5, 6]]
    assert without[1] == [[1, -2], [3, 4], [1, -2], [0, 0]]
    broken = VALUES.copy()
    broken[0, 2, 0] = np.nan
    assert next(STRUCTURES["summed-repeats"](case(), broken))[1][0, 0].tolist() == [1, -2]


def test_a_second_cause_is_another_one() -> None:
    first = Prediction(("padding-side",), "moved", VALUES, fitted=True)
    found = list(rearrangements(case(), first))
    assert found[0].causes == ("padding-side", "pads-zeroed")
    assert found[0].text == "moved, and that b was set to zero at padding"
    assert all(each.fitted and "padding-side" not in each.causes[1:] for each in found)
    alone = next(iter(rearrangements(case(), Prediction((), "", VALUES))))
    assert (alone.causes, alone.text) == (("pads-zeroed",), "that b was set to zero at padding")


TABLE = np.random.default_rng(0).normal(size=(12, 8))
HEAD = np.random.default_rng(1).normal(size=(8, 3))
BATCH = embgrad.TokenBatch([[1, 5, 9, 5], [1, 7, 2, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]], [[0, 0, 1, 1], [0, 0, 0, 0]])


def forward(model: Any, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
    rows = lookup(model["E"], input_ids)
    rows = rows if token_type_ids is None else rows + lookup(model["T"], token_type_ids)
    rows = rows if attention_mask is None else rows * attention_mask[:, :, None]
    return rows.sum(1).tanh() @ model["W"]


MODEL = ReferenceModel(forward, {"E": TABLE, "T": TABLE[:2], "W": HEAD})


def source(objective: Objective, batch: embgrad.TokenBatch = BATCH, target: Objective | None = None) -> Source:
    result = embgrad.gradients(MODEL, batch, objective)
    found = source_of(Case(result, result, aligned(result, result), 1e-9, MODEL))
    assert isinstance(found, Source)
    found.target_objective = target
    return found


ENTROPY = embgrad.CrossEntropy([2, 0])


def variants(cause: str, at: Source) -> list[Variant]:
    return [variant for name, kind in REQUESTS if name == cause for variant in kind(at)]


def test_requests_without_the_mask_and_the_types() -> None:
    at = source(ENTROPY)
    model_alone, both = variants("mask-ignored", at)
    assert (model_alone.text, both.text) == (
        "that b ran without the mask",
        "that b ran without the mask, and counts padding",
    )
    assert isinstance(model_alone.objective, OtherMask)
    assert both.objective is None
    for variant in (model_alone, both):
        assert variant.batch is not None
        assert variant.batch(BATCH).mask is None
        assert variant.batch(BATCH).types is not None
    (counted,) = variants("pads-counted", at)
    assert (counted.text, counted.batch) == ("that b's objective counts padding", None)
    zeros, none, alone = variants("types-ignored", at)
    assert [variant.text for variant in (zeros, none)] == ["that b ran without the segment ids"] * 2
    taken = [variant.batch(BATCH) for variant in (zeros, none, alone) if variant.batch is not None]
    assert [None if batch.types is None else batch.types.any() for batch in taken] == [False, None, None]
    assert [batch.mask is None for batch in taken] == [False, False, True]
    assert alone.causes == ("types-ignored", "mask-ignored")
    assert alone.objective is not None
    plain = source(ENTROPY, embgrad.TokenBatch(BATCH.ids))
    assert [variants(cause, plain) for cause in ("mask-ignored", "pads-counted", "types-ignored", "padding-side")] == [
        []
    ] * 4
    padded = source(ENTROPY, embgrad.TokenBatch(BATCH.ids, BATCH.mask, np.zeros((2, 4), int)))
    assert variants("types-ignored", padded) == []
    whole = source(ENTROPY, embgrad.TokenBatch(BATCH.ids, None, BATCH.types))
    assert len(variants("types-ignored", whole)) == 2


def test_a_request_with_the_padding_on_the_other_side() -> None:
    (left,) = variants("padding-side", source(ENTROPY))
    assert (left.text, left.moved, left.objective) == ("that b was padded on the left", True, None)
    assert left.batch is not None
    moved = left.batch(BATCH)
    assert moved.ids.tolist() == [[1, 5, 9, 5], [0, 1, 7, 2]]
    assert (moved.mask is not None and moved.mask.tolist()) == [[1, 1, 1, 1], [0, 1, 1, 1]]
    assert (moved.types is not None and moved.types.tolist()) == [[0, 0, 1, 1], [0, 0, 0, 0]]
    assert _padded_on(embgrad.TokenBatch(BATCH.ids, BATCH.mask), "left").types is None
    (right,) = variants("padding-side", source(ENTROPY, moved))
    assert right.batch is not None
    assert right.batch(moved).ids.tolist() == BATCH.ids.tolist()
    labels = np.array([[0, 1, 2, 0], [1, 2, 0, -100]])
    at = source(ENTROPY)
    at.objective = embgrad.CrossEntropy(labels, "probabilities", output="tags", position=1)
    objective = _with_moved_labels(at, "left")
    assert isinstance(objective, embgrad.CrossEntropy)
    assert objective.describe() == {**at.objective.describe(), "labels": [[0, 1, 2, 0], [-100, 1, 2, 0]]}


def test_requests_with_other_ids() -> None:
    found = [variant for variant in variants("other-ids", source(ENTROPY)) if "each id" in variant.text]
    assert [variant.text for variant in found] == [f"that b looked up each id {offset}" for offset in ("+1", "+2")]
    assert found[1].batch is not None
    assert found[1].batch(BATCH).ids.tolist() == (BATCH.ids + 2).tolist()
    low = source(ENTROPY, embgrad.TokenBatch(BATCH.ids + 2))
    texts = [variant.text[-2:] for variant in variants("other-ids", low)]
    assert texts == ["-1", "-2"]


def test_the_rows_that_b_looked_up_show_its_ids() -> None:
    """The rows are small: what is near them is another one."""
    model = ReferenceModel(forward, {"E": 1e-3 * TABLE, "T": TABLE[:2], "W": HEAD})
    batch = embgrad.TokenBatch(BATCH.ids, BATCH.mask)
    result = embgrad.gradients(model, batch, ENTROPY)
    rows = np.array([[1, 5, 9, 5], [1, 7, 3, 0]])
    target = replace(result, activations=1e-3 * TABLE[rows])
    text = "that b looked up other rows of the same table, such as 3 for the id 2 at example 1"
    for shown, wanted in ((target, [text]), (result, [])):
        at = source_of(Case(result, shown, aligned(result, shown), 1e-9, model))
        assert isinstance(at, Source)
        texts = [variant.text for variant in variants("other-ids", at) if "rows" in variant.text]
        assert [text.partition(", position")[0] for text in texts] == wanted


def test_requests_at_other_points_and_with_a_scaled_lookup() -> None:
    at = source(ENTROPY)
    texts = [variant.text for variant in variants("other-point", at)]
    assert texts == ["that b was taken after the embedding block (with its norm), and not at 'word'"]
    up, down = variants("scaled-lookup", at)
    assert [up.text, down.text] == ["that b multiplies its lookup by √8", "that b lacks the factor √8 after its lookup"]
    assert (up.times, down.times) == (8**0.5, 8**-0.5)
    np.testing.assert_allclose(up.override["word"](TABLE), TABLE * 8**0.5)  # type: ignore[index]


def texts_of(objective: Objective, target: Objective | None = None) -> list[tuple[str, str]]:
    return [(variant.causes[0], variant.text) for variant in other_objectives(source(objective, target=target))]


def test_other_objectives_of_a_cross_entropy() -> None:
    of = "that b is the gradient of"
    assert texts_of(ENTROPY) == [
        ("sum-objective", f"{of} the sum of the output, and not of the cross-entropy"),
        ("probability-objective", f"{of} the probability, and not of the cross-entropy"),
        ("other-objective", f"{of} the logit alone, and not of the cross-entropy"),
        ("label-shift", "that b's labels are each +1"),
        ("label-shift", "that b's labels are each -1"),
        ("label-shift", "that b's labels are those of the example before"),
    ]
    labels = [variant.objective for variant in other_objectives(source(ENTROPY)) if variant.causes == ("label-shift",)]
    assert [each.labels.tolist() for each in labels if isinstance(each, embgrad.CrossEntropy)] == [
        [0, 1],
        [1, 2],
        [0, 2],
    ]


def test_other_objectives_of_a_logit_and_a_sum() -> None:
    of = "that b is the gradient of"
    logit = embgrad.Logit([2, 0])
    assert texts_of(logit) == [
        ("sum-objective", f"{of} the sum of the output, and not of the logit"),
        ("probability-objective", f"{of} the probability, and not of the logit"),
        ("other-objective", f"{of} the cross-entropy, and not of the logit"),
        ("label-shift", f"{of} the logit +1"),
        ("label-shift", f"{of} the logit -1"),
    ]
    moved = [variant.objective for variant in other_objectives(source(logit)) if variant.causes == ("label-shift",)]
    assert [np.asarray(each.index).tolist() for each in moved if isinstance(each, embgrad.Logit)] == [[0, 1], [1, 2]]
    assert texts_of(embgrad.Sum()) == []
    assert texts_of(embgrad.Sum(), ENTROPY) == [("other-objective", "the objective: b's is the cross-entropy")]
    assert texts_of(ENTROPY, ENTROPY) == texts_of(ENTROPY)
    text = texts_of(ENTROPY, embgrad.CrossEntropy([1, 1]))[-1][1]
    assert text.startswith("the objective: b's is CrossEntropy(labels=[1, 1]")


def test_labels_of_positions_are_shifted() -> None:
    labels = np.array([[0, 1, 2, 0], [1, 2, 0, -100]])
    at = source(ENTROPY)
    at.objective = embgrad.CrossEntropy(labels)
    found = [variant for variant in other_objectives(at) if variant.causes == ("label-shift",)]
    assert [variant.text for variant in found] == [f"that b's labels are shifted by {n} position" for n in ("+1", "-1")]
    moved = [each.objective.labels.tolist() for each in found if isinstance(each.objective, embgrad.CrossEntropy)]
    assert moved == [[[-100, 0, 1, 2], [-100, 1, 2, 0]], [[1, 2, 0, -100], [2, 0, -100, -100]]]


def test_the_probability_of_an_entry_by_hand() -> None:
    head = np.log(np.array([[1.0, 3.0]]))
    model = ReferenceModel(
        lambda m, input_ids: lookup(m["E"], input_ids).sum(1) @ m["W"], {"E": np.ones((3, 1)), "W": head}
    )
    result = embgrad.gradients(model, [[1]], Probability([1]))
    np.testing.assert_allclose(result.objective, [3 / 4])
    np.testing.assert_allclose(result.values, [[[3 / 4 * 1 / 4 * np.log(3)]]])
    values, slopes = Probability([1]).evaluate(np.log([[1.0, 2.0, 1.0]]) + 700, embgrad.TokenBatch([[1]]))
    np.testing.assert_allclose(values, [1 / 2])
    np.testing.assert_allclose(slopes, [[-1 / 8, 1 / 4, -1 / 8]])  # p (1 - p), and -p q


@pytest.mark.parametrize(("count", "start"), [(6, 0), (9, 3)])
def test_six_examples_with_padding_are_run(count: int, start: int) -> None:
    ids = np.ones((count, 3), int)
    mask = np.ones((count, 3), int)
    mask[-3:, 2] = 0
    whole = result(ids=ids, mask=mask)
    window = _window(Case(whole, whole, aligned(whole, whole), 1e-6))
    assert (window.start, window.stop) == (start, start + 6)


def test_a_result_remembers_the_form_of_its_batch() -> None:
    batch = batch_of_result(embgrad.gradients(MODEL, BATCH, ENTROPY))
    assert (batch.convention, batch.mask_is_bool) == ("huggingface", False)
    assert (batch.ids.tolist(), batch.types is not None) == (BATCH.ids.tolist(), True)


def test_another_model_is_asked_in_the_form_in_which_it_takes_a_batch() -> None:
    whole = embgrad.gradients(MODEL, BATCH, ENTROPY)
    form = {"convention": "tfhub", "mask_is_bool": True}
    asked = source(ENTROPY).asked_of(MODEL, None, replace(whole, provenance={**whole.provenance, **form}))
    assert asked is not None
    assert {name: getattr(asked.batch, name) for name in form} == form
    assert asked.batch.ids.tolist() == BATCH.ids.tolist()


def test_a_difference_of_two_models_is_divided_where_something_explains_nothing_more() -> None:
    at = source(ENTROPY)
    other = ReferenceModel(forward, {"E": TABLE, "T": TABLE[:2], "W": 2 * HEAD})
    theirs = embgrad.gradients(other, BATCH, ENTROPY)
    for model, target, wanted in (
        (MODEL, at.case.target, (False, True)),
        (MODEL, replace(at.case.target, values=3 * at.case.target.values), (False, False)),
        (other, theirs, (True, True)),
    ):
        case = replace(at.case, target=target)
        division = divided(Source(case, at.batch, ENTROPY, None, at.examples), model, None, lambda _: [][0])
        assert isinstance(division, Division)
        assert (division.by_models, division.is_whole, division.rest) == (*wanted, None)


def test_a_variant_is_run_as_the_source_was_but_for_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def run(*arguments: Any, **options: Any) -> EmbeddingGradients:
        given[:] = [*arguments, options]
        return whole

    monkeypatch.setattr(rerun, "gradients", run)
    at = source(ENTROPY)
    whole = at.case.source
    own = {"at": "word", "call": None, "training": False, "pads": "keep", "split": False, "override": None}
    at.result(AS_IT_WAS)
    assert given == [MODEL, at.batch, at.objective, own]
    recorded = replace(whole, provenance={**whole.provenance, "pads": "zero", "split": True})
    at.case = replace(at.case, source=recorded, call=print)
    kinds: dict[str, Any] = {"at": "layer.0", "training": True, "override": {"word": TABLE}}
    at.result(Variant(("x",), "", lambda batch: batch[:1], logit := embgrad.Logit(1), **kinds))
    assert [given[0], given[1].shape, *given[2:]] == [
        *(MODEL, (1, 4), logit),
        {**own, **kinds, "call": print, "pads": "zero", "split": True},
    ]


def test_shares_of_a_tied_head_at_each_position() -> None:
    """The share of a row that no logit reaches is zero."""

    def tied(m: Any, input_ids: Any) -> Any:
        return lookup(m["E"], input_ids).sum(1) @ m["E"].swap(0, 1)

    model = ReferenceModel(tied, {"E": TABLE})
    result = embgrad.gradients(model, BATCH.ids, embgrad.Logit([2, 5]))
    at = source_of(Case(result, result, aligned(result, result), 1e-9, model))
    assert isinstance(at, Source)
    (text, whole), (_, added), (_, alone) = head_shares(at)
    assert text.startswith("that b holds the tied table's whole gradient")
    head = np.zeros_like(TABLE)
    head[[2, 5]] = TABLE[BATCH.ids].sum(1)
    np.testing.assert_allclose(alone, head[BATCH.ids])
    np.testing.assert_allclose(added, result.values + alone)
    rows = np.zeros_like(TABLE)
    np.add.at(rows, BATCH.ids, result.values)
    np.testing.assert_allclose(whole, (rows + head)[BATCH.ids])


def test_a_variant_may_replace_weights() -> None:
    at = source(ENTROPY)
    own = at.values(Variant(("x",), ""))
    np.testing.assert_array_equal(own, at.case.values)
    doubled = at.values(Variant(("x",), "", weights={"W": 2 * HEAD}))
    wanted = embgrad.gradients(ReferenceModel(forward, {"E": TABLE, "T": TABLE[:2], "W": 2 * HEAD}), BATCH, ENTROPY)
    np.testing.assert_array_equal(doubled, wanted.values)
    np.testing.assert_array_equal(at.values(Variant(("x",), "", times=3.0)), 3 * at.case.values)
    assert at.values(Variant(("x",), "", at="nothing")) is None
    assert at.refused


def test_other_rows_for_the_same_ids_are_another_table() -> None:
    whole = embgrad.gradients(MODEL, BATCH, ENTROPY)

    def requested(**changes: Any) -> list[Variant]:
        other = replace(whole, activations=1.5 * whole.activations)
        target = replace(other, **changes)
        at = source_of(Case(whole, target, aligned(whole, target), 1e-9, MODEL))
        assert isinstance(at, Source)
        return variants("different-table", at)

    (found,) = requested()
    assert found.text == "the table: b looks up other values for the same ids (relative L2 0.5)"
    np.testing.assert_array_equal((found.override or {})["word"], 1.5 * whole.activations)
    assert requested(provenance={**whole.provenance, "point": "layer.0"}) == []
    assert requested(vocab=None) == []
    assert requested(activations=whole.activations) == []
    assert requested(ids=BATCH.ids + 20) == []  # the values may differ because the ids do
