"""Arrays with an axis of layers are divided into a weight of each layer, and the calls that use them into modules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.recording import HeldWeight, Recording
from embgrad.comparison.stacked import divide_stacks
from tests.unit.comparison.recorded import recording, tensor

LAYERS = 3
VALUES = np.zeros((2, 4, 5))
UP, DOWN, GAIN = (
    np.random.default_rng(0).normal(size=shape) for shape in ((LAYERS, 5, 7), (LAYERS, 7, 5), (LAYERS, 5))
)


def calls(path: str, begin: float, number: int = LAYERS, roles: bool = False) -> list:
    """Return the outputs of a module that is called once in each of ten units of time, the first at `begin`."""
    return [
        tensor(f"{path}:output#{call}", VALUES, begin + 10 * call, [f"layer.{call}"] if roles else ())
        for call in range(number)
    ]


def stacked(weights: dict[str, tuple[np.ndarray, str]], *tensors: list) -> Recording:
    """Return a recording with weights by name, each with the path of its module, divided."""
    made = recording([it for several in tensors for it in several] + [tensor("output", VALUES)])
    held = [
        HeldWeight(name, module, values.shape, lambda values=values: values, 0.1)  # type: ignore[misc]
        for name, (values, module) in weights.items()
    ]
    return divide_stacks(replace(made, weights=tuple(held)))


FUNCTION = {
    "blocks.up": (UP, "blocks.up"),
    "blocks.down": (DOWN, "blocks.down"),
    "blocks.gain": (GAIN, ""),
    "embed": (np.ones((7, 5)), "embed"),
}


def test_weights_of_a_function_are_of_layers_and_of_calls() -> None:
    found = stacked(FUNCTION, calls("blocks.up", 1), calls("blocks.down", 2))
    held = {weight.name: weight for weight in found.weights}
    assert list(held) == [
        *(f"blocks[{layer}].up" for layer in range(LAYERS)),
        *(f"blocks[{layer}].down" for layer in range(LAYERS)),
        *(f"blocks[{layer}].gain" for layer in range(LAYERS)),
        "embed",
    ]
    for layer in range(LAYERS):
        for name, whole in (("up", UP), ("down", DOWN), ("gain", GAIN)):
            part = held[f"blocks[{layer}].{name}"]
            np.testing.assert_array_equal(part.get(), whole[layer])
            assert (part.layer, part.shape) == (layer, whole.shape[1:])
            assert part.module == ("" if name == "gain" else part.name)
        assert found.of_module(f"blocks[{layer}].down", "output") is found.tensors[f"blocks.down:output#{layer}"]
    times = [held[f"blocks[{layer}].up"].time for layer in range(LAYERS)]
    np.testing.assert_allclose(times, [0.1, 1.1, 2.1])
    assert held["blocks[2].gain"].time == 0.1


def test_an_axis_of_layers_may_be_any() -> None:
    weights = {"layers.up.kernel": (UP.swapaxes(0, 1), "layers.up"), "layers.norm.scale": (GAIN.T, "layers.norm")}
    found = stacked(
        {f"params.{name}": value for name, value in weights.items()},
        *(calls(path, 1 + number) for number, path in enumerate(("layers.up", "layers.norm"))),
        calls("layers", 3, roles=True),
    )
    held = {weight.name: weight for weight in found.weights}
    np.testing.assert_array_equal(held["params.layers[1].up.kernel"].get(), UP[1])
    np.testing.assert_array_equal(held["params.layers[2].norm.scale"].get(), GAIN[2])
    assert held["params.layers[2].norm.scale"].module == "layers[2].norm"
    assert found.of_module("layers[2]", "output") is found.tensors["layers:output#2"]
    assert [held[f"params.layers[{layer}].up.kernel"].layer for layer in range(LAYERS)] == [None, 1, 2]


def test_stacks_at_the_root_are_of_layers_where_there_are_three() -> None:
    weights = {"up": (UP, "up"), "down": (DOWN, "down"), "gain": (GAIN, ""), "last": (np.ones(5), "")}
    two = stacked(weights, calls("up", 1), calls("down", 2))
    assert [weight.name for weight in two.weights] == [
        "up[0]",
        "up[1]",
        "up[2]",
        "down[0]",
        "down[1]",
        "down[2]",
        "gain",
        "last",
    ]
    assert two.weights[0].layer is None
    three = stacked({**weights, "again": (UP, "again")}, calls("up", 1), calls("down", 2), calls("again", 3))
    layers = {weight.name: weight.layer for weight in three.weights}
    assert (layers["gain[1]"], layers["again[2]"], layers["last"]) == (1, 2, None)


@pytest.mark.parametrize(
    ("weights", "number"),
    [({"up": (UP, "up")}, LAYERS - 1), ({"up": (UP, "up")}, 1), ({"up": (UP[:, 0], "up")}, LAYERS),
        ({"up.kernel": (UP, "up"), "up.other": (np.ones(9), "up")}, 4)],
    ids=["fewer calls", "a call", "a matrix", "no axis as long"],
)  # fmt: skip
def test_other_arrays_stay_whole(weights: dict[str, tuple[np.ndarray, str]], number: int) -> None:
    found = stacked(weights, calls("up", 1, number))
    assert [weight.name for weight in found.weights] == list(weights)
    assert {it.path for it in found.tensors.values()} == {"up", ""}


@pytest.mark.parametrize("ends", [("",), (".kernel", ".gain")])
def test_a_stack_within_a_layer_is_of_the_layer(ends: tuple[str, ...]) -> None:
    """Such as the three matrices of a fused projection: the layer's other weights are no stacks."""
    weights = {f"layers.2.qkv{end}": (each, "layers.2.qkv") for end, each in zip(ends, (UP, GAIN), strict=False)}
    weights["layers.2.bias"] = np.ones(4), ""
    made = recording([*calls("layers.2.qkv", 1), tensor("output", VALUES)])
    held = tuple(
        HeldWeight(name, module, values.shape, lambda values=values: values, layer=2)  # type: ignore[misc]
        for name, (values, module) in weights.items()
    )
    found = divide_stacks(replace(made, weights=held))
    assert [(weight.name, weight.layer) for weight in found.weights] == [
        *((f"layers.2.qkv[{part}]{end}", 2) for end in ends for part in range(3)),
        ("layers.2.bias", 2),
    ]


def test_kernels_of_a_layer_that_is_called_several_times_stay_whole() -> None:
    """Its heads are as many as its calls; its norm has no such axis."""
    weights = {
        "layer.q.kernel": (UP, "layer.q"),
        "layer.q.bias": (GAIN, "layer.q"),
        "layer.norm": (np.ones(5), "layer.norm"),
    }
    found = stacked(weights, calls("layer.q", 1), calls("layer.norm", 2))
    assert [weight.name for weight in found.weights] == list(weights)
    without = stacked(weights, calls("layer.q", 1), calls("layer.norm", 2, 2))
    assert len(without.weights) == 2 * LAYERS + 1


def test_a_table_that_is_read_as_often_is_no_layer() -> None:
    lookup = tensor("embed", VALUES, 0.5)
    found = stacked(FUNCTION, [lookup], calls("embed", 0), calls("blocks.up", 1), calls("blocks.down", 2))
    assert "blocks[0].up" in {weight.name for weight in found.weights}
