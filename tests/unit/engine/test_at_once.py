"""A pass locates the points by itself: which passes are run, and that what names mean is never taken over wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceBackend, ReferenceModel, Tensor, lookup

IDS = np.array([[3, 1, 4, 5], [2, 6, 5, 3]])
OBJECTIVE = embgrad.Projection([1.0, -2.0, 0.5])
MODULES = (
    "net", "blocks.0", "blocks.1", "blocks.2", "blocks.0.inner", "blocks.1.inner", "blocks.2.inner", "norm", "merge",
)  # fmt: skip


class Blocks(ReferenceModel):
    """A model whose blocks are called in the order of its attribute `order`."""

    order: Sequence[int] = (0, 1, 2)
    merged = False

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        weights = {"E": random.normal(size=(8, 5)), "W": random.normal(size=(5, 3))}
        super().__init__(_forward, weights, MODULES)


def _block(model: Any, number: int, hidden: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        return x.tanh() * Tensor(np.array(1.0 + number / 4))

    def block(x: Tensor) -> Tensor:
        return x + model.module(f"blocks.{number}.inner", inner, x)

    return model.module(f"blocks.{number}", block, hidden)


def _forward(model: Any, input_ids: np.ndarray) -> Tensor:
    hidden = lookup(model["E"], input_ids)
    if model.merged:
        hidden = model.module("merge", lambda x: x * Tensor(np.array(2.0)), hidden)
    for number in model.order:
        hidden = _block(model, number, hidden)
    return model.module("norm", lambda x: x.tanh(), hidden).mean(1) @ model["W"]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The forward passes: the requests of runs, and "points"."""
    made: list[Any] = []
    points, run = ReferenceBackend.points, ReferenceBackend.run

    def of_points(self: Any, model: Any, batch: Any, call: Any = None) -> Any:
        made.append("points")
        return points(self, model, batch, call)

    def of_run(self: Any, model: Any, batch: Any, request: Any) -> Any:
        made.append(request)
        return run(self, model, batch, request)

    monkeypatch.setattr(ReferenceBackend, "points", of_points)
    monkeypatch.setattr(ReferenceBackend, "run", of_run)
    return made


def fresh(order: Sequence[int] = (0, 1, 2), *, merged: bool = False) -> Blocks:
    model = Blocks()
    model.order, model.merged = order, merged
    return model


def results(model: Any, at: Any = ("layer.0", "layer.-1", "embeddings", "blocks.1", "word")) -> Any:
    return embgrad.gradients(model, IDS, OBJECTIVE, at=list(at))


def expect_equal(actual: Any, expected: Any) -> None:
    for name in expected:
        np.testing.assert_array_equal(actual[name].values, expected[name].values, err_msg=name)
        assert actual[name].provenance["path"] == expected[name].provenance["path"]


def test_the_first_call_and_further_ones_take_a_pass_each(runs: list[Any]) -> None:
    model = fresh()
    results(model)
    assert [request.record for request in runs] == [True]
    embgrad.gradients(model, IDS[:1], OBJECTIVE, at=["layer.-1", "blocks.1"])
    assert [request.record for request in runs] == [True, False]
    assert [len(request.points) for request in runs[1:]] == [2]


def test_what_names_meant_in_several_calls_is_remembered_together(runs: list[Any]) -> None:
    model = fresh()
    for at in ("layer.0", "layer.-1", "blocks.1.inner"):
        embgrad.gradients(model, IDS, OBJECTIVE, at=at)
    assert [request.record for request in runs] == [True, True, True]
    results(model, ["layer.0", "layer.-1", "blocks.1.inner"])
    assert not runs[-1].record
    assert runs[-1].order == [*("blocks.0", "blocks.1", "blocks.1.inner", "blocks.2", "norm")]


def test_the_gradients_are_those_by_hand() -> None:
    model = fresh()
    hidden = model["E"].value[IDS]
    states = [hidden]
    for number in range(3):
        states.append(states[-1] + np.tanh(states[-1]) * (1.0 + number / 4))
    gradient = np.broadcast_to(model["W"].value @ OBJECTIVE.vector / 4, hidden.shape) * (1 - np.tanh(states[-1]) ** 2)
    expected = {"layer.-1": gradient}
    for number in reversed(range(3)):
        gradient = gradient * (1 + (1 - np.tanh(states[number]) ** 2) * (1.0 + number / 4))
        expected["word" if number == 0 else f"layer.{number - 1}"] = gradient
    for _ in range(2):  # the second call takes over what the names meant in the first
        actual = results(model, ["layer.-1", "layer.1", "layer.0", "word", "embeddings"])
        for name, values in {**expected, "embeddings": expected["word"]}.items():
            np.testing.assert_allclose(actual[name].values, values, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 1), (0, 1, 2, 1)], ids=["reordered", "shorter", "repeated"])
def test_blocks_that_are_called_otherwise_than_before_have_other_roles(order: tuple[int, ...]) -> None:
    model = fresh()
    results(model, ["layer.0", "layer.-1"])
    model.order = order
    expect_equal(results(model, ["layer.0", "layer.-1"]), results(fresh(order), ["layer.0", "layer.-1"]))
    model.order = (0, 1, 2)
    expect_equal(results(model), results(fresh()))


