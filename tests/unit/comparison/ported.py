"""A small model in NumPy, its ports with other names, layouts and settings, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import embgrad
from embgrad.results.port_report import PortReport
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

DIM, INNER, LAYERS, VOCAB = 8, 12, 3, 30
BATCH = embgrad.TokenBatch(
    np.random.default_rng(1).permutation(np.arange(1, 25))[:18].reshape(3, 6), [[1] * 6, [1] * 6, [1, 1, 1, 1, 0, 0]]
)


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    arrays = {"table.W": random.normal(size=(VOCAB, DIM)), "places.W": random.normal(size=(9, DIM))}
    for layer in range(LAYERS):
        arrays |= {
            f"layers.{layer}.norm.W": 1 + 0.3 * random.normal(size=DIM),
            f"layers.{layer}.up.W": random.normal(size=(DIM, INNER)) / 3,
            f"layers.{layer}.up.b": random.normal(size=INNER) / 2,
            f"layers.{layer}.mix.W": random.normal(size=(INNER, INNER)) / 4,
            f"layers.{layer}.down.W": random.normal(size=(INNER, DIM)) / 3,
            f"layers.{layer}.down.b": random.normal(size=DIM) / 2,
        }
    return {**arrays, "head.W": random.normal(size=(DIM, 5))}


def normalised(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """Return the root-mean-square norm of the features."""
    spread = np.sqrt((x.value**2).mean(-1, keepdims=True) + epsilon)
    unit = x.value / spread

    def back(g: np.ndarray) -> np.ndarray:
        inner = g * gain.value
        return (inner - unit * (inner * unit).mean(-1, keepdims=True)) / spread

    return Tensor(unit * gain.value, [(x, back)])


def relu(x: Tensor) -> Tensor:
    return Tensor(np.maximum(x.value, 0), [(x, lambda g: g * (x.value > 0))])


def model(
    changes: Mapping[str, np.ndarray] | None = None,
    *,
    names: Callable[[str], str] = lambda name: name,
    transposed: bool = False,
    epsilon: float = 1e-2,
    activation: Callable[[Tensor], Tensor] = Tensor.tanh,
    offset: int = 0,
    scale: float = 1.0,
    residual: float = 1.0,
    at: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    layers: int = LAYERS,
    order: Sequence[int] | None = None,
    ids: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> ReferenceModel:
    """Return a model: rows and places, layers of a norm and three products with a residual, and a head for each position.

    Args:
        changes: arrays in place of the usual weights.
        names: returns the port's name of a module.
        transposed: whether matrices are stored as (output, input).
        epsilon: what the norms add.
        activation: the function before the last product of a layer.
        offset: the first position.
        scale: a multiplier of the table's rows.
        residual: a multiplier of what each layer adds.
        at: by path a change of what a module returns.
        layers: the number of layers.
        order: the numbers of those that run, in order; None for all.
        ids: returns the ids that are looked up.
    """
    hooks = at or {}
    arrays = {**weights(), **(changes or {})}

    def is_matrix(name: str) -> bool:
        return name.endswith(".W") and arrays[name].ndim == 2 and not name.startswith(("table", "places"))

    def stored(name: str) -> str:
        path, _, last = name.rpartition(".")
        return f"{names(path)}.{last}"

    held = {stored(name): values.T if transposed and is_matrix(name) else values for name, values in arrays.items()}

    def linear(m: ReferenceModel, path: str, x: Tensor) -> Tensor:
        def dense(x: Tensor) -> Tensor:
            matrix = m[stored(f"{path}.W")]
            y = x @ (matrix.swap(0, 1) if transposed else matrix)
            if stored(f"{path}.b") in m.parameters:
                y = y + m[stored(f"{path}.b")]
            return hooks.get(path, lambda value: value)(y)

        result: Tensor = m.module(names(path), dense, x)
        return result

    def layer(m: ReferenceModel, path: str, x: Tensor) -> Tensor:
        def block(x: Tensor) -> Tensor:
            gain = m[stored(f"{path}.norm.W")]
            hidden = m.module(names(f"{path}.norm"), lambda value: normalised(value, gain, epsilon), x)
            hidden = linear(m, f"{path}.mix", linear(m, f"{path}.up", hidden).tanh())
            return x + linear(m, f"{path}.down", activation(hidden)) * residual

        result: Tensor = m.module(names(path), block, x)
        return result

    def forward(m: ReferenceModel, input_ids: np.ndarray) -> Tensor:
        def embed(given: np.ndarray) -> Tensor:
            rows = lookup(m[stored("table.W")], ids(given)) * scale
            return rows + lookup(m[stored("places.W")], offset + np.arange(given.shape[1])[None])

        hidden = m.module(names("embed"), embed, input_ids)
        for number in range(layers) if order is None else order:
            hidden = layer(m, f"layers.{number}", hidden)
        return linear(m, "head", hidden)

    paths = [f"layers.{n}{part}" for n in range(layers) for part in ("", ".norm", ".up", ".mix", ".down")]
    return ReferenceModel(forward, held, [names(path) for path in ("embed", *paths, "head")])


def in_other_words(path: str) -> str:
    """Return a module's name in another framework."""
    for mine, its in {
        "layers.": "block/",
        "norm": "ln",
        "up": "fc1",
        "mix": "fc2",
        "down": "fc3",
        "table": "words",
    }.items():
        path = path.replace(mine, its)
    return path.replace(".", "/")


PORT: dict[str, Any] = {"names": in_other_words, "transposed": True}


def checked(port: ReferenceModel, **further: Any) -> PortReport:
    return embgrad.check_port(model(), port, BATCH, **further)


def found(report: PortReport) -> list[tuple[str, str]]:
    return [(cause.cause, cause.text) for cause in report.causes]


W = weights()
EVERY = f"layers 0–{LAYERS - 1}"
OBJECTIVE = embgrad.Sum()
