"""Whether an output's axis is the batch's positions or as many classes: a probe shows it once for a model, on the reference."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.output_axes import _declares_classes, _without_padding
from embgrad.objectives.objective import OpenAxesError
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.refusals import refused

VOCAB, DIM = 12, 4
IDS = np.array([[3, 5, 8], [2, 9, 3]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
BATCH = {"input_ids": IDS, "attention_mask": MASK}
WEIGHTS = {name: np.random.default_rng(seed).normal(size=(VOCAB, DIM)) for seed, name in enumerate("EV")}
WEIGHTS |= {"W": np.random.default_rng(2).normal(size=(DIM, 3)), "w": np.random.default_rng(3).normal(size=(DIM, 1))}


class Passes:
    """A model whose forward passes are counted.

    Attributes:
        lengths: the number of positions of each pass.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.lengths: list[int] = []

        def counted(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray, **extras: Any) -> Any:
            self.lengths.append(input_ids.shape[1])
            return forward(model, input_ids, attention_mask, **extras)

        self.model = ReferenceModel(counted, WEIGHTS)


def scores(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
    """Return a score of each position, (example, position)."""
    return (lookup(model["E"], input_ids).tanh() @ model["w"])[:, :, 0]


def classes(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
    """Return the logits of three classes, (example, class)."""
    return (lookup(model["E"], input_ids).tanh() * Tensor(attention_mask[..., None] * 1.0)).sum(1) @ model["W"]


def scores_by_hand(ids: np.ndarray) -> np.ndarray:
    return np.asarray((np.tanh(WEIGHTS["E"][ids]) @ WEIGHTS["w"])[..., 0])


def classes_by_hand(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.asarray((np.tanh(WEIGHTS["E"][ids]) * mask[..., None]).sum(1) @ WEIGHTS["W"])


def test_positions_are_recognised_and_remembered() -> None:
    passes = Passes(scores)
    expected = (scores_by_hand(IDS) * MASK).sum(1)
    np.testing.assert_allclose(embgrad.evaluate(passes.model, BATCH, embgrad.Sum()), expected)
    assert passes.lengths == [3, 2, 3]  # the batch, the second example without its padding, the batch
    result = embgrad.gradients(passes.model, BATCH, embgrad.Margin([1, 0]))
    assert passes.lengths[3:] == [3]
    rows = scores_by_hand(IDS)
    np.testing.assert_allclose(result.objective, [rows[0, 1] - max(rows[0, 0], rows[0, 2]), rows[1, 0] - rows[1, 1]])
    assert result.pad_leak == 0


def test_classes_are_recognised_and_remembered() -> None:
    passes = Passes(classes)
    expected = classes_by_hand(IDS, MASK)
    for _ in range(2):
        np.testing.assert_allclose(embgrad.evaluate(passes.model, BATCH, embgrad.Logit(2)), expected[:, 2])
    assert passes.lengths == [3, 2, 3, 3]


def test_what_cannot_be_confused_takes_one_pass() -> None:
    ids, mask = np.array([[3, 5, 8, 1], [2, 9, 3, 0]]), np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
    for forward, batch in (
        (classes, {"input_ids": ids, "attention_mask": mask}),  # three classes of four positions
        (classes, {"input_ids": IDS, "attention_mask": np.ones((2, 3), int)}),
        (scores, {"input_ids": IDS, "attention_mask": np.ones((2, 3), int)}),
    ):
        passes = Passes(forward)
        embgrad.gradients(passes.model, batch, embgrad.Logit(1))
        assert len(passes.lengths) == 1


def test_names_of_span_scores_are_known() -> None:
    passes = Passes(lambda *inputs: {"start_logits": scores(*inputs), "end_logits": scores(*inputs)})
    values = embgrad.evaluate(passes.model, BATCH, embgrad.Sum(output="end_logits"))
    np.testing.assert_allclose(values, (scores_by_hand(IDS) * MASK).sum(1))
    assert passes.lengths == [3]


def test_each_way_runs_with_the_answer() -> None:
    labels, alone = [1, 1], {"input_ids": IDS[1:, :2], "attention_mask": MASK[1:, :2]}
    for calls in (
        lambda model, batch, labels: embgrad.gradients(model, batch, embgrad.CrossEntropy(labels)).values,
        lambda model, batch, labels: embgrad.gradients(model, batch, embgrad.CrossEntropy(labels), check=True).values,
        lambda model, batch, labels: embgrad.gradients(model, batch, embgrad.CrossEntropy(labels), split=True).values,
        lambda model, batch, labels: (
            embgrad.gradients(model, batch, [embgrad.Sum(), embgrad.CrossEntropy(labels)])[1].values
        ),
        *(
            lambda model, batch, labels, options=options: (
                embgrad.gradients(model, batch, embgrad.CrossEntropy(labels), batch_size=1, **options).values
            )
            for options in ({}, {"call": lambda model, inputs: model(**inputs)})
        ),
        lambda model, batch, labels: (
            embgrad.attribute(
                model, batch, embgrad.Probability(labels), embgrad.methods.IntegratedGradients(steps=8)
            ).values
        ),
    ):
        expected = calls(Passes(scores).model, alone, [1])[0]
        np.testing.assert_allclose(calls(Passes(scores).model, BATCH, labels)[1, :2], expected, atol=1e-12)
    whole = embgrad.tables.parameter_gradients(Passes(scores).model, BATCH, embgrad.Logit([1, 1]))
    np.testing.assert_allclose(whole["w"][:, 0], np.tanh(WEIGHTS["E"][IDS[:, 1]]).sum(0))
    assert embgrad.tables.table_gradients(Passes(scores).model, BATCH, embgrad.Logit([1, 1])).total.shape == (
        VOCAB,
        DIM,
    )
    right = embgrad.gradients(model := Passes(scores).model, BATCH, embgrad.Logit([1, 1]))
    assert embgrad.compare(right, right, models=(model, model)).agrees
    with refused(embgrad.errors.ObjectiveError, "index 2 at example 1 is padding"):
        embgrad.gradients(Passes(scores).model, BATCH, embgrad.Logit([2, 2]))


def test_a_model_of_one_length_says_its_classes_or_is_asked() -> None:
    def fixed(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        if input_ids.shape[1] != 3:
            raise ValueError("three positions alone")
        return classes(model, input_ids, attention_mask)

    declared = Passes(fixed).model
    declared.config = SimpleNamespace(num_labels=3)
    expected = classes_by_hand(IDS, MASK)
    np.testing.assert_allclose(embgrad.evaluate(declared, BATCH, embgrad.Logit(2)), expected[:, 2])
    with refused(embgrad.errors.ObjectiveError, "its axis 1 may be the 3 positions of the padded batch"):
        embgrad.evaluate(Passes(fixed).model, BATCH, embgrad.Logit(2))
    values = embgrad.evaluate(Passes(fixed).model, BATCH, embgrad.Logit(2).with_axes([]))
    np.testing.assert_allclose(values, expected[:, 2])


def test_what_the_probe_does_not_show_is_asked() -> None:
    def doubled_when_short(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        return scores(
            model, input_ids if input_ids.shape[1] == 3 else np.concatenate([input_ids] * 2, 1), attention_mask
        )

    with refused(embgrad.errors.ObjectiveError, "its axis 1 may be the 3 positions of the padded batch"):
        embgrad.evaluate(Passes(doubled_when_short).model, BATCH, embgrad.Sum())


@pytest.mark.parametrize("positions", [2, 3])
def test_examples_on_another_axis_are_refused(positions: int) -> None:
    mask = np.ones((positions, positions), int)
    mask[-1, -1] = 0
    batch = {"input_ids": np.arange(positions**2).reshape(positions, positions), "attention_mask": mask}
    with refused(
        embgrad.errors.ObjectiveError,
        "the output has the shape",
        "expected the examples on its first axis; transpose it in call=",
    ):
        embgrad.evaluate(Passes(lambda *inputs: scores(*inputs).swap(0, 1)).model, batch, embgrad.Sum())


def test_further_inputs_of_the_probe_lose_the_padding() -> None:
    def with_order(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray, order: Any, pairs: Any) -> Tensor:
        assert order.shape == input_ids.shape
        assert pairs.shape == (*input_ids.shape, input_ids.shape[1])
        return scores(model, input_ids, attention_mask)

    passes = Passes(with_order)
    batch = {**BATCH, "order": np.arange(6).reshape(2, 3), "pairs": np.ones((2, 3, 3), int)}
    np.testing.assert_allclose(
        embgrad.evaluate(passes.model, batch, embgrad.Sum()), (scores_by_hand(IDS) * MASK).sum(1)
    )
    assert passes.lengths[-3:] == [3, 2, 3]


def test_another_number_of_classes_is_probed_again() -> None:
    sizes = [3, 2]

    def changing(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        return classes(model, input_ids, attention_mask)[:, : sizes[0]]

    passes = Passes(changing)
    embgrad.evaluate(passes.model, BATCH, embgrad.Sum())
    sizes.reverse()
    short = {"input_ids": IDS[:, :2], "attention_mask": np.array([[1, 1], [1, 0]])}
    values = embgrad.evaluate(passes.model, short, embgrad.Sum())
    np.testing.assert_allclose(values, classes_by_hand(IDS[:, :2], short["attention_mask"])[:, :2].sum(1))


SQUARE = np.array([[3, 5, 8], [2, 9, 3], [1, 4, 7]])


def turned(tensor: Tensor) -> Tensor:
    return tensor.swap(0, 1)


def word_scores(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
    """Return the logits of three classes at each position, (example, position, class)."""
    return lookup(model["E"], input_ids).tanh() @ model["W"]


@pytest.mark.parametrize("forward", [scores, word_scores])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_positions_before_examples_are_seen_where_there_are_as_many(
    forward: Callable[..., Tensor], count: int, padded: bool
) -> None:
    ids, mask = SQUARE[:count, :count], np.ones((count, count), int)
    mask[1:, -1] = not padded
    batch = {"input_ids": ids, "attention_mask": mask}
    for call in (embgrad.gradients, embgrad.evaluate):
        passes = Passes(lambda *arguments: turned(forward(*arguments)))
        with pytest.raises(
            embgrad.errors.ObjectiveError, match="expected the examples on its first axis; transpose it in call="
        ):
            call(passes.model, batch, embgrad.Sum())
    passes = Passes(forward)
    for _ in range(2):
        found = embgrad.evaluate(passes.model, batch, embgrad.Sum())
        rows = np.tanh(WEIGHTS["E"][ids]) @ WEIGHTS["w" if forward is scores else "W"]
        np.testing.assert_allclose(found, (rows * mask[..., None]).sum((1, 2)))


def test_the_first_axis_is_remembered() -> None:
    batch, full = {"input_ids": SQUARE, "attention_mask": np.ones((3, 3), int)}, np.ones((2, 3), int)
    passes = Passes(word_scores)
    for _ in range(2):
        embgrad.evaluate(passes.model, batch, embgrad.Logit(1))
    assert passes.lengths == [3, 3, 3], "the batch, two examples of it, and the batch again"
    passes = Passes(word_scores)
    embgrad.evaluate(passes.model, {"input_ids": SQUARE[:2], "attention_mask": full}, embgrad.Logit(1))
    embgrad.evaluate(passes.model, batch, embgrad.Logit(1))
    assert passes.lengths == [3, 3], "a batch of another shape has shown it"


def test_the_first_axis_of_a_model_that_takes_one_number_of_examples_is_the_examples() -> None:
    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        if len(input_ids) != 3:
            raise ValueError("3 examples")
        return word_scores(model, input_ids, attention_mask)

    batch = {"input_ids": SQUARE, "attention_mask": np.ones((3, 3), int)}
    rows = np.tanh(WEIGHTS["E"][SQUARE]) @ WEIGHTS["W"]
    np.testing.assert_allclose(embgrad.evaluate(Passes(forward).model, batch, embgrad.Logit(1)), rows[..., 1].sum(1))


@pytest.mark.parametrize(
    ("ids", "lengths", "example"),
    [
        ([[3, 5, 8], [2, 9, 0]], [3, 2], [[2, 9]] * 3),
        ([[3, 5, 8, 1], [2, 9, 4, 0], [6, 0, 0, 0]], [4, 3, 1], [[2, 9, 4]] * 2),
        ([[6, 0, 0], [3, 5, 8]], [1, 3], [[6]] * 2),
        ([[0, 0, 0], [2, 9, 3]], [0, 3], [[2, 9]] * 3),
        ([[0, 0], [2, 9]], [0, 2], [[2]] * 2),
        ([[0], [4]], [0, 1], None),
    ],
)
def test_the_example_without_padding_is_the_longest_padded_text_or_another_without_its_last_token(
    ids: Any, lengths: list[int], example: Any
) -> None:
    mask = (np.arange(len(ids[0])) < np.array(lengths)[:, None]).astype(int)
    batch = embgrad.TokenBatch(ids, mask, types=np.array(ids) + 1, extras={"places": np.array(ids) + 2, "scale": 3.0})
    made = _without_padding(batch, batch, batch)
    assert (None if made is None else made.ids.tolist()) == example
    if made is not None:
        assert made.mask is not None
        assert made.types is not None
        assert made.mask.all()
        np.testing.assert_array_equal(made.types, made.ids + 1)
        np.testing.assert_array_equal(made.extras["places"], made.ids + 2)
        assert made.extras["scale"] == 3.0


@pytest.mark.parametrize(
    ("output", "shape", "labels", "declared"),
    [(None, (2, 3), 3, True), ("logits", (2, 3), 3, True), ("scores", (2, 3), 3, False), (None, (2, 3), 4, False),
        (None, (2, 3, 3), 3, False)],
)  # fmt: skip
def test_a_configuration_that_says_how_many_classes_there_are(
    output: str | None, shape: tuple[int, ...], labels: int, declared: bool
) -> None:
    model = SimpleNamespace(config=SimpleNamespace(num_labels=labels))
    assert _declares_classes([object(), model], OpenAxesError(output, shape, 1)) is declared