def test_a_module_that_comes_between_changes_the_embeddings() -> None:
    model = fresh()
    before = results(model, ["embeddings"])
    model.merged = True
    after = results(model, ["embeddings"])
    expect_equal(after, results(fresh(merged=True), ["embeddings"]))
    assert after["embeddings"].provenance["path"] != before["embeddings"].provenance["path"]


def test_a_name_that_means_another_point_than_expected_is_read_in_a_second_pass(runs: list[Any]) -> None:
    model = fresh((2, 1, 0))
    found = results(model, ["layer.-1"])
    assert found["layer.-1"].provenance["path"] == "blocks.0:output#0"
    assert [request.record for request in runs] == [True, False]
    del runs[:]
    results(model, ["layer.-1"])
    assert [request.record for request in runs] == [False]


def test_a_backend_that_records_no_points_lists_them(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = ReferenceBackend.run

    def without_record(self: Any, model: Any, batch: Any, request: Any) -> Any:
        return replace(run(self, model, batch, request), reached=None, lookups=None)

    monkeypatch.setattr(ReferenceBackend, "run", without_record)
    model = fresh()
    expect_equal(results(model), results(fresh()))
    del runs[:]
    results(model, ["layer.0"])
    assert [item.record for item in runs] == [False]  # what the names mean is remembered from the list


def test_further_objectives_and_sub_batches_share_a_pass(runs: list[Any]) -> None:
    model = fresh()
    both = embgrad.gradients(model, IDS, [OBJECTIVE, embgrad.Logit(1)], at="layer.-1")
    assert len(runs) == 1
    del runs[:]
    whole = embgrad.gradients(model, IDS, OBJECTIVE, at="layer.-1", batch_size=1)
    assert len([item for item in runs if item != "points"]) == 2
    np.testing.assert_allclose(whole.values, both[0].values, atol=1e-14)
    assert not np.allclose(both[1].values, both[0].values)


def test_each_examples_gradient_at_what_all_examples_share() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        places = lookup(model["places"], np.arange(input_ids.shape[1]))
        return (lookup(model["E"], input_ids) + places).tanh().mean(1) @ model["W"]

    random = np.random.default_rng(1)
    weights = {"E": random.normal(size=(8, 5)), "places": random.normal(size=(9, 5)), "W": random.normal(size=(5, 3))}
    model = ReferenceModel(forward, weights)
    hidden = np.tanh(weights["E"][IDS] + weights["places"][np.arange(4)])
    expected = weights["W"] @ OBJECTIVE.vector / 4 * (1 - hidden**2)
    for _ in range(2):
        np.testing.assert_allclose(results(model, ["position"])["position"].values, expected, atol=1e-14)


def sorting() -> ReferenceModel:
    """Return a model that sorts its examples by length, the longest first."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        order = np.argsort(-attention_mask.sum(1), kind="stable")
        hidden = lookup(model["E"], input_ids[order])
        for number in range(3):
            hidden = _block(model, number, hidden)
        share = attention_mask[order] / attention_mask[order].sum(1, keepdims=True)
        pooled = (hidden * Tensor(share[..., None])).sum(1)
        return lookup(pooled, np.argsort(order)) @ model["W"]

    random = np.random.default_rng(0)
    return ReferenceModel(forward, {"E": random.normal(size=(8, 5)), "W": random.normal(size=(5, 3))}, MODULES)


@pytest.mark.parametrize("change", ["add", "edit", None])
@pytest.mark.parametrize("at", ["blocks.1", "word"])
def test_an_order_that_another_batch_did_not_show_is_noticed(change: str | None, at: str) -> None:
    """The first batch is sorted already, so that it has the model's order."""
    lengths = np.array([4, 3, 2])
    ids = np.array([[3, 1, 4, 5], [2, 6, 5, 0], [7, 1, 0, 0]])
    mask = (np.arange(4) < lengths[:, None]).astype(np.int64)
    values = np.random.default_rng(2).normal(size=(3, 4, 5))
    functions = {"add": values, "edit": lambda gradient: gradient * values}
    options: dict[str, Any] = {} if change is None else {change: {at: functions[change]}}

    def result(model: Any, rows: Sequence[int]) -> Any:
        batch = embgrad.TokenBatch(ids[list(rows)], mask[list(rows)])
        try:
            return embgrad.gradients(model, batch, OBJECTIVE, at=at, **options)
        except embgrad.EmbgradError as error:
            return str(error)

    model = sorting()
    result(model, [0, 1, 2])
    for rows in ([2, 0, 1], [1, 2, 0], [0, 1, 2]):
        actual, expected = result(model, rows), result(sorting(), rows)
        if isinstance(expected, str):
            assert actual == expected
        else:
            np.testing.assert_array_equal(actual.values, expected.values)
            np.testing.assert_array_equal(actual.ids, expected.ids)
            assert actual.provenance == expected.provenance
