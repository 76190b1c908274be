"""Read the weights of a model in any framework, and substitute others temporarily."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import BoundModel, Weight
from embgrad.backend.registry import backend_for
from embgrad.common.arrays import to_numpy
from embgrad.errors import EmbgradError, brief, did_you_mean, quote

__all__ = ["depth_of", "substitute", "weights_of", "weights_sums"]

#: The number of 64-bit words in a block of weights. It is odd, since equal changes to a power-of-two number of words, such as
#: of their signs, would add up to zero.
BLOCK: Final = 1021


def weights_of(model: Any) -> list[Weight]:
    """Return every floating-point parameter and buffer that has values, in the model's order, shared ones once."""
    backend = backend_for(model)
    BoundModel(backend, model).expect_ability("weights")

    def alone(read: Callable[..., np.ndarray], *args: Any) -> np.ndarray:
        with backend.alone(model):  # so that another thread's substituted values are not read
            return read(*args)

    return [
        replace(weight, get=partial(alone, weight.get), rows=partial(alone, weight.rows))
        for weight in backend.weights(model)
    ]


def weights_sums(model: Any) -> dict[str, str]:
    """Return by name checksums that change when values change or move, in a fraction of the time of a digest.

    The dict is empty where the backend cannot read weights.
    """
    if "weights" not in backend_for(model).supports:
        return {}
    return {weight.name: _sums(weight.get()) for weight in weights_of(model)}


def _sums(array: np.ndarray) -> str:
    """Return a digest of two sums: over the words of each block, and over all blocks at each index."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = len(data) - len(data) % (8 * BLOCK)
    blocks = data[:whole].view(np.uint64).reshape(-1, BLOCK)
    digest = hashlib.sha256()
    for sums in (np.add.reduce(blocks, axis=1), np.add.reduce(blocks, axis=0), data[whole:]):
        digest.update(sums.tobytes())
    return digest.hexdigest()


def depth_of(model: Any) -> int:
    """Return the number of weights of two axes or more, which bounds the number of successive matrix products."""
    return sum(weight.is_matrix for weight in weights_of(model))


@contextlib.contextmanager
def substitute(model: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Substitute values for some weights; restore the original bits on exit, even after an exception.

    No other thread runs the model through embgrad while the values are substituted.

    Args:
        values: by the weights' names, see `weights_of`, arrays of their shapes.
    """
    backend = backend_for(model)
    BoundModel(backend, model).expect_ability("weights")
    with backend.alone(model):
        known = {weight.name: weight for weight in backend.weights(model)}
        checked = {name: _check(name, value, known) for name, value in values.items()}
        original = {name: known[name].get() for name in checked}
        try:
            for name, value in checked.items():
                known[name].put(value)
            yield
        finally:
            for name, value in original.items():
                known[name].put(value)


def _check(name: str, value: Any, known: Mapping[str, Weight]) -> np.ndarray:
    if name not in known:
        raise EmbgradError(
            f"the model has no weight {name!r}: expected one of {quote(known)}; embgrad.engine.weights lists them all."
            f"{did_you_mean(name, known)}"
        )
    try:
        array = to_numpy(value)
    except ValueError as error:
        raise EmbgradError(
            f"the value for the weight {name!r} is {brief(value)}, which is no array ({error}): expected real numbers of the "
            f"shape {known[name].shape}"
        ) from error
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise EmbgradError(f"the value for the weight {name!r} is of dtype {array.dtype}: expected real numbers")
    expected = known[name].shape
    if array.shape != expected:
        hint = "; transpose it" if array.T.shape == expected else ""
        raise EmbgradError(f"the value for the weight {name!r} has the shape {array.shape}: expected {expected}{hint}")
    return array
