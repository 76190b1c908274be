"""Objectives: closed forms, finite differences, which positions count, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad import (
    BinaryCrossEntropy,
    CosineSimilarity,
    CrossEntropy,
    Logit,
    LogProbability,
    Margin,
    Objective,
    Probability,
    Projection,
    SquaredError,
    Sum,
    TokenBatch,
)
from embgrad.backend.objective_callback import BatchObjective
from embgrad.objectives.objectives import as_objectives, at_index
from tests.unit.refusals import refused
from tests.unit.tensorlike import TensorFlowLike

EXAMPLES, POSITIONS, CLASSES = 3, 4, 5
RIGHT = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
LEFT = RIGHT[:, ::-1]
BATCH = TokenBatch(np.arange(12).reshape(EXAMPLES, POSITIONS), RIGHT)

seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) * 3


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def expect_cotangent_is_slope(objective: Objective, output: np.ndarray, batch: TokenBatch = BATCH) -> None:
    """Expect that each entry of the cotangent is a central difference of the summed values."""
    values, cotangent = objective.evaluate(output, batch)
    assert values.shape == (len(batch),)
    assert values.dtype == cotangent.dtype == np.float64
    assert cotangent.shape == output.shape
    step = 1e-5
    for index in np.ndindex(*output.shape):
        moved = np.zeros_like(output)
        moved[index] = step
        high, low = objective.evaluate(output + moved, batch)[0], objective.evaluate(output - moved, batch)[0]
        slope = (high - low) / (2 * step)
        assert slope.sum() == pytest.approx(cotangent[index], rel=1e-6, abs=1e-7)
        assert not np.delete(slope, index[0]).any()  # an example's value depends on its own outputs alone


@given(seeds)
def test_cross_entropy_of_logits(seed: int) -> None:
    logits, labels = drawn(seed, EXAMPLES, CLASSES), np.random.default_rng(seed).integers(0, CLASSES, EXAMPLES)
    values, cotangent = CrossEntropy(labels).evaluate(logits, BATCH)
    against_label = np.exp(logits - logits[np.arange(3), labels][:, None]) - np.eye(CLASSES)[labels]
    np.testing.assert_allclose(values, np.log1p(against_label.sum(1)), rtol=1e-12)
    np.testing.assert_allclose(cotangent, softmax(logits) - np.eye(CLASSES)[labels], atol=1e-14)


@given(st.floats(1, 700))
def test_cross_entropy_of_a_confident_prediction_keeps_its_digits(lead: float) -> None:
    logits = np.array([[0.0, lead, 0.0], [lead, -lead, 0.0]])
    values, cotangent = CrossEntropy([1, 0]).evaluate(logits, TokenBatch([[1], [1]]))
    others = np.array([[1, 0, 1], [0, np.exp(-lead), 1]]) * np.exp(-lead)
    expected = others / (1 + others.sum(1, keepdims=True))
    expected[[0, 1], [1, 0]] = -expected.sum(1)
    np.testing.assert_allclose(values, np.log1p(others.sum(1)), rtol=1e-13)
    np.testing.assert_allclose(cotangent, expected, rtol=1e-13, atol=1e-300)  # a number below has fewer digits


@given(seeds)
def test_cross_entropy_of_probabilities(seed: int) -> None:
    logits, labels = drawn(seed, EXAMPLES, CLASSES), np.random.default_rng(seed).integers(0, CLASSES, EXAMPLES)
    probabilities = softmax(logits)
    values, cotangent = CrossEntropy(labels, of="probabilities").evaluate(probabilities, BATCH)
    np.testing.assert_allclose(values, CrossEntropy(labels).evaluate(logits, BATCH)[0], rtol=1e-9)
    expected = np.zeros_like(probabilities)
    expected[np.arange(3), labels] = -1 / probabilities[np.arange(3), labels]
    np.testing.assert_array_equal(cotangent, expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e3, 2.0**20, 1e300])
def test_cross_entropy_of_huge_logits_does_not_overflow(scale: float) -> None:
    logits = np.array([[2 * scale, scale, 0.0]])
    batch = TokenBatch([[1]])
    right, right_slope = CrossEntropy([0]).evaluate(logits, batch)
    wrong, wrong_slope = CrossEntropy([1]).evaluate(logits, batch)
    assert right.tolist() == [0.0]
    assert wrong.tolist() == [scale]
    assert right_slope.tolist() == [[0.0, 0.0, 0.0]]
    assert wrong_slope.tolist() == [[1.0, -1.0, 0.0]]


@pytest.mark.filterwarnings("error")
def test_classes_masked_with_minus_infinity() -> None:
    logits, batch = np.array([[1.0, -np.inf, 3.0]]), TokenBatch([[1]])
    values, cotangent = CrossEntropy([0]).evaluate(logits, batch)
    assert values[0] == pytest.approx(np.log1p(np.exp(2.0)))
    assert cotangent[0, 1] == 0
    assert np.isfinite(cotangent).all()
    assert Logit(2).evaluate(logits, batch)[0].tolist() == [3.0]
    assert Margin(0, against=2).evaluate(logits, batch)[0].tolist() == [-2.0]
    assert Margin(0).evaluate(logits, batch)[0].tolist() == [-2.0]
    for objective in (CrossEntropy([1]), Logit(1), Margin(0, 1)):
        with pytest.raises(embgrad.errors.ObjectiveError, match="inf at example 0"):
            objective.evaluate(logits, batch)


@given(seeds, st.integers(0, CLASSES - 1))
def test_logit_margin_sum_and_projection(seed: int, index: int) -> None:
    output, vector = drawn(seed, EXAMPLES, CLASSES), drawn(seed + 1, CLASSES)
    against = (index + 1) % CLASSES
    one_hot = np.eye(CLASSES)
    expected: dict[Objective, np.ndarray] = {
        Logit(index): np.tile(one_hot[index], (3, 1)),
        Logit([index, against, index]): one_hot[[index, against, index]],
        Margin(index, against): np.tile(one_hot[index] - one_hot[against], (3, 1)),
        Margin([index] * 3, against): np.tile(one_hot[index] - one_hot[against], (3, 1)),
        Sum(): np.ones((3, CLASSES)),
        Projection(vector): np.tile(vector, (3, 1)),
        Projection(output): output,
    }
    for objective, slopes in expected.items():
        values, cotangent = objective.evaluate(output, BATCH)
        np.testing.assert_array_equal(cotangent, slopes)
        np.testing.assert_allclose(values, (output * slopes).sum(1), rtol=1e-12, atol=1e-12)


@given(seeds)
def test_margin_over_the_largest_other_is_negative_where_another_class_is_predicted(seed: int) -> None:
    output = drawn(seed, EXAMPLES, CLASSES)
    labels = np.array([0, 1, 2])
    values, cotangent = Margin(labels).evaluate(output, BATCH)
    others = [
        max((value, k) for k, value in enumerate(row) if k != label) for row, label in zip(output, labels, strict=True)
    ]
    np.testing.assert_array_equal(values, output[np.arange(3), labels] - [value for value, _ in others])
    np.testing.assert_array_equal(cotangent, np.eye(CLASSES)[labels] - np.eye(CLASSES)[[k for _, k in others]])
    np.testing.assert_array_equal(values > 0, output.argmax(1) == labels)
    assert Margin(labels).describe() == {"class": "Margin", "index": [0, 1, 2]}
    np.testing.assert_array_equal(Margin(labels).take(slice(1, 2), 3).evaluate(output[1:2], BATCH[1:2])[0], values[1:2])


def test_the_callers_output_is_left_alone() -> None:
    output = drawn(0, EXAMPLES, CLASSES)
    before = output.copy()
    for objective in (CrossEntropy([0, 1, 2]), Logit(0), Margin(0, 1), Sum(), Projection(output)):
        _, cotangent = objective.evaluate(output, BATCH)
        if cotangent.flags.writeable:
            cotangent[...] = 7
        np.testing.assert_array_equal(output, before)


def test_half_precision_is_computed_in_double() -> None:
    output = np.full((3, 5000), 10.0, np.float16)
    values, cotangent = Sum().evaluate(output, BATCH)
    assert values.tolist() == [50000.0] * 3
    assert cotangent.dtype == np.float64
    assert CrossEntropy([0, 1, 2]).evaluate(output, BATCH)[0] == pytest.approx(np.log(5000))


ROWS = drawn(0, EXAMPLES, CLASSES)
PER_POSITION = drawn(0, EXAMPLES, POSITIONS, CLASSES)

OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "cross entropy": lambda: CrossEntropy([0, 4, 2]),
    "probability": lambda: Probability(2),
    "probability an example": lambda: Probability([0, 4, 2]),
    "logit": lambda: Logit(3),
    "logit an example": lambda: Logit([3, 0, 1]),
    "margin": lambda: Margin([0, 1, 2], against=[1, 2, 0]),
    "sum": Sum,
    "projection": lambda: Projection(drawn(9, CLASSES)),
    "projection an example": lambda: Projection(drawn(9, EXAMPLES, CLASSES)),
    "binary cross entropy": lambda: BinaryCrossEntropy(drawn(8, EXAMPLES, CLASSES) > 0),
    "squared error": lambda: SquaredError(drawn(8, EXAMPLES, CLASSES)),
    "cosine": lambda: CosineSimilarity(drawn(9, CLASSES)),
    "cosine an example": lambda: CosineSimilarity(drawn(9, EXAMPLES, CLASSES)),
}
#: The beginnings of the names of those that take one row for each example.
OF_ONE_ROW = ("binary", "squared", "cosine")


def objectives_and_outputs() -> Iterator[tuple[Objective, tuple[int, ...], Any]]:
    labels = np.random.default_rng(1).integers(0, CLASSES, (EXAMPLES, POSITIONS))
    labels[0, 2] = labels[1, 1] = -100
    summed = [build for name, build in OBJECTIVES.items() if not name.startswith(("cross", "prob", *OF_ONE_ROW))]
    for build in OBJECTIVES.values():
        yield build(), (EXAMPLES, CLASSES), RIGHT
        for position in (0, -1, [1, 2, 0]):
            objective = build()
            objective.position = np.array(position)
            yield objective, (EXAMPLES, POSITIONS, CLASSES), RIGHT
    for build in (*summed, lambda: CrossEntropy(labels)):
        for mask in (RIGHT, LEFT, None):
            yield build(), (EXAMPLES, POSITIONS, CLASSES), mask


@pytest.mark.parametrize(("objective", "shape", "mask"), list(objectives_and_outputs()))
def test_cotangents_are_finite_differences(objective: Objective, shape: tuple[int, ...], mask: Any) -> None:
    for seed in range(5):
        expect_cotangent_is_slope(objective, drawn(seed, *shape), BATCH.replace(mask=mask))


@given(seeds)
@settings(max_examples=10)
def test_finite_differences_of_probabilities(seed: int) -> None:
    probabilities = (softmax(drawn(seed, EXAMPLES, CLASSES)) + 0.2) / 2
    expect_cotangent_is_slope(CrossEntropy([0, 4, 2], of="probabilities"), probabilities)
    expect_cotangent_is_slope(Probability([0, 4, 2], of="probabilities"), probabilities)


@given(seeds)
def test_the_probability_of_a_class(seed: int) -> None:
    logits, label = drawn(seed, EXAMPLES, CLASSES), int(np.random.default_rng(seed).integers(0, CLASSES))
    values, cotangent = Probability(label).evaluate(logits, BATCH)
    probabilities = softmax(logits)
    own = probabilities[:, label]
    np.testing.assert_allclose(values, own, rtol=1e-12)
    np.testing.assert_allclose(
        cotangent, own[:, None] * (np.eye(CLASSES)[label] - probabilities), rtol=1e-9, atol=1e-15
    )
    by_entropy = np.exp(-CrossEntropy([label] * EXAMPLES).evaluate(logits, BATCH)[0])
    np.testing.assert_allclose(values, by_entropy, rtol=1e-12)
    of_probabilities = Probability(label, of="probabilities").evaluate(probabilities, BATCH)[0]
    np.testing.assert_array_equal(of_probabilities, own)


@given(st.floats(1, 700))
def test_the_slope_of_a_confident_probability_keeps_its_digits(lead: float) -> None:
    values, cotangent = Probability(1).evaluate(np.array([[0.0, lead, -np.inf]]), TokenBatch([[1]]))
    other = np.exp(-lead) / (1 + np.exp(-lead))
    np.testing.assert_allclose(values, 1 / (1 + np.exp(-lead)), rtol=1e-14)
    np.testing.assert_allclose(cotangent, np.array([[-other, other, 0]]) * values, rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("shape", [(EXAMPLES,), (EXAMPLES, 2, 3), (EXAMPLES, 2, 3, 2)])
def test_sums_and_projections_take_outputs_of_any_shape(shape: tuple[int, ...]) -> None:
    output = drawn(6, *shape)
    vector = drawn(7, int(np.prod(shape[1:])))
    expect_cotangent_is_slope(Sum(), output)
    expect_cotangent_is_slope(Projection(vector), output)
    np.testing.assert_allclose(Projection(vector).evaluate(output, BATCH)[0], output.reshape(3, -1) @ vector)


def test_an_output_with_one_number_an_example() -> None:
    values, cotangent = Logit(0).evaluate(np.array([1.0, 2.0, 3.0]), BATCH)
    assert values.tolist() == [1.0, 2.0, 3.0]
    assert cotangent.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "labels",
    [(0, 1, 2), np.int8([0, 1, 2]), np.uint64([0, 1, 2]), np.float32([0, 1, 2]), [np.int64(0), np.int32(1), 2],
        TensorFlowLike([0, 1, 2]), [TensorFlowLike(0), TensorFlowLike(1), TensorFlowLike(2)]],
)  # fmt: skip
def test_labels_of_any_kind(labels: Any) -> None:
    logits = drawn(0, EXAMPLES, CLASSES)
    expected = CrossEntropy([0, 1, 2]).evaluate(logits, BATCH)
    actual = CrossEntropy(labels).evaluate(logits, BATCH)
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1], expected[1])


def test_the_callers_vector_is_not_kept() -> None:
    vector = np.ones(CLASSES)
    objective = Projection(vector)
    vector[:] = 5
    assert objective.evaluate(np.ones((3, CLASSES)), BATCH)[0].tolist() == [5.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("objective", "description", "text"),
    [
        (
            CrossEntropy([0, 1], of="probabilities", output="x", position=-1),
            {"class": "CrossEntropy", "labels": [0, 1], "of": "probabilities", "output": "x", "position": -1},
            "CrossEntropy(labels=[0, 1], of='probabilities', output='x', position=-1)",
        ),
        (Logit(2), {"class": "Logit", "index": 2}, "Logit(index=2)"),
        (Probability(2), {"class": "Probability", "label": 2, "of": "logits"}, "Probability(label=2, of='logits')"),
        (Margin([0], 2), {"class": "Margin", "index": [0], "against": 2}, "Margin(index=[0], against=2)"),
        (Sum(), {"class": "Sum"}, "Sum()"),
        (Projection([1, 2]), {"class": "Projection", "vector": [1.0, 2.0]}, "Projection(vector=[1.0, 2.0])"),
    ],
)
def test_descriptions(objective: Objective, description: dict[str, Any], text: str) -> None:
    assert objective.describe() == description
    assert repr(objective) == text


@given(seeds, st.integers(0, EXAMPLES - 1), st.integers(1, EXAMPLES))
def test_a_cut_objective_is_the_objective_of_the_cut_batch(seed: int, start: int, size: int) -> None:
    rows, per_position = drawn(seed, EXAMPLES, CLASSES), drawn(seed, EXAMPLES, POSITIONS, CLASSES)
    examples = slice(start, start + size)
    labels = np.random.default_rng(seed).integers(0, CLASSES, (EXAMPLES, POSITIONS))
    cases: list[tuple[Objective, np.ndarray]] = [
        *((build(), rows) for build in OBJECTIVES.values()),
        (CrossEntropy(labels), per_position),
        (Sum(position=[3, 2, 1]), per_position),
        (Logit([0, 1, 2], position=-1), per_position),
    ]
    for objective, output in cases:
        values, cotangent = objective.evaluate(output, BATCH)
        cut = objective.take(examples, EXAMPLES).evaluate(output[examples], BATCH[examples])
        np.testing.assert_array_equal(cut[0], values[examples])
        np.testing.assert_array_equal(cut[1], cotangent[examples])


@given(seeds)
def test_the_rows_that_count_give_what_the_whole_output_gives(seed: int) -> None:
    output = drawn(seed, EXAMPLES, POSITIONS, CLASSES)
    labels = np.random.default_rng(seed).integers(0, CLASSES, (EXAMPLES, POSITIONS))
    labels[0] = -100
    at = [{}, {"position": 0}, {"position": -1}, {"position": [3, 2, 1]}]
    cases = [build(**where) for build in (Sum, lambda **where: Logit([0, 1, 4], **where)) for where in at]
    for objective in [*cases, CrossEntropy(labels), CrossEntropy([1, 2, 3], position=-1)]:
        values, cotangent = objective.evaluate(output, BATCH)
        places = objective.places(output.shape, BATCH)
        of_rows, slopes = objective.evaluate_rows(output[places], places, BATCH)
        np.testing.assert_array_equal(of_rows, values)
        np.testing.assert_array_equal(slopes, cotangent[places])
        assert np.count_nonzero(cotangent) == np.count_nonzero(slopes)
        assert objective.places((EXAMPLES, CLASSES), BATCH) is None


def test_a_subclass_keeps_its_attributes_when_sliced() -> None:
    class Scaled(Sum):
        def __init__(self, factor: float = 1.0) -> None:
            super().__init__()
            self.factor = factor

        def _rows(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
            values, slopes = super()._rows(rows)
            return values * self.factor, slopes * self.factor

    cut = Scaled(3.0).take(slice(1, 2), EXAMPLES)
    assert cut.evaluate(ROWS[1:2], BATCH[1:2])[0] == pytest.approx(3.0 * ROWS[1].sum())


@pytest.mark.parametrize("row", [[0.3, 0.7004], [0.25, 0.751], [0.0, 0.9951]])
def test_logits_that_come_near_to_probabilities_by_chance_are_taken(row: list[float]) -> None:
    logits = np.array([row])
    values, _ = CrossEntropy(1).evaluate(logits, TokenBatch([[1, 2]]))
    np.testing.assert_allclose(values, -np.log(softmax(logits)[:, 1]))


@pytest.mark.parametrize("label", [2, np.int64(2), np.array(2), [2]])
def test_one_label_for_a_batch_of_one(label: Any) -> None:
    values, _ = CrossEntropy(label).evaluate(ROWS[:1], BATCH[:1])
    assert values == pytest.approx(-np.log(softmax(ROWS)[0, 2]))


@pytest.mark.parametrize("classes", [2, 50_000])
def test_a_softmax_in_single_precision_is_recognised(classes: int) -> None:
    rows = softmax(drawn(1, 3, classes).astype(np.float32))
    assert rows.dtype == np.float32
    with pytest.raises(embgrad.errors.ObjectiveError, match="end in a softmax"):
        CrossEntropy([0, 1, 1]).evaluate(rows, BATCH)


def test_a_subclass_need_not_call_the_base_class() -> None:
    class Squares(Objective):
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def _rows(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
            return self.factor * (rows.values**2).sum(1), 2 * self.factor * rows.values

    output = drawn(0, EXAMPLES, CLASSES)
    values, cotangent = Squares(3.0).evaluate(output, BATCH)
    np.testing.assert_allclose(values, 3 * (output**2).sum(1))
    np.testing.assert_allclose(cotangent, 6 * output)
    assert Squares(3.0).describe() == {"class": "Squares"}
    np.testing.assert_allclose(BatchObjective(Squares(3.0), BATCH, 1)({None: output}).sets[0][None], 6 * output)


def test_probabilities_computed_in_bfloat16_may_sum_to_a_little_more_than_one() -> None:
    """Such as these of a softmax in TensorFlow."""
    output = np.array([[0.0869140625, 0.890625, 0.0283203125]])
    values, cotangent = embgrad.CrossEntropy([1], of="probabilities").evaluate(output, embgrad.TokenBatch([[1]]))
    np.testing.assert_allclose(values, -np.log([0.890625]))
    np.testing.assert_allclose(cotangent, [[0, -1 / 0.890625, 0]])


EACH: dict[str, Callable[..., Objective]] = {
    "CrossEntropy": lambda **options: CrossEntropy([1, 0, 4], **options),
    "CrossEntropy of probabilities": lambda **options: CrossEntropy([1, 0, 4], of="probabilities", **options),
    "LogProbability": lambda **options: LogProbability([1, 0, 4], shift=False, **options),
    "Logit": lambda **options: Logit([1, 0, 4], **options),
    "Margin": lambda **options: Margin([1, 0, 4], [2, 2, 0], **options),
    "Margin over the others": lambda **options: Margin(1, **options),
    "Probability": lambda **options: Probability([1, 0, 4], **options),
    "Projection": lambda **options: Projection(np.arange(15.0).reshape(3, 5), **options),
    "Projection of all": lambda **options: Projection(np.arange(5.0), **options),
    "Sum": lambda **options: Sum(**options),
    "BinaryCrossEntropy": lambda **options: BinaryCrossEntropy(np.eye(3, 5), **options),
    "BinaryCrossEntropy of probabilities": lambda **options: BinaryCrossEntropy(
        np.eye(3, 5), "probabilities", **options
    ),
    "SquaredError": lambda **options: SquaredError(np.eye(3, 5), **options),
    "CosineSimilarity": lambda **options: CosineSimilarity(np.arange(15.0).reshape(3, 5), **options),
    "CosineSimilarity with all": lambda **options: CosineSimilarity(np.arange(5.0), **options),
}


@pytest.mark.parametrize("name", EACH)
def test_each_objective_reads_the_output_and_the_position_that_it_names(name: str) -> None:
    output = (
        softmax(drawn(3, EXAMPLES, POSITIONS, CLASSES)) if "prob" in name else drawn(3, EXAMPLES, POSITIONS, CLASSES)
    )
    objective = EACH[name](output="heads", position=[1, 2, 0])
    assert (objective.output, objective.describe()["output"]) == ("heads", "heads")
    assert np.asarray(objective.describe()["position"]).tolist() == [1, 2, 0]
    values, cotangent = objective.evaluate(output, BATCH)
    each = np.arange(EXAMPLES), np.array([1, 2, 0])
    expected, slopes = EACH[name]().evaluate(output[each], BATCH)
    np.testing.assert_allclose(values, expected)
    np.testing.assert_allclose(cotangent[each], slopes)
    cotangent[each] = 0
    assert not cotangent.any()


def test_as_many_rows_that_count_as_positions_are_no_axis_of_positions() -> None:
    batch = TokenBatch(np.ones((2, 4), int), [[1, 1, 1, 0], [1, 0, 0, 0]])
    output, places = drawn(5, 2, 4, CLASSES), np.nonzero(batch.real)
    values, slopes = Logit(1).evaluate_rows(output[places], places, batch)
    np.testing.assert_allclose(values, [output[0, :3, 1].sum(), output[1, 0, 1]])
    np.testing.assert_array_equal(slopes, np.tile(np.eye(CLASSES)[1], (4, 1)))


def test_several_objectives_are_a_list_and_an_error_says_which_of_them_it_is_of() -> None:
    several = [Sum(), Logit(0)]
    assert as_objectives(several) == (tuple(several), True)
    assert as_objectives(several[0]) == ((several[0],), False)
    with refused(
        embgrad.errors.ObjectiveError, "the objective is []: expected an objective, or a list of at least one"
    ):
        as_objectives([])
    with refused(embgrad.errors.ObjectiveError, "at index 1 of the objectives: the objective is"):
        as_objectives([Sum(), 3])
    with refused(embgrad.errors.ObjectiveError, "; make one call for each objective"):
        as_objectives([[Sum()], Sum()])
    for count in (1, 2):
        with pytest.raises(embgrad.errors.ObjectiveError) as raised, at_index(0, count):
            raise embgrad.errors.ObjectiveError("wrong")
        assert raised.value.message == ("at index 0 of the objectives: wrong" if count > 1 else "wrong")
