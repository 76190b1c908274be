"""Inputs of Keras models on any framework: the inputs that a model declares, and the batch arranged in their structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.common.arrays import whole_numbers
from embgrad.errors import BatchError
from embgrad.inputs.batch import TokenBatch
from embgrad.toolkit.signature import CallPlan, parameters_of, plan_call, plan_mapping

__all__ = [
    *("MASKS", "MODES", "cast_exactly", "find_declared", "declared_names", "fill", "is_keras", "keras_bases"),
    *("make_unique", "plan_keras_call"),
]

#: Names of parameters that select training or evaluation mode.
MODES: Final = ("training", "is_training")

#: Names of a first parameter that takes ids; a first parameter of any other name may take a dict of inputs.
IDS_ALONE: Final = ("input_ids", "input_word_ids", "token_ids", "encoder_token_ids", "ids", "tokens")

#: Keras's names for a mask, beside the names common to all frameworks. Elsewhere these names may mean 1 at padding.
MASKS: Final = ("padding_mask", "encoder_padding_mask")

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


def find_declared(part: Any) -> Any:
    """Return the inputs that a Keras model declares, or None if it declares none.

    The inputs are a symbolic tensor, or a list or dict of symbolic tensors or shapes.
    """
    if not is_keras(part):
        return None
    if _is_called_by_keras(part):
        if any(base.__qualname__ == "Sequential" for base in type(part).__mro__):
            inputs: Any = (
                getattr(part, "inputs", None) if part.built else None
            )  # none where a layer has no symbolic call
            return inputs[0] if inputs else None
        return part.input
    first = next(iter(parameters_of(part.call, skip=MODES)), None)
    if first is None or first.name in IDS_ALONE:
        return None
    spec = _find_called_with(part)
    return spec if isinstance(spec, Mapping) else None


def declared_names(part: Any) -> tuple[str, ...] | None:
    """Return the names of the inputs that a Keras model declares; None where it declares none by name."""
    structure = find_declared(part)
    return None if structure is None else tuple(_leaves(structure))


def plan_keras_call(part: Any, batch: TokenBatch, convert: Callable[[Any], Any]) -> CallPlan:
    """Return the arguments of the `call` of a model of Keras 3, and the parts of the batch that it cannot take.

    A `call` that passes on everything gets the batch in the user's form.

    Args:
        part: the model.
        batch: the batch.
        convert: returns the framework's own form of an array, or of another value that the user gave.

    Raises:
        BatchError: the model needs an input that the batch does not have, or declares it in a dtype that does not hold it.
    """

    def native(name: str, value: Any, dtype: Any) -> Any:
        if dtype is not None and isinstance(value, np.ndarray):
            value = cast_exactly(name, value, dtype, str(dtype))
        return convert(value)

    structure = find_declared(part)
    if structure is not None:
        inputs, unused = fill(structure, batch, native)
        return CallPlan((inputs,), {}, unused)
    taken = parameters_of(part.call, skip=MODES)
    if all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in taken):
        inputs = batch.inputs()
        own = () if isinstance(inputs, dict) else ("mask", "types")
        return CallPlan((convert(inputs),), {}, tuple(name for name in own if getattr(batch, name) is not None))
    planned = plan_call(taken, batch, masks=MASKS)
    dtypes = {"mask": np.bool_}  # as Keras's own masks are
    args = tuple(native(p.name, value, dtypes.get(p.name)) for p, value in zip(taken, planned.args, strict=False))
    kwargs = {name: native(name, value, dtypes.get(name)) for name, value in planned.kwargs.items()}
    return CallPlan(args, kwargs, planned.unused)


def _is_called_by_keras(part: Any) -> bool:
    """Return whether the model is a graph of layers whose class does not define `call` itself."""
    classes = type(part).__mro__
    graph = any(base.__qualname__ in ("Functional", "Sequential") for base in classes)
    definer = next(base for base in classes if "call" in vars(base))
    return graph and definer.__module__.partition(".")[0] in ("keras", "tf_keras")


def _find_called_with(part: Any) -> Any:
    """Return the inputs that the model was first called with or built for: specs in Keras 2, shapes in Keras 3."""
    if hasattr(part, "save_spec"):
        spec = part.save_spec()
        return spec[0][0] if spec and spec[0] else None
    return (part.get_build_config() or {}).get("input_shape") if hasattr(part, "get_build_config") else None


def fill(structure: Any, batch: TokenBatch, convert: Callable[[str, Any, Any], Any]) -> tuple[Any, tuple[str, ...]]:
    """Return the batch in the structure of the declared inputs, and the names of the parts of the batch that are unused.

    Types that were not given are zeros and a mask is ones, or None where the input is declared as optional.

    Args:
        structure: the declared inputs, as `find_declared` returns them.
        batch: the batch.
        convert: returns a native tensor for an input's name, value and declared dtype.

    Raises:
        BatchError: the batch has no value for an input.
    """
    leaves = _leaves(structure)
    optional = {name for name, leaf in leaves.items() if _is_optional(leaf)}
    values, unused = plan_mapping(list(leaves), batch, optional)
    tensors = {
        name: None if values[name] is None else convert(name, values[name], getattr(leaf, "dtype", None))
        for name, leaf in leaves.items()
    }
    return _like(structure, tensors), unused


def _leaves(declared: Any, key: str | None = None) -> dict[str, Any]:
    """Return declared inputs by name: the key in a dict, otherwise the tensor's name."""
    if isinstance(declared, Mapping):
        return {name: leaf for inner, entry in declared.items() for name, leaf in _leaves(entry, str(inner)).items()}
    if _is_list(declared):
        return {name: leaf for entry in declared for name, leaf in _leaves(entry).items()}
    return {key or declared.name: declared}


