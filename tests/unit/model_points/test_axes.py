"""How a point's tensor is seen, and back: lookups and modules, by role and by path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.model_points.axes import of_lookup, of_module
from embgrad.model_points.points import Lookup, layout_of
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.refusals import refused

IDS = np.array([[1, 2, 3], [4, 5, 6]])
BATCH = embgrad.TokenBatch(IDS)
DIM = 4


def seen_lookup(indices: Any) -> Lookup:
    indices = np.asarray(indices)
    return Lookup("table", 0, indices, 10, DIM, layout_of(indices, IDS))


def test_a_lookup_of_other_indices_has_no_role() -> None:
    message = r"the point 'type' is table#0 .*for each of 2 examples and 3 positions; .*'table'"
    with pytest.raises(embgrad.errors.UnsupportedError, match=message):
        of_lookup("type", seen_lookup(np.zeros((3, 3), int)), BATCH, by_role=True)
    arrangement = of_lookup("table", seen_lookup(np.zeros((3, 3), int)), BATCH, by_role=False)
    assert (arrangement.shape, arrangement.is_batch) == ((3, 3, DIM), False)


def test_a_lookup_of_the_ids_is_of_the_batch_and_a_matrix_by_chance_is_not() -> None:
    for indices in (IDS, IDS.T, IDS.ravel()):
        assert of_lookup("table", seen_lookup(indices), BATCH, by_role=False).is_batch
    more = of_module("path", (3, 2), BATCH, None, by_role=False).for_batch(2, embgrad.TokenBatch(np.ones((4, 3), int)))
    assert more is not None
    assert (more.native, more.shape, more.is_batch) == ((3, 4), (3, 4), False)


@pytest.mark.parametrize(
    ("shape", "seen", "is_batch"),
    [
        ((2, 3, 4), (2, 3, 4), True),
        ((3, 2, 4), (2, 3, 4), True),
        ((2, 4), (2, 4), False),
        ((2, 3), (2, 3), False),
        ((3, 2), (3, 2), False),
        ((2, 7, 3, 3), (2, 7, 3, 3), False),
        ((2, 3, 3, 3), (2, 3, 3, 3), False),  # as many heads as positions
        ((2, 3, 4, 5), (2, 3, 4, 5), True),
        ((6, 4), (6, 4), False),
        ((), (), False),
        ((4, 2, 3), (4, 2, 3), False),
    ],
)
def test_a_module_by_its_path(shape: tuple[int, ...], seen: tuple[int, ...], is_batch: bool) -> None:
    arrangement = of_module("path", shape, BATCH, None, by_role=False)
    assert (arrangement.native, arrangement.shape) == (shape, seen)
    assert (arrangement.is_batch, arrangement.shared) == (is_batch, False)
    tensor = np.arange(float(np.prod(shape))).reshape(shape)
    np.testing.assert_array_equal(arrangement.to_native_axes(arrangement.to_user_axes(tensor)), tensor)


@pytest.mark.parametrize("shape", [(2, 4), (6, 4), (2, 3, 4, 5), (4, 2, 3), (2, 4, 3), (2, 3)])
def test_a_role_needs_an_entry_for_each_example_and_position(shape: tuple[int, ...]) -> None:
    with refused(embgrad.errors.UnsupportedError, "'layer.0' has the shape ", ": expected (example, position, dim)"):
        of_module("layer.0", shape, BATCH, None, by_role=True)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape)


def recurrent(turned: bool) -> ReferenceModel:
    """Return a model of two layers on (position, example) or (example, position), with a table of positions."""

    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        places = np.broadcast_to(np.arange(input_ids.shape[1]), input_ids.shape)
        ids, places = (input_ids.T, places.T) if turned else (input_ids, places)
        x = lookup(model["E"], ids) + lookup(model["pos"], places)

        def layer(x: Tensor) -> Tensor:
            return (x @ model["W"]).tanh()

        for number in range(2):
            x = model.module(f"layer.{number}", layer, x)
        return (x * Tensor(weights_of(input_ids.shape, turned))).sum(0 if turned else 1)

    return ReferenceModel(forward, {"E": random(30, DIM), "pos": random(6, DIM), "W": random(DIM, DIM)})


def weights_of(shape: tuple[int, int], turned: bool) -> np.ndarray:
    """Return a different weight for each example and position, so that nothing is symmetric."""
    weights = np.arange(1.0, shape[0] * shape[1] + 1).reshape(shape)[..., None]
    return np.asarray(weights.swapaxes(0, 1)) if turned else weights


@pytest.mark.parametrize("shape", [(2, 3), (3, 3), (1, 4), (4, 1)])
@pytest.mark.parametrize("at", ["word", "position", "layer.0", "layer.-1", "E", "layer.1"])
def test_time_major_models_are_seen_as_others(shape: tuple[int, int], at: str) -> None:
    ids = np.arange(shape[0] * shape[1]).reshape(shape) + 7
    straight = embgrad.gradients(recurrent(False), ids, embgrad.Sum(), at=at)
    turned = embgrad.gradients(recurrent(True), ids, embgrad.Sum(), at=at)
    np.testing.assert_allclose(turned.values, straight.values, atol=1e-14)
    np.testing.assert_allclose(turned.activations, straight.activations, rtol=1e-12)
    np.testing.assert_array_equal(turned.ids, straight.ids)


@pytest.mark.parametrize("shape", [(2, 3), (3, 3)])
@pytest.mark.parametrize("option", ["override", "add"])
@pytest.mark.parametrize("at", ["word", "layer.0", "position"])
def test_changes_of_time_major_models_are_those_of_others(shape: tuple[int, int], option: str, at: str) -> None:
    ids = np.arange(shape[0] * shape[1]).reshape(shape) + 7
    change = random(*shape, DIM)
    results = [
        embgrad.gradients(recurrent(turned), ids, embgrad.Sum(), at=at, **{option: {at: change}})
        for turned in (False, True)
    ]
    np.testing.assert_allclose(results[1].objective, results[0].objective, rtol=1e-12)
    np.testing.assert_allclose(results[1].values, results[0].values, atol=1e-14)


def test_a_square_batch_that_a_model_takes_only_whole() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        def layer(x: Tensor) -> Tensor:
            return x * Tensor(np.ones((3, 1, 1)))

        return model.module("layer.0", layer, lookup(model["E"], input_ids[:3])).sum(1)

    def padding(model: Any, inputs: Any) -> Tensor:  # always three examples
        return model(np.resize(inputs["input_ids"], (3, 3)))

    built = ReferenceModel(forward, {"E": random(30, DIM)})
    with pytest.raises(
        embgrad.errors.AmbiguousPointError, match=r"as many examples as positions.*one example less did not"
    ):
        embgrad.gradients(
            built, {"input_ids": np.arange(9).reshape(3, 3)}, lambda out: out.column(0), at="layer.0", call=padding
        )


def test_a_square_batch_of_which_a_model_takes_no_part() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        return model.module("layer.0", lambda x: x * Tensor(np.ones((3, 3, 1))), lookup(model["E"], input_ids)).sum(1)

    built = ReferenceModel(forward, {"E": random(30, DIM)})
    ids = np.arange(9).reshape(3, 3)
    with pytest.raises(
        embgrad.errors.AmbiguousPointError, match=r"one example less, which would show them, raised ValueError"
    ) as listed:
        embgrad.gradients(built, ids, embgrad.Sum(), at="layer.0")
    assert isinstance(listed.value.__cause__, ValueError)
