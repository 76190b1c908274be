"""Models that take examples or positions in an order of their own, on the reference: what is put back, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.input_warnings import _rows
from embgrad.errors import AmbiguousPointError, ObjectiveError, PointNotReachedError, UnsupportedError
from embgrad.model_points.points import Lookup, Point
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.refusals import refused

VOCAB, DIM, CLASSES = 12, 3, 2
IDS = np.array([[3, 4, 0, 0], [5, 6, 7, 8], [9, 10, 3, 0]])
MASK = (IDS > 0).astype(int)
TOKENS = [[f"token {id_}" for id_ in row] for row in IDS]
BATCH = embgrad.TokenBatch(IDS, MASK, tokens=TOKENS)
WEIGHTS = {
    "table": np.random.default_rng(0).normal(size=(VOCAB, DIM)),
    "place": np.random.default_rng(1).normal(size=(8, DIM)),
    "W": np.random.default_rng(2).normal(size=(DIM, CLASSES)),
}
OBJECTIVE = embgrad.Logit([0, 1, 1])

Prepare = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def built(prepare: Prepare, *, takes_mask: bool = True, rows: int = VOCAB) -> ReferenceModel:
    """Return a model of tanh(E[ids] + P[position]), summed where the mask is 1.

    Args:
        prepare: takes ids and mask, and returns those to run with, and the examples' numbers in their order.
        takes_mask: whether the model has a mask; else 0 is padding.
        rows: the number of rows of the table.
    """

    def run(model: Any, input_ids: np.ndarray, mask: np.ndarray) -> Tensor:
        ids, real, order = prepare(input_ids, mask)
        rows = lookup(model["table"], ids) + Tensor(model["place"].value[: ids.shape[1]][None])
        hidden = model.module("layers.0", lambda x: x.tanh(), rows)
        hidden = model.module("layers.1", lambda x: x * 1.0, hidden)
        return (
            Tensor(np.eye(len(ids))[np.argsort(order)]) @ (hidden * Tensor(real[..., None] * 1.0)).sum(1) @ model["W"]
        )

    def with_mask(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        return run(model, input_ids, attention_mask)

    def without(model: Any, input_ids: np.ndarray) -> Tensor:
        return run(model, input_ids, (input_ids != 0).astype(int))

    weights = {**WEIGHTS, "table": WEIGHTS["table"][:rows]}
    return ReferenceModel(with_mask if takes_mask else without, weights, ["layers.0", "layers.1"])


def by_length(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order = np.argsort(-mask.sum(1), kind="stable")
    return ids[order], mask[order], order


def by_length_upwards(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order = np.argsort(mask.sum(1), kind="stable")
    return ids[order], mask[order], order


def backwards(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reverse each text, and leave its padding where it is."""
    lengths, place = mask.sum(1)[:, None], np.arange(ids.shape[1])[None]
    source = np.where(place < lengths, lengths - 1 - place, place)
    return np.take_along_axis(ids, source, 1), mask, np.arange(len(ids))


