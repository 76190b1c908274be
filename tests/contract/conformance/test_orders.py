"""Lookups whose indices hold the batch's ids in another order or among others, in every framework: numbers by hand."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest

import embgrad
from embgrad.testing.examples import DIM, EXAMPLES, POSITIONS, close, example_batch, example_weights
from tests.conftest import backends_under_test

CLASS_OF = np.array([0, 2, 1])
OBJECTIVE = embgrad.Logit(CLASS_OF)
#: Put before the ids by the model of the case "prefix", and around them to fill a window; 7 is an id of the batch as well.
ADDED = 7


class Native(NamedTuple):
    """The functions of a framework that the cases need: take entries along an axis, join positions, make one row."""

    take: Callable[[Any, Any, int], Any]
    join: Callable[[Any, Any], Any]
    row: Callable[[Any], Any] = lambda ids: ids.reshape((1, -1))


def native(backend: str) -> Native:
    """Return the functions of a backend's framework."""
    if backend == "torch":
        torch = import_module("torch")
        return Native(
            lambda array, indices, axis: torch.index_select(array, axis, torch.as_tensor(indices)),
            lambda left, right: torch.cat([left, right], 1),
        )
    if backend == "tensorflow":
        tf = import_module("tensorflow")
        return Native(
            lambda array, indices, axis: tf.gather(array, indices, axis=axis),
            lambda left, right: tf.concat([left, right], 1),
            lambda ids: tf.reshape(ids, (1, -1)),
        )
    if backend == "gluon":
        nd = import_module("mxnet").nd
        return Native(
            lambda array, indices, axis: nd.take(array, nd.array(indices), axis),
            lambda left, right: nd.concat(left, right, dim=1),
        )
    if backend == "jax":
        jnp = import_module("jax.numpy")
        return Native(jnp.take, lambda left, right: jnp.concatenate([left, right], 1))
    return Native(taken, lambda left, right: np.concatenate([left, right], 1))


def taken(array: Any, indices: Any, axis: int) -> Any:
    """Return entries of an array, or of a Tensor of the reference backend along its first axis or its second of three."""
    if isinstance(array, np.ndarray):
        return np.take(array, indices, axis)
    chosen = type(array)(np.eye(array.value.shape[axis])[indices])
    return chosen @ (array if axis == 0 else array.reshape(*array.value.shape[1:]))


class Case(NamedTuple):
    """An order: of examples, of positions, and how many indices the model adds before and behind the ids."""

    examples: list[int]
    positions: list[int]
    before: int = 0
    behind: int = 0


CASES = {
    "sorted": Case([2, 0, 1], [0, 1, 2, 3]),
    "reversed": Case([0, 1, 2], [3, 2, 1, 0]),
    "shuffled": Case([1, 2, 0], [2, 0, 3, 1]),
    "window to the right": Case([0, 1, 2], [0, 1, 2, 3], behind=4),
    "window to the left": Case([0, 1, 2], [0, 1, 2, 3], before=4),
    "prefix": Case([0, 1, 2], [0, 1, 2, 3], before=3),
    "sorted in a window": Case([2, 0, 1], [0, 1, 2, 3], before=1, behind=2),
}


@pytest.fixture(params=backends_under_test())
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def called(backend: str, case: Case) -> Callable[[Any, Any], Any]:
    take, join, *_ = native(backend)

    def call(model: Any, inputs: Any) -> Any:
        ids = inputs["input_ids"] if isinstance(inputs, dict) else inputs
        ids = take(take(ids, np.array(case.examples), 0), np.array(case.positions), 1)
        for count, is_before in ((case.before, True), (case.behind, False)):
            if count:
                added = 0 * take(ids, np.zeros(count, int), 1) + ADDED
                ids = join(added, ids) if is_before else join(ids, added)
        return take(model(ids), np.argsort(case.examples), 0)

    return call


