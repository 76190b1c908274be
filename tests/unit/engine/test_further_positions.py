"""Outputs with further positions, as of virtual tokens: a probe of a causal model shows once which are the batch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.objective_callback import BatchObjective
from embgrad.objectives.objective import Layouts
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.refusals import refused

VOCAB, DIM = 12, 4
IDS = np.array([[3, 5, 8, 4], [2, 9, 3, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
BATCH = {"input_ids": IDS, "attention_mask": MASK}
RANDOM = np.random.default_rng(2)
WEIGHTS = {"E": RANDOM.normal(size=(VOCAB, DIM)), "W": RANDOM.normal(size=(DIM, VOCAB))}
WEIGHTS["W"][:, 7] = 0  # a class whose logit no id changes
VIRTUAL = RANDOM.normal(size=(9, DIM))


class Passes:
    """A language model with virtual tokens before and after the batch's, whose forward passes are counted.

    The output at a position is linear in the sum of the rows up to it; of a model that is not causal in the sum of all.

    Attributes:
        before: the number of virtual tokens before the batch's; `after` likewise.
        counts: the number of examples of each pass.
        is_cut: whether the output has the batch's positions alone.
    """

    def __init__(self, before: int = 3, after: int = 0, *, is_causal: bool = True, is_cut: bool = False) -> None:
        self.before, self.after, self.is_cut, self._is_causal = before, after, is_cut, is_causal
        self.counts: list[int] = []
        self.model = ReferenceModel(self._forward, WEIGHTS)

    def _forward(self, model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        self.counts.append(len(input_ids))
        real = np.ones(input_ids.shape) if attention_mask is None else np.asarray(attention_mask, np.float64)
        length = self.before + input_ids.shape[1] + self.after
        own = self.before + np.arange(input_ids.shape[1])
        reached = np.triu(np.ones((length, length))) if self._is_causal else np.ones((length, length))
        virtual = np.setdiff1d(np.arange(length), own)
        constant = reached[virtual].T @ VIRTUAL[: len(virtual)]
        rows = (lookup(model["E"], input_ids) * Tensor(real[..., None])).swap(1, 2)
        states = (rows @ Tensor(reached[own])).swap(1, 2) + Tensor(constant)
        logits = states @ model["W"]
        return logits[:, self.before : self.before + input_ids.shape[1]] if self.is_cut else logits


OBJECTIVES = {
    "sum": embgrad.Sum(),
    "logit": embgrad.Logit(4),
    "logit at the last position": embgrad.Logit(4, position=-1),
    "logit at columns": embgrad.Logit(4, position=[0, 2]),
    "margin": embgrad.Margin(4, 5),
    "cross-entropy": embgrad.CrossEntropy(np.where(MASK, (IDS + 1) % VOCAB, -100)),
    "log-probability": embgrad.LogProbability(np.where(MASK, IDS, -100)),
    "projection": embgrad.Projection(np.arange(VOCAB) / 10),
}


def values_by_hand(name: str, before: int) -> np.ndarray:
    """L of two objectives, from the sums of the rows up to each position."""
    sums = np.cumsum(WEIGHTS["E"][IDS] * MASK[..., None], 1) + VIRTUAL[:before].sum(0)
    logits = sums @ WEIGHTS["W"]
    if name == "logit at the last position":
        return np.array([logits[0, 3, 4], logits[1, 2, 4]])
    return np.asarray((logits[..., 4] * MASK).sum(1))


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("before", [1, 3])
def test_an_objective_counts_the_positions_of_the_batch(name: str, before: int) -> None:
    objective = OBJECTIVES[name]
    model, cut = Passes(before).model, Passes(before, is_cut=True).model
    calls: dict[str, Callable[[ReferenceModel], Any]] = {
        "gradients": lambda model: embgrad.gradients(model, BATCH, objective).values,
        "objective": lambda model: embgrad.gradients(model, BATCH, objective).objective,
        "split": lambda model: embgrad.gradients(model, BATCH, objective, split=True, check=True).values,
        "in sub-batches": lambda model: embgrad.gradients(model, BATCH, objective, batch_size=1).values,
        "two": lambda model: embgrad.gradients(model, BATCH, [embgrad.Sum(), objective])[1].values,
        "evaluate": lambda model: embgrad.evaluate(model, BATCH, objective),
        "attribute": lambda model: (
            embgrad.attribute(
                model, BATCH, objective, embgrad.methods.IntegratedGradients(3, rule="riemann_middle")
            ).scores
        ),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "with .* steps|the labels are")
        for call in calls.values():
            np.testing.assert_allclose(call(model), call(cut), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["logit", "logit at the last position"])
def test_the_numbers_are_those_by_hand(name: str) -> None:
    result = embgrad.gradients(Passes(3).model, BATCH, OBJECTIVES[name])
    np.testing.assert_allclose(result.objective, values_by_hand(name, 3))
    after = np.array([[4, 3, 2, 1], [3, 2, 1, 0]]) if name == "logit" else MASK
    np.testing.assert_allclose(result.values, after[..., None] * WEIGHTS["W"][:, 4], atol=1e-12)
    assert result.pad_leak == 0


def test_output_tokens_are_those_of_the_batch() -> None:
    model, cut = Passes(3).model, Passes(3, is_cut=True).model
    for method in (
        "input_x_gradient",
        "saliency",
        embgrad.methods.IntegratedGradients(20),
        embgrad.methods.Occlusion(1),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = embgrad.attribute_tokens(model, BATCH, method=method)
        np.testing.assert_allclose(made.scores, embgrad.attribute_tokens(cut, BATCH, method=method).scores, atol=1e-9)


def test_a_probe_shows_it_once_for_a_model() -> None:
    passes = Passes(3)
    embgrad.gradients(passes.model, BATCH, embgrad.Logit(4))
    assert passes.counts == [2, 3, 2]  # the batch, an example with other ids at its ends, the batch
    embgrad.gradients(passes.model, {"input_ids": IDS[:, :2]}, embgrad.CrossEntropy(IDS[:, 1:3]))
    assert passes.counts[3:] == [2]
    passes.before = 2
    np.testing.assert_allclose(
        embgrad.evaluate(passes.model, BATCH, embgrad.Logit(4)), values_by_hand("logit", 2), rtol=1e-12
    )
    assert passes.counts[4:] == [2, 3, 2]
    cut = Passes(3, is_cut=True)
    embgrad.gradients(cut.model, BATCH, embgrad.Logit(4))
    assert cut.counts == [2]


@pytest.mark.parametrize("id_", [0, 4])
def test_a_probe_of_texts_of_a_single_id_takes_another(id_: int) -> None:
    found = embgrad.evaluate(Passes(3).model, {"input_ids": np.full((2, 3), id_)}, embgrad.Logit(4))
    sums = (1 + 2 + 3) * WEIGHTS["E"][id_] + 3 * VIRTUAL[:3].sum(0)
    np.testing.assert_allclose(found, [sums @ WEIGHTS["W"][:, 4]] * 2)


def test_padding_on_the_left_is_not_counted() -> None:
    ids, mask = np.array([[3, 5, 8, 4], [0, 2, 9, 3]]), np.array([[1, 1, 1, 1], [0, 1, 1, 1]])
    batch = {"input_ids": ids, "attention_mask": mask}
    np.testing.assert_allclose(
        embgrad.evaluate(Passes(3).model, batch, OBJECTIVES["logit"]), values_by_hand("logit", 3), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("before", "after", "is_causal"), [(3, 0, False), (0, 3, True), (1, 2, True)], ids=["not causal", "after", "around"]
)
def test_further_positions_that_may_depend_on_the_text_are_refused_with_the_way_to_cut(
    before: int, after: int, is_causal: bool
) -> None:
    passes = Passes(before, after, is_causal=is_causal)
    for _ in range(2):
        with refused(embgrad.errors.ObjectiveError, "(2, 7, 12)", "cut off the 3 that the model adds in call=..."):
            embgrad.gradients(passes.model, BATCH, embgrad.Logit(4))
    assert passes.counts == [2, 3, 2, 2]
    cut = embgrad.gradients(
        passes.model,
        BATCH,
        embgrad.Logit(4),
        call=lambda model, inputs: model(**inputs)[:, before : before + IDS.shape[1]],
    ).values
    whole = Passes(before, after, is_causal=is_causal, is_cut=True)
    np.testing.assert_allclose(cut, embgrad.gradients(whole.model, BATCH, embgrad.Logit(4)).values)
    rows = embgrad.gradients(passes.model, BATCH, embgrad.Sum()).values / WEIGHTS["W"].sum(1)
    times = np.full(4, 7) if not is_causal else 7 - before - np.arange(4)
    np.testing.assert_allclose(rows, (times * MASK)[..., None] * np.ones(DIM), atol=1e-9)


def test_an_output_that_holds_the_text_twice_is_counted_twice() -> None:
    def doubled(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        ids = np.concatenate([input_ids, input_ids], 1)
        return lookup(model["E"], ids) @ model["W"]

    model = ReferenceModel(doubled, WEIGHTS)
    with refused(embgrad.errors.ObjectiveError, "cut off the 4 that the model adds"):
        embgrad.evaluate(model, BATCH, embgrad.Logit(4))
    logits = WEIGHTS["E"][IDS] @ WEIGHTS["W"]
    np.testing.assert_allclose(embgrad.evaluate(model, BATCH, embgrad.Sum()), 2 * logits.sum((1, 2)))


def test_a_sum_over_rows_that_are_no_positions_is_over_all() -> None:
    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        pooled = (lookup(model["E"], input_ids) * Tensor(attention_mask[..., None] * 1.0)).sum(1)
        return (pooled @ model["W"]).reshape(len(input_ids), 6, 2)

    result = embgrad.gradients(ReferenceModel(forward, WEIGHTS), BATCH, embgrad.Sum())
    np.testing.assert_allclose(result.values, MASK[..., None] * WEIGHTS["W"].sum(1), atol=1e-12)


@pytest.mark.parametrize("batch", [{"input_ids": IDS[:, :1]}, {"input_ids": IDS[:1]}])
def test_what_a_probe_cannot_show_is_refused(batch: dict[str, np.ndarray]) -> None:
    """A single position may stand anywhere, and the model takes a single example alone."""
    passes = Passes(3)

    def alone(model: Any, input_ids: np.ndarray) -> Any:
        if len(input_ids) == 3:
            raise ValueError("one or two examples")
        return passes.model.forward(model, input_ids)

    with refused(embgrad.errors.ObjectiveError, "cut off the 3 that the model adds"):
        embgrad.gradients(ReferenceModel(alone, WEIGHTS), batch, embgrad.Logit(4))


def test_a_model_called_by_the_user() -> None:
    values = embgrad.evaluate(
        Passes(3).model, BATCH, embgrad.Logit(4), call=lambda model, inputs: model(**inputs), batch_size=1
    )
    np.testing.assert_allclose(values, values_by_hand("logit", 3))


def test_the_question_says_what_it_is() -> None:
    respond = BatchObjective(embgrad.Logit(4), embgrad.TokenBatch(IDS, MASK), 1, layouts=Layouts())
    with refused(
        embgrad.errors.ObjectiveError, "(2, 7, 12), with 3 positions more than the batch", "cut off the others in call"
    ):
        respond({None: np.zeros((2, 7, VOCAB))})
