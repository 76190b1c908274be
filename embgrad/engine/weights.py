"""The weights of a model in any framework, to be looked at, and to be put others in their places for a while."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Weight
from embgrad.backend.registry import backend_for
from embgrad.common.arrays import to_numpy
from embgrad.engine.bound_model import expect_ability
from embgrad.errors import EmbgradError, brief, did_you_mean, listed

__all__ = ["depth_of", "substituted", "weights_of", "weights_sums"]

#: How many words of 64 bits a block of weights has. An odd number: as many changes of sign, or of one exponent, as a power of
#: two has would add up to nothing.
BLOCK: Final = 1021


def weights_of(model: Any) -> list[Weight]:
    """Every parameter and buffer of floating point that has values, in the model's order; a shared one once, by its first name.

    Args:
        model: as in `gradients`.

    Raises:
        BackendError: no backend takes the model.
        UnsupportedError: its backend cannot do this.
    """
    backend = backend_for(model)
    expect_ability(backend, "weights")

    def alone(get: Callable[[], np.ndarray]) -> np.ndarray:
        with backend.alone(model):  # else it might be what another thread has put there for a while
            return get()

    return [replace(one, get=partial(alone, one.get)) for one in backend.weights(model)]


def weights_sums(model: Any) -> dict[str, str]:
    """By the weights' names what tells whether they were changed, or changed places, in a fraction of a digest's time.

    Empty where the model's backend cannot tell.

    Raises:
        BackendError: no backend takes the model.
    """
    if "weights" not in backend_for(model).supports:
        return {}
    return {weight.name: _sums(weight.get()) for weight in weights_of(model)}


def _sums(array: np.ndarray) -> str:
    """A digest of sums over the bytes of each block, which tell the blocks apart, and over each place in all blocks."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = len(data) - len(data) % (8 * BLOCK)
    blocks = data[:whole].view(np.uint64).reshape(-1, BLOCK)
    made = hashlib.sha256()
    for part in (np.add.reduce(blocks, axis=1), np.add.reduce(blocks, axis=0), data[whole:]):
        made.update(part.tobytes())
    return made.hexdigest()


def depth_of(model: Any) -> int:
    """The number of weights of two axes or more: how many products of matrices, at most, lie one behind the other.

    Raises:
        BackendError: no backend takes the model.
        UnsupportedError: its backend cannot do this.
    """
    return sum(one.is_matrix for one in weights_of(model))


@contextlib.contextmanager
def substituted(model: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Other values in the places of some weights; afterwards, also after an exception, the bits that were there.

    Meanwhile no other thread runs the model through embgrad.

    Args:
        model: as in `gradients`.
        values: by the weights' names, see `weights_of`, arrays of their shapes.

    Raises:
        BackendError: no backend takes the model.
        UnsupportedError: its backend cannot do this.
        EmbgradError: there is no weight of that name, or it has another shape; then nothing is put.
    """
    backend = backend_for(model)
    expect_ability(backend, "weights")
    with backend.alone(model):
        known = {one.name: one for one in backend.weights(model)}
        checked = {name: _checked(name, value, known) for name, value in values.items()}
        found = {name: known[name].get() for name in checked}
        try:
            for name, value in checked.items():
                known[name].put(value)
            yield
        finally:
            for name, value in found.items():
                known[name].put(value)


def _checked(name: str, value: Any, known: Mapping[str, Weight]) -> np.ndarray:
    if name not in known:
        raise EmbgradError(
            f"the model has no weight {name!r}: expected one of {listed(known)}; embgrad.engine.weights lists them all."
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
