"""Turn the batch into the arguments of a function that was saved or compiled, by the inputs that it declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import numpy as np
import tensorflow as tf

from embgrad.backend import TokenBatch
from embgrad.errors import BatchError, UnsupportedError, quote
from embgrad.keras import MODES
from embgrad.toolkit import plan_mapping
from embgrad_tensorflow.inputs import Plan, as_dtype
from embgrad_tensorflow.walk import has_base, is_saved

__all__ = ["plan_restored"]

#: The signature that serving takes, where a saved object has no function of its own.
SERVING: Final = "serving_default"

#: Keras's layers around saved functions, with the attribute that holds one of these: of Keras 3, and what Keras 2 makes of a
#: saved layer whose class it does not know.
LAYERS: Final[Mapping[str, str]] = {
    "TFSMLayer": "call_endpoint_fn",
    "RevivedLayer": "keras_api.call_and_return_conditional_losses",
}


@dataclass(frozen=True)
class _Target:
    """The functions behind a call: `invoke(args, kwargs)` runs the one that fits the arguments."""

    functions: Sequence[Any]
    invoke: Callable[[Sequence[Any], Mapping[str, Any]], Any]
    graph: str = "alone"


def plan_restored(part: Any, batch: TokenBatch, training: bool) -> Plan | None:
    """Return how to call a saved object, a layer around one, or a compiled function; None for anything else."""
    target = _target(part, training)
    if target is None:
        return None
    if _is_hub_layer(part):
        training = training and bool(part.trainable)  # as `hub.KerasLayer` has it
    plans: list[Plan] = []
    wrong: list[Exception] = []
    for function in target.functions:
        try:
            plans.append(_plan(target, function, batch, training))
        except (BatchError, UnsupportedError) as error:
            wrong.append(error)
    if not plans:
        raise next((error for error in wrong if isinstance(error, BatchError)), wrong[0])
    return min(plans, key=lambda plan: len(plan.unused))


def _target(part: Any, training: bool) -> _Target | None:
    function = part._callable if _is_hub_layer(part) else None
    function = next((attrgetter(path)(part) for base, path in LAYERS.items() if has_base(part, base)), function)
    if function is not None:
        functions = _functions(function)
        if functions is None:
            return None
        return _Target(functions, lambda args, kwargs: part(_first(args, kwargs), training=training), "in a layer")
    functions = _functions(part)
    if functions is not None:
        return _Target(functions, lambda args, kwargs: part(*args, **kwargs))
    if not is_saved(part):
        return None
    signature = _signature(part)
    return _Target([signature], lambda args, kwargs: signature(*args, **kwargs))


def _is_hub_layer(part: Any) -> bool:
    """Return whether the object is a `hub.KerasLayer`, which decides on the mode by itself."""
    return has_base(part, "KerasLayer", package="tensorflow_hub")


def _functions(part: Any) -> list[Any] | None:
    """Return the compiled functions among which a call of the object chooses; None where it is not known for such."""
    if has_base(part, "ConcreteFunction"):
        return [part]
    restored = getattr(part, "concrete_functions", None)
    if restored is None and is_saved(part):
        restored = getattr(part.__call__, "concrete_functions", None) if callable(part) else None
    return list(restored) if restored else None


def _signature(part: Any) -> Any:
    signatures = dict(getattr(part, "signatures", None) or {})
    if SERVING in signatures:
        return signatures[SERVING]
    if len(signatures) == 1:
        return next(iter(signatures.values()))
    methods = [name for name, value in vars(part).items() if getattr(value, "concrete_functions", None)]
    advice = "call=lambda model, inputs: ... that calls one of its functions"
    if signatures:
        raise UnsupportedError(
            f"the saved model has {len(signatures)} signatures, {quote(signatures)}, and none is {SERVING!r}. Pass "
            f"{advice}, model.signatures[...](**inputs)"
        )
    raise UnsupportedError(
        f"the saved model cannot be called and has no signature; its functions are {quote(methods)}. Pass {advice}, "
        f"model.{methods[0] if methods else 'method'}(inputs)"
    )


def _first(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the inputs of a layer, which takes one argument: a dict for a signature."""
    return args[0] if args else dict(kwargs) if len(kwargs) > 1 else next(iter(kwargs.values()))


