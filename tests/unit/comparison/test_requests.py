"""The objectives, batches and points that another gradient may be of, and runs of a model for them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.comparison.align import aligned
from embgrad.comparison.diagnosis import requests, rerun
from embgrad.comparison.diagnosis.case import Case
from embgrad.comparison.diagnosis.objectives import OtherMask, Probability, other_objectives
from embgrad.comparison.diagnosis.requests import REQUESTS, head_shares
from embgrad.comparison.diagnosis.rerun import AS_IT_WAS, Source, Variant, _window, batch_of_result, source_of
from embgrad.objectives.objectives import Objective
from embgrad.results.gradients import EmbeddingGradients
from embgrad.testing.reference import ReferenceModel, lookup
from tests.unit.comparison.test_factors import result

TABLE = np.random.default_rng(0).normal(size=(12, 8))
HEAD = np.random.default_rng(1).normal(size=(8, 3))
BATCH = embgrad.TokenBatch([[1, 5, 9, 5], [1, 7, 2, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]], [[0, 0, 1, 1], [0, 0, 0, 0]])


def forward(model: Any, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
    rows = lookup(model["E"], input_ids)
    rows = rows if token_type_ids is None else rows + lookup(model["T"], token_type_ids)
    rows = rows if attention_mask is None else rows * attention_mask[:, :, None]
    return rows.sum(1).tanh() @ model["W"]


MODEL = ReferenceModel(forward, {"E": TABLE, "T": TABLE[:2], "W": HEAD})
ENTROPY = embgrad.CrossEntropy([2, 0])


def source_between(a: EmbeddingGradients, b: EmbeddingGradients, model: Any = MODEL) -> Source:
    found = source_of(Case(a, b, aligned(a, b), 1e-9, model))
    assert isinstance(found, Source)
    return found


def source(batch: embgrad.TokenBatch = BATCH, objective: Objective = ENTROPY) -> Source:
    own = embgrad.gradients(MODEL, batch, objective)
    return source_between(own, own)


def variants(cause: str, at: Any) -> list[Variant]:
    return [variant for name, kind in REQUESTS if name == cause for variant in kind(at)]


# Objectives


def others(objective: Any, classes: int = 5, recorded: Any = None, count: int = 3) -> list[tuple[str, str, str, Any]]:
    """Return the causes and texts, the classes of the objectives, and their entries or labels."""
    case = SimpleNamespace(source=SimpleNamespace(provenance={"output_shape": [count, classes]}))
    batch = embgrad.TokenBatch([[1, 2], [3, 4], [5, 6]])[:count]
    at: Any = SimpleNamespace(objective=objective, target="b", batch=batch, case=case, target_objective=recorded)
    made = []
    for variant in other_objectives(at):
        entry = getattr(variant.objective, "labels", getattr(variant.objective, "index", None))
        entries = None if entry is None else np.asarray(entry).tolist()
        made.append((variant.causes[0], variant.text, type(variant.objective).__name__, entries))
    return made


def instead(cause: str, what: str, own: str, name: str, entries: Any = None) -> tuple[str, str, str, Any]:
    return (cause, f"that b is the gradient of {what}, and not of {own}", name, entries)


def total(own: str) -> tuple[str, str, str, Any]:
    return instead("sum-objective", "the sum of the output", own, "Sum")


def shifted(text: str, name: str, entries: Any) -> tuple[str, str, str, Any]:
    return ("label-shift", f"that b{text}", name, entries)


LOGIT, LOSS = "the logit", "the cross-entropy"
OBJECTIVES: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {
    "a sum": (embgrad.Sum(), {}, []),
    "a logit": (
        embgrad.Logit(4),
        {},
        [
            total(LOGIT),
            instead("probability-objective", "the probability", LOGIT, "Probability", 4),
            instead("other-objective", LOSS, LOGIT, "CrossEntropy", [4, 4, 4]),
            shifted(" is the gradient of the logit +1", "Logit", 0),
            shifted(" is the gradient of the logit -1", "Logit", 3),
        ],
    ),
    "one of two logits": (
        embgrad.Logit([0, 1, 0]),
        {"classes": 2},
        [total(LOGIT), ..., ..., shifted(" is the gradient of the logit +1", "Logit", [1, 0, 1])],
    ),
    "a single logit": (embgrad.Logit(0), {"classes": 1}, [total(LOGIT), ..., ...]),
    "a cross-entropy": (
        embgrad.CrossEntropy([0, 1, 4]),
        {},
        [
            total(LOSS),
            instead("probability-objective", "the probability", LOSS, "Probability", [0, 1, 4]),
            instead("other-objective", "the logit alone", LOSS, "Logit", [0, 1, 4]),
            shifted("'s labels are each +1", "CrossEntropy", [1, 2, 0]),
            shifted("'s labels are each -1", "CrossEntropy", [4, 0, 3]),
            shifted("'s labels are those of the example before", "CrossEntropy", [4, 0, 1]),
        ],
    ),
    "of two classes": (
        embgrad.CrossEntropy([0]),
        {"classes": 2, "count": 1},
        [total(LOSS), ..., ..., shifted("'s labels are each +1", "CrossEntropy", [1])],
    ),
    "of one class": (embgrad.CrossEntropy([0, 0, 0]), {"classes": 1}, [total(LOSS), ..., ...]),
    "of probabilities": (
        embgrad.CrossEntropy([0], of="probabilities"),
        {"classes": 2, "count": 1},
        [total(LOSS), shifted("'s labels are each +1", "CrossEntropy", [1])],
    ),
    "labels of positions": (
        embgrad.CrossEntropy([[0, 1], [2, 0], [1, -100]]),
        {},
        [
            total(LOSS),
            shifted("'s labels are shifted by +1 position", "CrossEntropy", [[-100, 0], [-100, 2], [-100, 1]]),
            shifted("'s labels are shifted by -1 position", "CrossEntropy", [[1, -100], [0, -100], [-100, -100]]),
        ],
    ),
    "the same is recorded": (embgrad.Sum(), {"recorded": embgrad.Sum()}, []),
    "another is recorded": (
        embgrad.Sum(),
        {"recorded": embgrad.Logit(2)},
        [("other-objective", "the objective: b's is the logit", "Logit", 2)],
    ),
}


@pytest.mark.parametrize(("objective", "options", "expected"), OBJECTIVES.values(), ids=OBJECTIVES)
def test_the_objectives_that_are_tried(objective: Any, options: Any, expected: list[Any]) -> None:
    found = others(objective, **options)
    assert [one if one is ... else two for one, two in zip(expected, found, strict=True)] == expected


def test_other_labels_that_are_recorded_are_spelled() -> None:
    text = others(ENTROPY, recorded=embgrad.CrossEntropy([1, 1]), count=2)[-1][1]
    assert text.startswith("the objective: b's is CrossEntropy(labels=[1, 1]")


def test_other_objectives_are_of_the_same_output_and_position() -> None:
    where = {"output": "tags", "position": 1}
    for objective in (embgrad.CrossEntropy([0, 1], **where), embgrad.Logit([0, 1], **where)):
        at: Any = source()
        at.target_objective = None
        at.objective = objective
        found = [each.objective for each in other_objectives(at) if each.objective is not None]
        assert {(each.output, repr(each.position)) for each in found} == {("tags", repr(objective.position))}
    at.objective = embgrad.CrossEntropy([0, 1], of="probabilities")
    kept = [each.objective for each in other_objectives(at) if each.causes == ("label-shift",)]
    assert {each.of for each in kept if isinstance(each, embgrad.CrossEntropy)} == {"probabilities"}


def test_an_objective_with_a_mask_of_its_own() -> None:
    output = np.arange(18.0).reshape(3, 2, 3)
    masked = embgrad.TokenBatch([[1, 2], [3, 4], [5, 6]], [[1, 0], [1, 1], [1, 0]])
    for mask, kept in ((None, [15, 51, 87]), (np.array([[0, 1], [1, 0], [1, 1]]), [12, 21, 87])):
        values, slopes = OtherMask(embgrad.Sum(), mask).evaluate(output, masked)
        assert values.tolist() == kept
        np.testing.assert_array_equal(
            slopes, np.broadcast_to(np.ones((3, 2, 1)) if mask is None else mask[..., None], output.shape)
        )


def test_the_probability_of_an_entry_by_hand() -> None:
    head = np.log(np.array([[1.0, 3.0]]))
    model = ReferenceModel(
        lambda m, input_ids: lookup(m["E"], input_ids).sum(1) @ m["W"], {"E": np.ones((3, 1)), "W": head}
    )
    found = embgrad.gradients(model, [[1]], Probability([1]), at="E")
    np.testing.assert_allclose(found.objective, [3 / 4])
    np.testing.assert_allclose(found.values, [[[3 / 4 * 1 / 4 * np.log(3)]]])
    values, slopes = Probability([1]).evaluate(np.log([[1.0, 2.0, 1.0]]) + 700, embgrad.TokenBatch([[1]]))
    np.testing.assert_allclose(values, [1 / 2])
    np.testing.assert_allclose(slopes, [[-1 / 8, 1 / 4, -1 / 8]])  # p (1 - p), and -p q


# Batches


def batches(cause: str, at: Any) -> list[tuple[str, list[Any]]]:
    """Return the texts, and the ids, masks and types that are run."""
    made = [(one.text, one.batch) for one in variants(cause, at)]
    return [
        (text, [None if array is None else array.tolist() for array in (batch.ids, batch.mask, batch.types)])
        for text, batch in made
        if batch is not None
    ]


def test_requests_without_the_mask_and_the_types() -> None:
    at, (ids, mask, types) = source(), (array.tolist() for array in (BATCH.ids, BATCH.mask, BATCH.types))  # type: ignore[union-attr]
    assert batches("mask-ignored", at) == [
        ("that b ran without the mask", [ids, None, types]),
        ("that b ran without the mask, and counts padding", [ids, None, types]),
    ]
    assert [type(one.objective) for one in variants("mask-ignored", at)] == [OtherMask, type(None)]
    (counted,) = variants("pads-counted", at)
    assert (counted.text, counted.batch) == ("that b's objective counts padding", None)
    assert isinstance(counted.objective, OtherMask)
    assert batches("types-ignored", at) == [
        ("that b ran without the segment ids", [ids, mask, [[0] * 4] * 2]),
        ("that b ran without the segment ids", [ids, mask, None]),
        ("that b ran with the ids alone, without the segment ids and the mask", [ids, None, None]),
    ]
    alone = variants("types-ignored", at)[2]
    assert alone.causes == ("types-ignored", "mask-ignored")
    assert isinstance(alone.objective, OtherMask)
    plain = source(embgrad.TokenBatch(BATCH.ids))
    for cause in ("mask-ignored", "pads-counted", "types-ignored", "padding-side"):
        assert variants(cause, plain) == []
    assert variants("types-ignored", source(BATCH.replace(types=np.zeros((2, 4), int)))) == []
    assert len(variants("types-ignored", source(BATCH.replace(mask=None)))) == 2


def test_a_request_with_the_padding_on_the_other_side() -> None:
    moved = [[[1, 5, 9, 5], [0, 1, 7, 2]], [[1, 1, 1, 1], [0, 1, 1, 1]], [[0, 0, 1, 1], [0, 0, 0, 0]]]
    assert batches("padding-side", source()) == [("that b was padded on the left", moved)]
    (left,) = variants("padding-side", source())
    assert (left.moved, left.objective) == (True, None)
    back = batches("padding-side", source(embgrad.TokenBatch(*moved)))
    assert [(text, held[0]) for text, held in back] == [("that b was padded on the right", BATCH.ids.tolist())]
    assert batches("padding-side", source(BATCH.replace(types=None)))[0][1] == [*moved[:2], None]
    at = source()
    at.objective = embgrad.CrossEntropy([[0, 1, 2, 0], [1, 2, 0, -100]], "probabilities", output="tags", position=1)
    (left,) = variants("padding-side", at)
    assert isinstance(left.objective, embgrad.CrossEntropy)
    assert left.objective.describe() == {**at.objective.describe(), "labels": [[0, 1, 2, 0], [-100, 1, 2, 0]]}


@pytest.mark.parametrize(("partners", "cause"), [([1, 0], "other-ids"), ([1, 0], "padding-side"), ([1, -1], None)])
def test_the_batch_of_the_other_is_tried_in_the_order_of_the_examples(partners: list[int], cause: str | None) -> None:
    def tried(*, has_other_texts: bool = True) -> list[Variant]:
        at: Any = SimpleNamespace(
            batch=embgrad.TokenBatch([[1, 2], [3, 4]]),
            target="b",
            target_objective=None,
            case=SimpleNamespace(
                source=SimpleNamespace(vocab=None),
                target=SimpleNamespace(ids=np.array([[6, 7], [8, 9]]), mask=np.array([[1, 0], [1, 1]]), types=None),
                alignment=SimpleNamespace(examples=lambda: np.array(partners)),
                has_other_texts=has_other_texts,
                differs_only_in_padding=cause == "padding-side",
            ),
        )
        return variants("other-ids", at)

    assert [one.causes for one in tried()] == ([(cause,)] if cause else [])
    for one in tried():
        assert one.batch is not None
        assert one.batch.ids.tolist() == [[8, 9], [6, 7]]
        assert (one.batch.mask is not None and one.batch.mask.tolist(), one.batch.types) == ([[1, 1], [1, 0]], None)
    assert not tried(has_other_texts=False)


def test_requests_with_other_ids() -> None:
    assert [(text, ids) for text, (ids, *_) in batches("other-ids", source())] == [
        (f"that b looked up each id +{offset}", (BATCH.ids + offset).tolist()) for offset in (1, 2)
    ]
    low = source(embgrad.TokenBatch(BATCH.ids + 2))
    assert [text[-2:] for text, _ in batches("other-ids", low)] == ["-1", "-2"]


def test_the_rows_that_b_looked_up_show_its_ids() -> None:
    """The rows are small: what is near them is another one."""
    model = ReferenceModel(forward, {"E": 1e-3 * TABLE, "T": TABLE[:2], "W": HEAD})
    own = embgrad.gradients(model, embgrad.TokenBatch(BATCH.ids, BATCH.mask), ENTROPY)
    rows = np.array([[1, 5, 9, 5], [1, 7, 3, 0]])
    text = "that b looked up other rows of the same table, such as 3 for the id 2 at example 1, position 2"
    found = batches("other-ids", source_between(own, replace(own, activations=1e-3 * TABLE[rows]), model))
    assert [(text, ids) for text, (ids, *_) in found] == [(text, rows.tolist())]
    assert not any("rows" in text for text, _ in batches("other-ids", source_between(own, own, model)))


def test_tables_of_positions_are_found_by_their_name_or_their_role(monkeypatch: pytest.MonkeyPatch) -> None:
    def weight(name: str, *shape: int) -> Any:
        values = np.arange(float(np.prod(shape))).reshape(shape)
        return SimpleNamespace(
            name=name, canonical=None, module=name.partition(".")[0], shape=shape, get=lambda: values
        )

    held = [weight("Position.W", 4, 2), weight("words.W", 4, 2), weight("places.W", 5, 2), weight("places.b", 2)]
    points = [SimpleNamespace(path="places", roles=["position"]), SimpleNamespace(path="words", roles=["word"])]
    monkeypatch.setattr(requests, "weights_of", lambda _: [*held, weight("position.one", 1, 8)])
    monkeypatch.setattr(requests, "backend_for", lambda _: SimpleNamespace(points=lambda *_: points))
    made = [
        (variant.text[-2:], *(variant.weights or {}).items()) for variant in variants("position-ids-offset", source())
    ]
    assert [(text, name) for text, (name, _) in made] == [
        (text, name) for name in ("Position.W", "places.W") for text in ("+1", "+2", "-1", "-2")
    ]
    assert [rows[:, 0].tolist() for _, (_, rows) in made[:4]] == [
        [2, 4, 6, 0],
        [4, 6, 0, 2],
        [6, 0, 2, 4],
        [4, 6, 0, 2],
    ]


def test_other_rows_for_the_same_ids_are_another_table() -> None:
    whole = embgrad.gradients(MODEL, BATCH, ENTROPY)

    def requested(**changes: Any) -> list[Variant]:
        other = replace(whole, activations=1.5 * whole.activations)
        return variants("different-table", source_between(whole, replace(other, **changes)))

    (found,) = requested()
    assert found.text == "the table: b looks up other values for the same ids (relative L2 0.5)"
    np.testing.assert_array_equal((found.override or {})["word"], 1.5 * whole.activations)
    assert requested(provenance={**whole.provenance, "point": "layer.0"}) == []
    assert requested(vocab=None) == []
    assert requested(activations=whole.activations) == []
    assert requested(ids=BATCH.ids + 20) == []  # the values may differ because the ids do


# Points, and the lookup's scale


def test_requests_with_a_scaled_lookup() -> None:
    up, down = variants("scaled-lookup", source())
    assert [up.text, down.text] == ["that b multiplies its lookup by √8", "that b lacks the factor √8 after its lookup"]
    assert (up.times, down.times) == (8**0.5, 8**-0.5)
    np.testing.assert_allclose((up.override or {})["word"](TABLE), TABLE * 8**0.5)
    inside = source()
    inside.at = "layer.0"
    assert not variants("scaled-lookup", inside)


@pytest.mark.parametrize(
    ("at", "target", "points"),
    [("word", "layer.1", ["embeddings", "layer.1"]), ("embeddings", "layer.1", ["layer.1"]),
        ("layer.1", "layer.1", ["embeddings"]), ("word", None, ["embeddings"])],
)  # fmt: skip
def test_other_points_are_tried(at: str, target: str | None, points: list[str]) -> None:
    one = source()
    one.at = at
    one.case = replace(one.case, target=replace(one.case.target, provenance={"point": target}))
    found = variants("other-point", one)
    assert [variant.at for variant in found] == points
    texts = {
        "embeddings": f"that b was taken after the embedding block (with its norm), and not at {at!r}",
        "layer.1": "the point: b was taken at 'layer.1'",
    }
    assert [variant.text for variant in found] == [texts[point] for point in points]


def test_shares_of_a_tied_head_at_each_position() -> None:
    """The share of a row that no logit reaches is zero."""

    def tied(m: Any, input_ids: Any) -> Any:
        return lookup(m["E"], input_ids).sum(1) @ m["E"].swap(0, 1)

    model = ReferenceModel(tied, {"E": TABLE})
    own = embgrad.gradients(model, BATCH.ids, embgrad.Logit([2, 5]))
    (text, whole), (_, added), (_, alone) = head_shares(source_between(own, own, model))
    assert text.startswith("that b holds the tied table's whole gradient")
    head = np.zeros_like(TABLE)
    head[[2, 5]] = TABLE[BATCH.ids].sum(1)
    np.testing.assert_allclose(alone, head[BATCH.ids])
    np.testing.assert_allclose(added, own.values + alone)
    rows = np.zeros_like(TABLE)
    np.add.at(rows, BATCH.ids, own.values)
    np.testing.assert_allclose(whole, (rows + head)[BATCH.ids])


# Runs


@pytest.mark.parametrize(
    ("count", "split", "window"), [(6, False, (0, 6)), (9, False, (3, 9)), (12, False, (6, 12)), (9, True, (0, 9))]
)
def test_six_examples_with_padding_are_run_unless_examples_meet(
    count: int, split: bool, window: tuple[int, int]
) -> None:
    ids = np.ones((count, 3), int)
    mask = np.ones((count, 3), int)
    mask[-3:, 2] = 0
    whole = result(ids=ids, mask=mask)
    whole = replace(whole, provenance={**whole.provenance, "split": split})
    found = _window(Case(whole, whole, aligned(whole, whole), 1e-6))
    assert (found.start, found.stop) == window


def test_a_result_remembers_the_form_of_its_batch() -> None:
    whole = embgrad.gradients(MODEL, BATCH, ENTROPY)
    batch = batch_of_result(whole)
    assert (batch.convention, batch.mask_is_bool) == ("huggingface", False)
    assert (batch.ids.tolist(), batch.types is not None) == (BATCH.ids.tolist(), True)
    form = {"convention": "tfhub", "mask_is_bool": True}
    asked = source().asked_of(MODEL, None, replace(whole, provenance={**whole.provenance, **form}))
    assert asked is not None
    assert {name: getattr(asked.batch, name) for name in form} == form
    assert asked.batch.ids.tolist() == BATCH.ids.tolist()


def test_another_model_is_asked_for_its_own_gradient() -> None:
    other = ReferenceModel(forward, {"E": TABLE, "T": TABLE[:2], "W": 2 * HEAD})
    theirs = embgrad.gradients(other, BATCH, ENTROPY)
    at = source()
    asked = at.asked_of(other, None, theirs)
    assert asked is not None
    np.testing.assert_array_equal(asked.case.values, theirs.values)
    assert not at.gives(asked.case.values)
    assert at.gives(at.case.values)
    small = ReferenceModel(forward, {"E": TABLE[:, :4], "T": TABLE[:2, :4], "W": HEAD[:4]})
    assert at.asked_of(small, None, theirs) is None
    assert at.failure == ""
    assert at.asked_of(ReferenceModel(forward, {"E": TABLE}), None, theirs) is None
    assert at.failure


def test_a_variant_is_run_as_the_source_was_but_for_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def run(*arguments: Any, **options: Any) -> EmbeddingGradients:
        given[:] = [*arguments, options]
        return whole

    monkeypatch.setattr(rerun, "gradients", run)
    at = source()
    whole = at.case.source
    own = {"at": "word", "call": None, "training": False, "pads": "keep", "split": False, "override": None}
    at.result(AS_IT_WAS)
    assert given == [MODEL, at.batch, at.objective, own]
    recorded = replace(whole, provenance={**whole.provenance, "pads": "zero", "split": True})
    at.case = replace(at.case, source=recorded, call=print)
    kinds: dict[str, Any] = {"at": "layer.0", "training": True, "override": {"word": TABLE}}
    at.result(Variant(("x",), "", BATCH[:1], logit := embgrad.Logit(1), **kinds))
    assert [given[0], given[1].shape, *given[2:]] == [
        *(MODEL, (1, 4), logit),
        {**own, **kinds, "call": print, "pads": "zero", "split": True},
    ]


def test_a_variant_may_replace_weights() -> None:
    at = source()
    np.testing.assert_array_equal(at.values(AS_IT_WAS), at.case.values)
    doubled = at.values(Variant(("x",), "", weights={"W": 2 * HEAD}))
    wanted = embgrad.gradients(ReferenceModel(forward, {"E": TABLE, "T": TABLE[:2], "W": 2 * HEAD}), BATCH, ENTROPY)
    np.testing.assert_array_equal(doubled, wanted.values)
    np.testing.assert_array_equal(at.values(Variant(("x",), "", times=3.0)), 3 * at.case.values)
    assert at.values(Variant(("x",), "", at="nothing")) is None
    assert at.failure
    assert at.failures == {}  # an error of embgrad: the cause does not apply