def in_place(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return ids, mask, np.arange(len(ids))


def shifted(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Put 2 before each text, and drop its last id, as decoders shift their labels."""
    moved = np.concatenate([np.full_like(ids[:, :1], 2), ids[:, :-1]], 1)
    return moved, mask, np.arange(len(ids))


def sharing(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read rare ids as 1, each at its own position."""
    return np.where(ids > 8, 1, ids), mask, np.arange(len(ids))


def in_window(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    widths = ((0, 0), (0, -ids.shape[1] % 6))
    return np.pad(ids, widths, constant_values=11), np.pad(mask, widths), np.arange(len(ids))


def after_a_prefix(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Put an id of the batch before each text."""
    widths = ((0, 0), (3, 0))
    return np.pad(ids, widths, constant_values=7), np.pad(mask, widths), np.arange(len(ids))


def by_length_in_window(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids, mask, order = by_length(ids, mask)
    return *in_window(ids, mask)[:2], order


def placed(prepare: Prepare, batch: embgrad.TokenBatch) -> Iterator[tuple[int, int, int]]:
    """Yield example and position of each real id with its column in the model, found by numbers in place of ids."""
    numbers = 100 + np.arange(batch.ids.size).reshape(batch.shape)
    taken, real, order = prepare(np.where(batch.real, numbers, 0), batch.mask)
    for row, column in np.argwhere((taken >= 100) & (real == 1)).tolist():
        example, position = divmod(int(taken[row, column]) - 100, batch.shape[1])
        assert example == order[row]
        yield example, position, column


def by_hand(prepare: Prepare, batch: embgrad.TokenBatch, classes: np.ndarray) -> np.ndarray:
    gradient = np.zeros((*batch.shape, DIM))
    for example, position, column in placed(prepare, batch):
        bent = np.tanh(WEIGHTS["table"][batch.ids[example, position]] + WEIGHTS["place"][column])
        gradient[example, position] = (1 - bent**2) * WEIGHTS["W"][:, classes[example]]
    return gradient


@pytest.mark.parametrize("takes_mask", [True, False])
@pytest.mark.parametrize(
    "prepare", [by_length, by_length_upwards, backwards, in_place, in_window, after_a_prefix, by_length_in_window]
)
def test_word_is_in_the_batchs_order(prepare: Prepare, takes_mask: bool) -> None:
    model = built(prepare, takes_mask=takes_mask)
    batch = BATCH if takes_mask else embgrad.TokenBatch(IDS, tokens=TOKENS)
    expected = by_hand(prepare, BATCH, np.array([0, 1, 1]))
    for options in ({}, {"batch_size": 1}, {"batch_size": 2}, {"split": True}, {"check": True}):
        for at in ("word", "table"):
            result = embgrad.gradients(model, batch, OBJECTIVE, at=at, **options)
            np.testing.assert_allclose(result.values, expected, atol=1e-14)
            assert result.tokens == BATCH.tokens
            assert result.ids.tolist() == IDS.tolist()
    if takes_mask:
        assert embgrad.gradients(model, batch, OBJECTIVE, at="table", pads="zero").mask.tolist() == MASK.tolist()
        attribution = embgrad.attribute(model, batch, OBJECTIVE, "input_x_gradient")
        np.testing.assert_allclose(attribution.scores, (expected * WEIGHTS["table"][IDS]).sum(-1), atol=1e-14)
        assert [word.text for word in attribution.words()[0]] == TOKENS[0][:2]


@pytest.mark.parametrize("prepare", [by_length, backwards, in_window, after_a_prefix, by_length_in_window])
def test_values_are_replaced_in_the_batchs_order(prepare: Prepare) -> None:
    model, classes = built(prepare), np.array([0, 1, 1])
    new, expected = np.random.default_rng(3).normal(size=(*IDS.shape, DIM)), np.zeros(len(IDS))
    for example, position, column in placed(prepare, BATCH):
        bent = np.tanh(new[example, position] + WEIGHTS["place"][column])
        expected[example] += bent @ WEIGHTS["W"][:, classes[example]]
    for changes in ({"override": {"word": new}}, {"add": {"word": new - WEIGHTS["table"][IDS]}}):
        np.testing.assert_allclose(embgrad.evaluate(model, BATCH, OBJECTIVE, **changes), expected, atol=1e-12)
    result = embgrad.gradients(model, BATCH, OBJECTIVE, edit={"word": lambda gradient: gradient * new})
    np.testing.assert_allclose(result.values, by_hand(prepare, BATCH, classes) * new, atol=1e-14)


def test_a_row_of_ids_that_holds_the_real_ones_of_each_example_after_another() -> None:
    def in_a_row(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = lookup(model["table"], input_ids[attention_mask == 1][None]).tanh()
        ends = attention_mask.sum(1).cumsum() - 1
        return Tensor(np.eye(rows.shape[1])[ends]) @ rows.reshape(*rows.shape[1:]) @ model["W"]

    result = embgrad.gradients(ReferenceModel(in_a_row, dict(WEIGHTS)), BATCH, OBJECTIVE)
    ends, expected = (np.arange(3), MASK.sum(1) - 1), np.zeros((*IDS.shape, DIM))
    expected[ends] = (1 - np.tanh(WEIGHTS["table"][IDS[ends]]) ** 2) * WEIGHTS["W"].T[[0, 1, 1]]
    np.testing.assert_allclose(result.values, expected, atol=1e-14)
    np.testing.assert_array_equal(result.ids, IDS)
    np.testing.assert_array_equal(result.activations, WEIGHTS["table"][IDS] * MASK[..., None])
    assert result.pad_leak == 0


def test_word_and_a_module_that_follow_in_one_call() -> None:
    model = built(by_length)
    both = embgrad.gradients(model, BATCH, OBJECTIVE, at=["word", "layers.0"])
    assert both["word"].tokens == BATCH.tokens
    assert both["layers.0"].tokens is None
    assert both["layers.0"].mask is None


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("prepare", [by_length, by_length_upwards])
def test_what_follows_in_another_order_has_no_tokens(prepare: Prepare, count: int) -> None:
    model = built(prepare)
    batch = embgrad.TokenBatch(np.tile(IDS, (count, 1)), np.tile(MASK, (count, 1)), tokens=TOKENS * count)
    objective = embgrad.Logit(1)
    result = embgrad.gradients(model, batch, objective, at="layers.0")
    assert (result.tokens, result.mask) == (None, None)
    with refused(UnsupportedError, "nothing shows that the entries at the point 'layers.0'", "output of a module"):
        embgrad.attribute(model, batch, objective, "saliency", at="layers.0")
    with refused(UnsupportedError, "'layers.0' has its examples in an order of the model's own", "Omit them"):
        embgrad.gradients(model, batch, objective, at="layers.0", split=True)
    with refused(UnsupportedError, "the point 'layer.0' is", "an order of its own", "name the point by its path"):
        embgrad.gradients(model, batch, objective, at="layer.0")


def test_sub_batches_of_which_one_is_in_another_order() -> None:
    model = built(by_length)
    batch = embgrad.TokenBatch(IDS[[1, 0, 0, 1]], MASK[[1, 0, 0, 1]])  # the first two are in order
    with refused(UnsupportedError, "'layers.0' has its examples in an order of the model's own"):
        embgrad.gradients(model, batch, embgrad.Logit(1), at="layers.0", batch_size=2)


def test_what_follows_in_the_batchs_order_has_its_tokens() -> None:
    for prepare in (in_place, sharing):
        result = embgrad.gradients(built(prepare), BATCH, OBJECTIVE, at="layers.0")
        assert result.tokens == BATCH.tokens
        assert result.mask.tolist() == MASK.tolist()

    def beside_distinct_ids(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        ids, *_ = sharing(input_ids, attention_mask)  # in the probes the number of distinct ids is another
        rows = model.module("layers.0", lambda x: x.tanh(), lookup(model["table"], ids))
        rows = (rows * Tensor(attention_mask[..., None] * 1.0)).sum(1)
        return (rows + lookup(model["table"], np.unique(ids)).sum(0)) @ model["W"]

    model = ReferenceModel(beside_distinct_ids, dict(WEIGHTS), ["layers.0"])
    assert embgrad.gradients(model, BATCH, OBJECTIVE, at="layers.0").tokens == BATCH.tokens


def test_ids_that_are_dropped_or_changed_leave_the_table_without_tokens() -> None:
    for prepare in (shifted, sharing):
        model = built(prepare)
        with refused(PointNotReachedError, "no lookup whose indices are the batch's ids", "'table' for the rows"):
            embgrad.gradients(model, BATCH, OBJECTIVE)
        result = embgrad.gradients(model, BATCH, OBJECTIVE, at="table")
        assert (result.tokens, result.mask, result.words_of) == (None, None, None)
        assert result.ids.tolist() == prepare(IDS, MASK)[0].tolist()
        with refused(UnsupportedError, "nothing shows that the entries at the point 'table'"):
            embgrad.attribute(model, BATCH, OBJECTIVE, "saliency", at="table")
    assert embgrad.gradients(built(shifted), BATCH, OBJECTIVE, at="layers.0").tokens is None


def test_an_order_that_no_probe_shows_is_refused() -> None:
    def by_content(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.sort(ids, 1), mask, np.arange(len(ids))

    with refused(
        PointNotReachedError,
        "the indices of table#0 (12 rows × 3, indices of shape (3, 4)) hold the batch's ids, of shape (3, 4)",
        "did not show",
        "name the table with at=...",
    ):
        embgrad.gradients(built(by_content), BATCH, OBJECTIVE)


@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        ([[3, 4, 3]], VOCAB),
        ([[5, 6], [5, 6]], VOCAB),
        ([[3, 4, 3], [7, 7, 0]], VOCAB),
        ([[1, 1, 0]], VOCAB),
        ([[0, 1, 0]], 2),
    ],
)
def test_ids_that_read_the_same_both_ways_hide_no_order(ids: list[list[int]], rows: int) -> None:
    batch = embgrad.TokenBatch(ids, (np.array(ids) >= (rows > 2)).astype(int))

    def examples_backwards(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        order = np.arange(len(ids))[::-1]
        return ids[order], mask[order], order

    classes = np.arange(len(ids)) % 2
    for prepare in (in_place, backwards, examples_backwards):
        result = embgrad.gradients(built(prepare, rows=rows), batch, embgrad.Logit(classes))
        np.testing.assert_allclose(result.values, by_hand(prepare, batch, classes), atol=1e-14)


def test_ordinary_models_take_one_pass_and_no_warning() -> None:
    passes: list[int] = []

    def counted(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        passes.append(len(ids))
        return in_place(ids, mask)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embgrad.gradients(built(counted), BATCH, OBJECTIVE)
        embgrad.gradients(built(counted), BATCH, OBJECTIVE, at=["word", "layer.0"], batch_size=2)
    assert passes == [3, 2, 1]


def test_a_window_is_remembered() -> None:
    passes: list[int] = []

    def counted(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        passes.append(len(ids))
        return in_window(ids, mask)

    model = built(counted)
    embgrad.gradients(model, BATCH, OBJECTIVE)
    assert len(passes) > 1
    passes.clear()
    embgrad.gradients(model, embgrad.TokenBatch(IDS[:2] + MASK[:2], MASK[:2]), embgrad.Logit(1))
    assert passes == [2]


def test_that_ids_read_forward_is_remembered_for_batches_of_one_form() -> None:
    passes: list[list[list[int]]] = []

    def counted(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        passes.append(ids.tolist())
        return in_place(ids, mask)

    model, batch = built(counted), embgrad.TokenBatch([[3, 4, 3]], [[1, 1, 1]])
    embgrad.gradients(model, batch, embgrad.Logit(0))
    assert passes == [[[3, 4, 3]], [[4, 4, 3]]]  # the batch, and the first id as another of the batch's
    passes.clear()
    embgrad.gradients(model, batch.replace(ids=[[5, 6, 5]]), embgrad.Logit(0))
    assert passes == [[[5, 6, 5]]]
    passes.clear()
    embgrad.gradients(model, embgrad.TokenBatch([[3, 4, 4, 3]], [[1, 1, 1, 1]]), embgrad.Logit(0))  # another form
    assert passes == [[[3, 4, 4, 3]], [[4, 4, 4, 3]]]
    for only, other in ((3, 1), (1, 2)):  # an id that the batch has not, and that is no padding
        embgrad.gradients(built(counted), embgrad.TokenBatch([[only] * 2], [[1, 1]]), embgrad.Logit(0))
        assert passes[-1] == [[other, only]]
    embgrad.gradients(built(counted), embgrad.TokenBatch([[3, 0, 4, 0, 3]], [[1] * 5]), embgrad.Logit(0))
    assert passes[-1] == [[4, 0, 4, 0, 3]]


def test_a_batch_that_is_its_own_transpose_shows_its_axes_by_one_other_id() -> None:
    def transposed(model: Any, input_ids: np.ndarray) -> Tensor:
        places = Tensor(model["place"].value[: input_ids.shape[1], None])
        return ((lookup(model["table"], input_ids.T) + places).tanh() @ model["W"]).sum(0)

    for ids in ([[3, 4], [4, 5]], [[1, 1], [1, 1]], [[0, 0], [0, 0]], [[3, 4, 5], [4, 6, 7], [5, 7, 8]]):
        result = embgrad.gradients(ReferenceModel(transposed, dict(WEIGHTS)), ids, embgrad.Logit(1))
        bent = np.tanh(WEIGHTS["table"][np.array(ids)] + WEIGHTS["place"][: len(ids)])
        np.testing.assert_allclose(result.values, (1 - bent**2) * WEIGHTS["W"][:, 1], atol=1e-14)


def test_the_only_lookup_that_holds_the_ids_is_word_though_its_order_is_unknown() -> None:
    def by_content(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.sort(ids, 1), mask, np.arange(len(ids))

    table = embgrad.tables.table_gradients(
        built(by_content), BATCH, OBJECTIVE
    )  # which sums over the lookup, in any order
    rows = embgrad.gradients(built(by_content), BATCH, OBJECTIVE, at="table")
    np.testing.assert_allclose(table.total.sum(0), rows.values.sum((0, 1)), atol=1e-14)
    with refused(PointNotReachedError, "the indices of table#0", "in an order that", "did not show"):
        embgrad.gradients(built(by_content), BATCH, OBJECTIVE, at=["word", "layers.0"])

    def twice(model: Any, input_ids: np.ndarray) -> Tensor:
        first = lookup(model["table"], np.sort(input_ids, 1)).sum(1)
        return (first + lookup(model["table"], np.sort(input_ids, 1)[:, ::-1]).tanh().sum(1)) @ model["W"]

    with refused(AmbiguousPointError, "'word' fits 2 lookups", "table#0", "table#1", "name one of them"):
        embgrad.gradients(ReferenceModel(twice, dict(WEIGHTS)), IDS, OBJECTIVE)


def test_outputs_at_virtual_tokens_do_not_count() -> None:
    def prompted(model: Any, input_ids: np.ndarray) -> Tensor:
        ids = np.concatenate([np.full((len(input_ids), 2), 11), input_ids], 1)
        return (lookup(model["table"], ids) + Tensor(model["place"].value[: ids.shape[1]][None])).tanh() @ model["W"]

    model, batch = ReferenceModel(prompted, dict(WEIGHTS)), embgrad.TokenBatch([[3, 4, 5], [6, 7, 8]])

    def cut(model: Any, inputs: Any) -> Tensor:
        return model(**inputs)[:, 2:]

    bent = np.tanh(WEIGHTS["table"][batch.ids] + WEIGHTS["place"][2:5])
    slopes = (1 - bent**2) * WEIGHTS["W"][:, 1]
    for call in (None, cut):
        result = embgrad.gradients(model, batch, embgrad.Logit(1, position=-1), call=call)
        np.testing.assert_allclose(result.values[:, -1], slopes[:, -1], atol=1e-14)
        assert not result.values[:, :-1].any()
        np.testing.assert_allclose(
            embgrad.gradients(model, batch, embgrad.Logit(1), call=call).values, slopes, atol=1e-14
        )


def test_outputs_at_virtual_tokens_that_nothing_tells_apart_are_cut_off_by_the_users_call() -> None:
    def mixed(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["table"], np.concatenate([np.full((len(input_ids), 2), 11), input_ids], 1))
        return (rows + rows.mean(1).reshape(len(input_ids), 1, rows.shape[-1])) @ model["W"]

    model, batch = ReferenceModel(mixed, dict(WEIGHTS)), embgrad.TokenBatch([[3, 4, 5], [6, 7, 8]])
    for objective in (embgrad.Logit(1, position=-1), embgrad.Logit(1)):
        with refused(
            ObjectiveError,
            "(2, 5, 2)",
            "cut off the 2 that the model adds",
            "model(**inputs)[:, 2:]",
            "model(**inputs).logits[:, 2:]",
        ):
            embgrad.gradients(model, batch, objective)


def test_searches_name_what_they_cannot_score() -> None:
    def twice(model: Any, input_ids: np.ndarray) -> Tensor:
        return (lookup(model["table"], input_ids) + lookup(model["other"], input_ids).tanh()).sum(1) @ model["W"]

    weights = {**WEIGHTS, "other": WEIGHTS["table"] * 2}
    model, batch = ReferenceModel(twice, weights), embgrad.TokenBatch([[3, 4]])
    for name, call in (
        ("embgrad.search", lambda: embgrad.search(model, batch, embgrad.Logit(1), embgrad.methods.HotFlip(steps=1))),
        ("embgrad.substitutions", lambda: embgrad.substitutions(model, batch, embgrad.Logit(1))),
    ):
        with refused(
            AmbiguousPointError,
            f"{name} scores tokens",
            "several times: table#0",
            "at=['word#0', 'word#1']",
        ):
            call()
    both = embgrad.gradients(model, batch, embgrad.Logit(1), at=["word#0", "word#1"])
    assert list(both) == ["word#0", "word#1"]
    replaced = embgrad.evaluate(model, embgrad.TokenBatch([[5, 4]]), embgrad.Logit(1))
    table, other = weights["table"], weights["other"]
    np.testing.assert_allclose(
        replaced, (table[[5, 4]] + np.tanh(other[[5, 4]])).sum(0) @ weights["W"][:, 1:], atol=1e-14
    )


def test_positions_of_examples_in_an_order_of_their_own_are_refused_by_role() -> None:
    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        ids, real, order = by_length(input_ids, attention_mask)
        counted = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
        hidden = (lookup(model["table"], ids) + lookup(model["place"], counted)).tanh() * Tensor(real[..., None] * 1.0)
        return Tensor(np.eye(len(ids))[np.argsort(order)]) @ hidden.sum(1) @ model["W"]

    model, padded = ReferenceModel(forward, dict(WEIGHTS)), BATCH.take([0, 2]).replace(tokens=None)
    message = "in an order of its own, so that nothing shows which of them each row belongs to"
    with refused(UnsupportedError, "the point 'position' is place#0", message):
        embgrad.gradients(model, padded, embgrad.Logit([0, 1]), at="position")
    assert embgrad.gradients(model, padded, embgrad.Logit([0, 1]), at="place").mask is None


def test_what_a_lookup_in_another_order_lacks_it_lacks_at_later_calls() -> None:
    model = built(shifted)
    for _ in range(2):  # the second call knows what the names meant at the first
        assert embgrad.gradients(model, BATCH, OBJECTIVE, at="table").tokens is None
    model = built(in_place)
    for _ in range(2):
        assert embgrad.gradients(model, BATCH, OBJECTIVE, at="table").tokens is not None
        assert embgrad.gradients(model, BATCH, OBJECTIVE, at="layers.0").tokens is not None


def test_two_changed_ids_of_one_text_in_the_other_order_are_in_no_batchs_order() -> None:
    def changed_backwards(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.where(ids > 2, ids - 1, ids)[:, ::-1], mask, np.arange(len(ids))

    batch = embgrad.TokenBatch([[5, 8]], [[1, 1]], tokens=[["a", "b"]])
    assert embgrad.gradients(built(changed_backwards), batch, embgrad.Logit(0), at="layers.0").tokens is None


def test_a_row_is_compared_where_a_lookup_has_one_for_each_position() -> None:
    def point(indices: list[int], *roles: str) -> Point:
        found = Lookup("place", 0, np.array([indices]), 8, DIM, None)
        return Point("place#0", roles, (1, len(indices), DIM), found, "place#0")

    assert _rows(None, 3) is None
    assert _rows(Point("layers.0:output#0", (), (1, 3, DIM), None, "layers.0"), 3) is None
    assert _rows(point([4, 5, 6], "word"), 3) is None
    assert _rows(point([4, 5]), 3) is None
    assert list(_rows(point([4, 5, 6], "position"), 3)) == [4, 5, 6]