def _plan(target: _Target, function: Any, batch: TokenBatch, training: bool) -> Plan:
    declared, keywords = function.structured_input_signature
    named = [*zip(_parameters(function), declared, strict=False), *keywords.items()]
    leaves = {name: spec for parameter, entry in named for name, spec in _leaves(parameter, entry)}
    if not leaves:
        raise UnsupportedError(
            f"the saved function {tf.compat.as_str(function.name)!r} takes no tensors. Give a function that takes token ids"
        )
    for parameter, entry in named:
        if parameter in MODES and isinstance(entry, bool) and entry is not training:
            raise UnsupportedError(
                f"{parameter}={training} was requested, and the model was saved for {parameter}={entry} alone. Call embgrad with "
                f"training={entry}, or save the model for both"
            )
    modes = {name: tf.constant(training) for name, spec in leaves.items() if name in MODES and _is_flag(spec)}
    filled, unused = plan_mapping([name for name in leaves if name not in modes], batch)
    tensors = modes | {name: _fitting(name, value, leaves[name]) for name, value in filled.items() if name in leaves}
    args = [_like(parameter, entry, tensors) for parameter, entry in named[: len(declared)]]
    kwargs = {parameter: _like(parameter, entry, tensors) for parameter, entry in named[len(declared) :]}
    return Plan(lambda arguments: target.invoke(*arguments), (args, kwargs), unused, graph=target.graph)


def _is_flag(spec: Any) -> bool:
    return bool(spec.dtype == tf.bool and spec.shape.rank == 0)


def _parameters(function: Any) -> list[str]:
    """Return the names of the positional parameters."""
    if function.function_type is None:
        return list(function._arg_keywords or ())
    return list(function.function_type.parameters)


def _leaves(name: str, declared: Any) -> Iterator[tuple[str, Any]]:
    """Return the declared tensors by name: a dict's keys, else their own names, else the parameter's."""
    if isinstance(declared, Mapping):
        for key, entry in declared.items():
            yield from _leaves(str(key), entry)
    elif isinstance(declared, (list, tuple)):
        for number, entry in enumerate(declared):
            yield from _leaves(getattr(entry, "name", None) or f"{name}.{number}", entry)
    elif hasattr(declared, "dtype") and hasattr(declared, "shape"):
        yield name, declared


def _like(name: str, declared: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the declared structure with tensors in place of their descriptions; other values stay as they were saved."""
    if isinstance(declared, Mapping):
        return {key: _like(str(key), entry, tensors) for key, entry in declared.items()}
    if isinstance(declared, (list, tuple)):
        inner = [
            _like(getattr(entry, "name", None) or f"{name}.{number}", entry, tensors)
            for number, entry in enumerate(declared)
        ]
        return tuple(inner) if isinstance(declared, tuple) else inner
    return tensors.get(name, declared) if hasattr(declared, "dtype") else declared


def _fitting(name: str, value: Any, spec: Any) -> Any:
    """Return the value in the declared dtype, if it has the declared shape."""
    if type(spec).__name__ != "TensorSpec":
        raise UnsupportedError(
            f"the saved model's input {name!r} is declared as a {type(spec).__name__}, and a batch is a dense array. Pass "
            "call=lambda model, inputs: ... that converts it"
        )
    tensor, shape = as_dtype(name, value, spec.dtype), np.shape(value)
    if not spec.shape.is_compatible_with(shape):
        raise BatchError(
            f"the saved model's input {name!r} is of shape {tuple(spec.shape)}, and the batch gives {shape}. Pad or cut "
            "the batch to the lengths that the model was saved with"
        )
    return tensor
