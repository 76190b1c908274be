"""PEZ against a loop by hand, and on a model in which the best text is known."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from embgrad.token_search import PEZ
from embgrad.token_search.search import problem_of
from tests.unit.token_search.trigger_models import VOCAB, Tokenizer, batch

LOGIT = embgrad.Logit(0)


def curved(dim: int = 4) -> ReferenceModel:
    random = np.random.default_rng(8)

    def forward(own: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        rows = (lookup(own["E"], input_ids) @ own["U"]).tanh()
        return (rows * Tensor(attention_mask[..., None].astype(float))).sum(1).tanh() @ own["W"]

    shapes = {"E": (VOCAB, dim), "U": (dim, dim), "W": (dim, 2)}
    return ReferenceModel(forward, {name: random.normal(size=shape) for name, shape in shapes.items()})


def problem(model: Any, goal: str, **options: Any) -> Any:
    arguments: dict[str, Any] = dict.fromkeys(
        ("until", "allowed", "positions", "tokenizer", "max_length", "call", "batch_size")
    )
    arguments.update(stable=False, **options)
    return problem_of(model, batch(), LOGIT, goal=goal, **arguments)[0]


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_each_step_is_that_of_a_loop_by_hand(goal: str) -> None:
    sign = 1 if goal == "maximize" else -1
    model, method = curved(), PEZ(steps=25, learning_rate=0.3, weight_decay=0.2)
    made = problem(model, goal, tokenizer=Tokenizer())
    state = method.start(made)
    table = model["E"].value
    free = made.free
    directions = table / np.linalg.norm(table, axis=1, keepdims=True)
    allowed = np.flatnonzero(made.allowed)
    x = table[made.batch.ids]
    m, v = np.zeros_like(x), np.zeros_like(x)
    seen = set()
    for number in range(method.steps):
        similarity = np.einsum("bpd,vd->bpv", x / np.linalg.norm(x, axis=2, keepdims=True), directions[allowed])
        ids = np.where(free, allowed[similarity.argmax(2)], made.batch.ids)
        results = embgrad.gradients(model, made.batch.replace(ids=ids), LOGIT)
        g = -sign * results.values * free[..., None]
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = (m / (1 - 0.9 ** (number + 1))) / (np.sqrt(v / (1 - 0.999 ** (number + 1))) + 1e-8)
        x = np.where(free[..., None], x * (1 - 0.3 * 0.2) - 0.3 * step, x)
        state = method.step(made, state, np.ones(len(ids), bool), number)
        np.testing.assert_array_equal(np.where(free, state.current.ids, 0), np.where(free, ids, 0))
        np.testing.assert_allclose(state.arrays["embeddings"][free], x[free], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.values, results.objective, rtol=1e-12)
        seen.add(ids.tobytes())
    assert len(seen) > 3, "the texts change"


def test_the_best_text_is_found_where_it_lies_in_the_direction_of_the_steps() -> None:
    table = np.random.default_rng(1).normal(size=(VOCAB, 5))
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    weights = np.array([[1.0], [-1.0], [1.0], [1.0], [-1.0]])

    def forward(own: Any, input_ids: np.ndarray, attention_mask: Any) -> Tensor:
        return (lookup(own["E"], input_ids) * Tensor(attention_mask[..., None].astype(float))).sum(1) @ own["W"]

    model = ReferenceModel(forward, {"E": table, "W": weights})
    found = embgrad.search(
        model, batch(), embgrad.Sum(), PEZ(steps=80, weight_decay=0.01), tokenizer=Tokenizer(), stable=False
    )
    best = 3 + int((table @ weights)[3:, 0].argmax())
    special = np.isin(batch().ids, Tokenizer.all_special_ids)
    np.testing.assert_array_equal(found.batch.ids, np.where(special, batch().ids, best))
    assert (found.history.gradients[-1] == 80).all()
    assert (found.history.evaluations[-1] == 1).all()


def test_only_texts_that_come_back_become_the_best() -> None:
    model, method, tokenizer = curved(), PEZ(steps=40, learning_rate=0.5), Tokenizer()
    kept = embgrad.search(model, batch(), LOGIT, method, tokenizer=tokenizer, allowed=[3, 4, 7, 9])
    free = embgrad.search(model, batch(), LOGIT, method, tokenizer=tokenizer, allowed=[3, 4, 7, 9], stable=False)
    rows = [row[real].tolist() for row, real in zip(kept.batch.ids, kept.batch.real, strict=True)]
    assert [tokenizer(tokenizer.decode(row), add_special_tokens=False)["input_ids"] for row in rows] == rows
    others = [row[real].tolist() for row, real in zip(free.batch.ids, free.batch.real, strict=True)]
    assert any(tokenizer(tokenizer.decode(row), add_special_tokens=False)["input_ids"] != row for row in others), (
        "the check is in vain"
    )
    assert (free.objective >= kept.objective).all()
    assert (kept.objective >= kept.objective_before).all()


def test_an_example_that_met_the_rule_is_left_alone() -> None:
    model, method = curved(), PEZ(steps=12, learning_rate=0.5)
    whole = embgrad.search(model, batch(), LOGIT, method, tokenizer=Tokenizer(), stable=False)
    until = float(np.median(whole.objective_before))
    some = embgrad.search(model, batch(), LOGIT, method, tokenizer=Tokenizer(), stable=False, until=until)
    done = whole.objective_before >= until
    assert (some.history.gradients[-1][done] == 0).all()
    np.testing.assert_array_equal(some.batch.ids[done], batch().ids[done])
    assert (some.history.gradients[-1][~done] > 0).all()


ERRORS = {
    "steps is 0: expected a whole number of at least 1": lambda: PEZ(0),
    "learning_rate is 0: expected a number above 0": lambda: PEZ(learning_rate=0),
    "learning_rate is nan: expected a finite number of at least 0": lambda: PEZ(learning_rate=float("nan")),
    "weight_decay is -1: expected a finite number of at least 0": lambda: PEZ(weight_decay=-1),
}


@pytest.mark.parametrize("message", ERRORS)
def test_arguments_are_checked_when_the_method_is_made(message: str) -> None:
    with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
        ERRORS[message]()