def by_hand(batch: embgrad.TokenBatch, case: Case) -> np.ndarray:
    weights = example_weights()
    length = case.before + POSITIONS + case.behind
    column = case.before + np.argsort(case.positions)
    bent = np.tanh(weights["E"][batch.ids] + weights["E2"][column])
    return (1 - bent**2) * weights["W"].T[CLASS_OF][:, None] / length


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_in_the_batchs_order(backend: str, name: str) -> None:
    harness = import_module(f"tests.contract.conformance.harness_{backend}").Harness()
    model, batch, case = harness.build("positional", example_weights()), example_batch(), CASES[name]
    batch = batch.replace(tokens=[[f"token {id_}" for id_ in row] for row in batch.ids])
    call, expected = called(backend, case), by_hand(batch, case)
    rows = example_weights()["E"][batch.ids]
    result = embgrad.gradients(model, batch, OBJECTIVE, call=call)
    close(result.values, expected, 1e-12)
    np.testing.assert_array_equal(result.activations, rows)
    np.testing.assert_array_equal(result.ids, batch.ids)
    assert result.tokens == batch.tokens
    table = np.zeros((40, DIM))
    np.add.at(table, batch.ids, expected)
    close(result.table().to_dense(), table, 1e-12)
    by_path = embgrad.gradients(model, batch, OBJECTIVE, at=result.provenance["path"], call=call, split=True)
    close(by_path.values, expected, 1e-12)
    scores = embgrad.attribute(model, batch, OBJECTIVE, "input_x_gradient", call=call).scores
    close(scores, (expected * rows).sum(-1), 1e-12)


@pytest.mark.parametrize("name", CASES)
def test_values_are_replaced_in_the_batchs_order(backend: str, name: str) -> None:
    harness = import_module(f"tests.contract.conformance.harness_{backend}").Harness()
    model, batch, case = harness.build("positional", example_weights()), example_batch(), CASES[name]
    call, new = called(backend, case), np.random.default_rng(3).normal(size=(EXAMPLES, POSITIONS, DIM))
    weights = example_weights()
    own = weights["E"][batch.ids]
    column = case.before + np.argsort(case.positions)
    added = np.delete(np.arange(case.before + POSITIONS + case.behind), column)
    bent = np.concatenate(
        [
            np.tanh(new + weights["E2"][column]),
            np.tile(np.tanh(weights["E"][ADDED] + weights["E2"][added]), (EXAMPLES, 1, 1)),
        ],
        1,
    )
    expected = (bent.mean(1) @ weights["W"] + weights["b"])[np.arange(EXAMPLES), CLASS_OF]
    close(embgrad.evaluate(model, batch, OBJECTIVE, override={"word": new}, call=call), expected, 1e-12)
    close(embgrad.evaluate(model, batch, OBJECTIVE, add={"word": new - own}, call=call), expected, 1e-12)
    seen = []
    edit = {"word": lambda gradient: seen.append(gradient.copy()) or gradient * new}
    result = embgrad.gradients(model, batch, OBJECTIVE, edit=edit, call=call)
    close(seen[0], by_hand(batch, case), 1e-12)
    close(result.values, by_hand(batch, case) * new, 1e-12)


def test_a_row_of_ids_that_holds_the_examples_one_after_another(backend: str) -> None:
    harness = import_module(f"tests.contract.conformance.harness_{backend}").Harness()
    model, batch, weights = harness.build("positions", example_weights()), example_batch(masked=True), example_weights()
    take, _, row = native(backend)
    last = batch.real.sum(1).cumsum() - 1  # in the row

    def call(model: Any, inputs: Any) -> Any:
        logits = model(take(row(inputs["input_ids"]), np.flatnonzero(batch.real), 1))
        at_last = take(logits, last, 1)
        return at_last if backend == "reference" else at_last[0]

    result = embgrad.gradients(model, batch, OBJECTIVE, call=call)
    ends = np.arange(EXAMPLES), batch.real.sum(1) - 1
    bent = np.tanh(weights["E"][batch.ids[ends]] @ weights["W1"] + weights["b1"])
    expected = np.zeros((EXAMPLES, POSITIONS, DIM))
    expected[ends] = ((1 - bent**2) * weights["W"].T[CLASS_OF]) @ weights["W1"].T
    close(result.values, expected, 1e-12)
    np.testing.assert_array_equal(result.ids, batch.ids)
    np.testing.assert_array_equal(result.activations, weights["E"][batch.ids] * batch.mask[..., None])
    assert result.pad_leak == 0