def _is_optional(leaf: Any) -> bool:
    """Return whether a declared input is one of Keras 3's that may be None (`keras.Input(optional=True)`)."""
    history = getattr(leaf, "_keras_history", None)
    return history is not None and getattr(history[0], "optional", False) is True


def _like(declared: Any, tensors: Mapping[str, Any], key: str | None = None) -> Any:
    """Return the named tensors in the structure of the declared inputs."""
    if isinstance(declared, Mapping):
        return {inner: _like(leaf, tensors, str(inner)) for inner, leaf in declared.items()}
    if _is_list(declared):
        return [_like(leaf, tensors) for leaf in declared]
    return tensors[key or declared.name]


def _is_list(declared: Any) -> bool:
    """Return whether a sequence holds several inputs, rather than the shape of a single input."""
    return isinstance(declared, (list, tuple)) and all(
        hasattr(entry, "dtype") or isinstance(entry, (Mapping, list, tuple)) for entry in declared
    )


def make_unique(names: Sequence[str]) -> tuple[str, ...]:
    """Return unique names for outputs: the second output called `name` becomes `name#1`.

    In Keras 3 all outputs of a layer with several, such as an LSTM, have the layer's name.
    """
    before = [list(names[:number]).count(name) for number, name in enumerate(names)]
    return tuple(f"{name}#{count}" if count else name for name, count in zip(names, before, strict=True))


def cast_exactly(name: str, value: np.ndarray, dtype: Any, spelled: str) -> np.ndarray:
    """Return an input's values in the dtype that the model declares for it.

    Raises:
        BatchError: the dtype cannot represent the whole numbers exactly.
    """
    cast = value.astype(dtype)
    whole = whole_numbers(value)
    if whole is not None and not np.array_equal(np.asarray(cast, np.float64), whole):
        raise BatchError(
            f"the model declares its input {name!r} as {spelled}, which does not hold numbers up to {whole.max()} "
            "exactly: expected an integer dtype; declare the input with dtype='int32'"
        )
    return cast
