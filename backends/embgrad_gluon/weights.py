"""The weights of a model: its floating parameters, each with a way to read it and to write it in place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from embgrad.arrays import owned
from embgrad.backend import Weight
from embgrad.calling import as_parts
from embgrad.locks import model_lock
from embgrad_gluon import bert
from embgrad_gluon.graphpoints import scope_paths
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.parameters import array_of
from embgrad_gluon.walk import block_names, named_blocks, unique_names

__all__ = ["alone", "weights"]

#: The dtypes with values between the whole numbers.
FLOATING: Final = ("float16", "bfloat16", "float32", "float64")


def weights(model: Any) -> list[Weight]:
    """The floating parameters that have arrays, those without a gradient too, by attribute path, each once."""
    parts = as_parts(model)
    owners, canonical = _owners(parts), _canonical(parts)
    return [
        _weight(name, parameter, owners.get(id(parameter), ""), canonical.get(id(parameter)))
        for name, parameter in unique_names(parts).items()
        if array_of(parameter) is not None and _dtype(array_of(parameter)) in FLOATING
    ]


def alone(model: Any) -> AbstractContextManager[None]:
    """Meanwhile no other thread runs the model, or a part of it."""
    return model_lock(list({id(block): block for _, block in named_blocks(as_parts(model))}.values()))


def _weight(name: str, parameter: Any, owner: str, canonical: str | None) -> Weight:
    array = array_of(parameter)

    def get() -> np.ndarray:
        with import_mxnet().autograd.pause():
            held = array_of(parameter)
            return owned((held.astype("float32") if _dtype(held) == "bfloat16" else held).asnumpy())

    return Weight(name, owner, tuple(map(int, array.shape)), _dtype(array), get, bert.putter(parameter), canonical)


def _dtype(array: Any) -> str:
    return str(np.dtype(array.dtype).name)


def _owners(parts: Sequence[Any]) -> dict[int, str]:
    """By a parameter's identity the path of the innermost block that holds it: it may have been made by one around that.

    In a SymbolBlock that is the scope of its graph in whose name its own begins.
    """
    names = block_names(parts)
    held = [
        (len(path.split(".")) if path else 0, path, parameter)
        for path, block in ((names[id(block)][0], block) for _, block in named_blocks(parts))
        for parameter in (*block._reg_params.values(), *block.params.values())
    ]
    owners: dict[int, str] = {}
    for _, path, parameter in sorted(held, key=lambda one: -one[0]):
        owners.setdefault(id(parameter), path)
    scopes = sorted(scope_paths(parts), key=len, reverse=True)
    for _, _, parameter in held if scopes else ():
        scope = next((one for one in scopes if parameter.name.startswith(f"{one}_")), None)
        owners[id(parameter)] = owners[id(parameter)] if scope is None else scope
    return owners


def _canonical(parts: Sequence[Any]) -> dict[int, str]:
    """By a parameter's identity what a checkpoint calls it, where the model holds one BERT."""
    encoders = {id(block): block for _, block in named_blocks(parts) if bert.is_stack(block)}
    if len(encoders) != 1:
        return {}
    (encoder,) = encoders.values()
    sources = bert.sources(len(encoder.encoder.transformer_cells))
    return {id(one): sources[name] for name, one in unique_names([encoder]).items() if name in sources}
