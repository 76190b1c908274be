"""Weights of a model in any framework by their paths, and what goes wrong with them: a plant for every framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.cross.ports.fault import Plant

Change = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Weight:
    path: str
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]


def weights(model: Any) -> list[Weight]:
    """Return a model's weights; a path has dots between its parts."""
    package = "|".join(base.__module__ for base in type(model).__mro__)
    for mark, found in (
        ("modeling_flax_", _of_flax),
        ("modeling_tf_", _of_tensorflow),
        ("embgrad_jax", _of_nnx),
        ("mxnet", _of_gluon),
        ("keras", _of_keras),
        ("torch", _of_torch),
    ):
        if mark in package:
            return list(found(model))
    raise AssertionError(package)


def _of_torch(model: Any) -> Iterator[Weight]:
    import torch

    for path, parameter in model.named_parameters():

        def write(value: np.ndarray, parameter: Any = parameter) -> None:
            with torch.no_grad():
                parameter.copy_(torch.tensor(value))

        yield Weight(path, lambda parameter=parameter: parameter.detach().numpy().copy(), write)


def _of_keras(model: Any) -> Iterator[Weight]:
    for variable in model.weights:
        path = variable.path.replace("/", ".")
        yield Weight(path, lambda variable=variable: np.array(variable), variable.assign)


def _of_tensorflow(model: Any) -> Iterator[Weight]:
    for variable in model.weights:
        path = variable.name.partition(":")[0].replace("/", ".").replace("_._", ".")
        yield Weight(path, variable.numpy, variable.assign)


def _of_flax(model: Any) -> Iterator[Weight]:
    from flax.traverse_util import flatten_dict, unflatten_dict

    for key in flatten_dict(model.params):

        def write(value: np.ndarray, key: Any = key) -> None:
            import jax.numpy as jnp

            model.params = unflatten_dict({**flatten_dict(model.params), key: jnp.asarray(value)})

        yield Weight(".".join(key), lambda key=key: np.array(flatten_dict(model.params)[key]), write)


def _of_nnx(model: Any) -> Iterator[Weight]:
    import jax.numpy as jnp
    from flax import nnx

    for path, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Param):

            def write(value: np.ndarray, node: Any = node) -> None:
                node.value = jnp.asarray(value)

            yield Weight(".".join(map(str, path)), lambda node=node: np.array(node.value), write)


def _of_gluon(model: Any) -> Iterator[Weight]:
    import mxnet

    for path, parameter in model.collect_params().items():

        def write(value: np.ndarray, parameter: Any = parameter) -> None:
            parameter.set_data(mxnet.nd.array(value))

        yield Weight(path, lambda parameter=parameter: parameter.data().asnumpy(), write)


def _matching(model: Any, pattern: str) -> list[Weight]:
    found = [weight for weight in weights(model) if re.search(pattern, weight.path)]
    assert found, (pattern, [weight.path for weight in weights(model)])
    return found


def changed(pattern: str, change: Change) -> Plant:
    """Return what changes each weight whose path has the pattern."""

    def plant(model: Any) -> None:
        for weight in _matching(model, pattern):
            weight.write(change(weight.read()).astype(np.float32))

    return plant


def exchanged(first: str, second: str) -> Plant:
    """Return what exchanges the weights of two patterns, in the order in which they are found."""

    def plant(model: Any) -> None:
        a, b = _matching(model, first), _matching(model, second)
        for one, other in zip(a, b, strict=True):
            value, theirs = one.read(), other.read()
            one.write(theirs)
            other.write(value)

    return plant


def both(*plants: Plant) -> Plant:
    """Return what plants several."""

    def plant(model: Any) -> None:
        for part in plants:
            part(model)

    return plant


def transposed(value: np.ndarray) -> np.ndarray:
    """Return a square matrix transposed; heads are joined to one axis and divided again."""
    side = round(value.size**0.5)
    assert side * side == value.size, value.shape
    return value.reshape(side, side).T.reshape(value.shape)


def zeros(value: np.ndarray) -> np.ndarray:
    return np.zeros_like(value)


def in_float16(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float16)


def in_bfloat16(value: np.ndarray) -> np.ndarray:
    """Return the value rounded to the nearest of bfloat16, ties to even."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def times(factor: float) -> Change:
    return lambda value: value * factor


def noisy(share: float, seed: int = 0) -> Change:
    """Return the change to a weight that is near, as one trained for longer."""

    def change(value: np.ndarray) -> np.ndarray:
        return value + share * value.std() * np.random.default_rng(seed).normal(size=value.shape)

    return change


def drawn_anew(value: np.ndarray) -> np.ndarray:
    """Return another weight of the same size, as an initial one that no checkpoint replaced."""
    return np.random.default_rng(5).normal(value.mean(), value.std(), value.shape)


def rolled(steps: int, axis: int = 0) -> Change:
    return lambda value: np.roll(value, steps, axis)


def permuted(axis: int = 0, seed: int = 0) -> Change:
    """Return the change that puts rows or columns in another order."""

    def change(value: np.ndarray) -> np.ndarray:
        return np.take(value, np.random.default_rng(seed).permutation(value.shape[axis]), axis)

    return change


def heads_inside(heads: int, axis: int) -> Change:
    """Return the change that takes an axis of heads and their entries for one of entries and their heads."""

    def change(value: np.ndarray) -> np.ndarray:
        before, size, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
        return value.reshape(*before, heads, size // heads, *after).swapaxes(axis, axis + 1).reshape(value.shape)

    return change


def row_zeroed(row: int) -> Change:
    """Return the change that zeroes a row, as tables with a padding id begin."""

    def change(value: np.ndarray) -> np.ndarray:
        value = value.copy()
        value[row] = 0
        return value

    return change


def halves_interleaved(heads: int, axis: int) -> Change:
    """Return the change that puts the two halves of each head in turn, as the other layout of rotary positions wants them."""

    def change(value: np.ndarray) -> np.ndarray:
        before, size, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
        split = value.reshape(*before, heads, 2, size // heads // 2, *after)
        return split.swapaxes(axis + 1, axis + 2).reshape(value.shape)

    return change
