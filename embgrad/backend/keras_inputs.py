"""Inputs of Keras models on any framework: the inputs that a model declares, and the batch in their structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.signature import parameters_of, plan_mapping
from embgrad.common.arrays import whole_numbers
from embgrad.errors import BatchError
from embgrad.inputs.batch import TokenBatch

__all__ = ["MASKS", "MODES", "cast_exactly", "declared", "filled", "is_keras", "keras_bases", "told_apart"]

#: Parameters that say in which mode to run.
MODES: Final = ("training", "is_training")

#: A first parameter of one of these names takes ids; one of any other name may take a dict of inputs.
IDS_ALONE: Final = ("input_ids", "input_word_ids", "token_ids", "ids", "tokens")

#: What Keras calls a mask beside the names of all frameworks; elsewhere it may be 1 at padding.
MASKS: Final = ("padding_mask",)

_known_bases: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()


def is_keras(part: Any) -> bool:
    """Return whether an object is a layer or model of Keras 2 or 3."""
    return "Layer" in keras_bases(type(part))


def keras_bases(cls: type) -> frozenset[str]:
    """Return the names of Keras's own classes among the bases of a class."""
    if cls not in _known_bases:
        roots = ((base.__module__.partition(".")[0], base.__qualname__) for base in cls.__mro__)
        _known_bases[cls] = frozenset(name for root, name in roots if root in ("keras", "tf_keras"))
    return _known_bases[cls]


def declared(part: Any) -> Any:
    """Return the inputs that a Keras model declares; None for a model that declares none.

    They are a symbolic tensor, or a list or dict of them or of shapes.
    """
    if not is_keras(part):
        return None
    if _is_called_by_keras(part):
        if any(base.__qualname__ == "Sequential" for base in type(part).__mro__):
            return part.inputs[0] if part.built and part.inputs else None
        return part.input
    first = next(iter(parameters_of(part.call, skip=MODES)), None)
    if first is None or first.name in IDS_ALONE:
        return None
    spec = _called_with(part)
    return spec if isinstance(spec, Mapping) else None


def _is_called_by_keras(part: Any) -> bool:
    """Return whether the model is a graph of layers, and its class defines no `call`."""
    classes = type(part).__mro__
    graph = any(base.__qualname__ in ("Functional", "Sequential") for base in classes)
    definer = next(base for base in classes if "call" in vars(base))
    return graph and definer.__module__.partition(".")[0] in ("keras", "tf_keras")


def _called_with(part: Any) -> Any:
    """Return the inputs that the model was first called with or built for: specs in Keras 2, shapes in Keras 3."""
    if hasattr(part, "save_spec"):
        spec = part.save_spec()
        return spec[0][0] if spec and spec[0] else None
    return (part.get_build_config() or {}).get("input_shape") if hasattr(part, "get_build_config") else None


def filled(structure: Any, batch: TokenBatch, convert: Callable[[str, Any, Any], Any]) -> tuple[Any, tuple[str, ...]]:
    """Return the batch in the structure of declared inputs, and what of the batch is left over.

    Args:
        structure: what `declared` returns.
        batch: the batch.
        convert: makes a native tensor, of an input's name, its value and its declared dtype.

    Raises:
        BatchError: the batch has nothing for an input.
    """
    dtypes = _leaves(structure)
    values, unused = plan_mapping(list(dtypes), batch)
    return _like(structure, {name: convert(name, values[name], dtype) for name, dtype in dtypes.items()}), unused


def _leaves(declared: Any, key: str | None = None) -> dict[str, Any]:
    """Return the dtypes of declared inputs by name: a dict's keys, else the tensors' own names."""
    if isinstance(declared, Mapping):
        return {name: dtype for inner, leaf in declared.items() for name, dtype in _leaves(leaf, str(inner)).items()}
    if _is_list(declared):
        return {name: dtype for leaf in declared for name, dtype in _leaves(leaf).items()}
    return {key or declared.name: getattr(declared, "dtype", None)}


def _like(declared: Any, tensors: Mapping[str, Any], key: str | None = None) -> Any:
    """Return the tensors, given by name, in the structure of the declared inputs."""
    if isinstance(declared, Mapping):
        return {inner: _like(leaf, tensors, str(inner)) for inner, leaf in declared.items()}
    if _is_list(declared):
        return [_like(leaf, tensors) for leaf in declared]
    return tensors[key or declared.name]


def _is_list(declared: Any) -> bool:
    """Return whether these are several inputs, and not the shape of one."""
    return isinstance(declared, (list, tuple)) and all(
        hasattr(one, "dtype") or isinstance(one, (Mapping, list, tuple)) for one in declared
    )


def told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of outputs that differ: in Keras 3 all outputs of one layer, such as an LSTM's, have its name.

    The second of a name goes by `name#1`.
    """
    before = [list(names[:number]).count(name) for number, name in enumerate(names)]
    return tuple(f"{name}#{count}" if count else name for name, count in zip(names, before, strict=True))


def cast_exactly(name: str, value: np.ndarray, dtype: Any, spelled: str) -> np.ndarray:
    """Return the values of an input in the dtype that is declared for it.

    Raises:
        BatchError: the dtype does not hold the whole numbers exactly.
    """
    cast = value.astype(dtype)
    whole = whole_numbers(value)
    if whole is not None and not np.array_equal(np.asarray(cast, np.float64), whole):
        raise BatchError(
            f"the model declares its input {name!r} as {spelled}, which does not hold numbers up to {whole.max()} "
            "exactly: expected an integer dtype; declare the input with dtype='int32'"
        )
    return cast
