"""Turn the batch into the arguments of a model's call: native tensors, of the dtypes that the model declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from embgrad.backend import Call, TokenBatch
from embgrad.errors import BatchError, UnsupportedError
from embgrad.keras import MASKS, MODES, cast_exactly, fill, find_declared, is_keras, make_unique
from embgrad.toolkit import as_parts, copy_nest, copy_owned, first, integer_arguments, parameters_of, plan_call
from embgrad_tensorflow.walk import kinds

__all__ = [
    "Plan",
    "TensorFlowTensors",
    "as_dtype",
    "integers",
    "is_symbolic",
    "like_evaluation",
    "plan",
]


@dataclass(frozen=True)
class Plan:
    """The call of a model: its arguments and the unused inputs.

    Attributes:
        invoke: calls it with the arguments, or with others in their places.
        arguments: a nest, of tensors and of what else is passed.
        unused: what of the batch is left out.
        outputs: the names of its outputs, in order, if it returns them unnamed.
        graph: "alone" where the model is a compiled graph already, "in a layer" where a layer holds that; else None.
    """

    invoke: Callable[[Any], Any]
    arguments: Any
    unused: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    graph: str | None = None

    def call(self) -> Any:
        """Call the model with arguments that are this pass's own."""
        return self.invoke(copy_nest(self.arguments, _is_unmodified))


def _is_unmodified(value: Any) -> bool:
    """Return whether no pass writes into a value, or it is restored as weights are."""
    is_tensor = isinstance(value, (tf.Tensor, tf.IndexedSlices, tf.RaggedTensor, tf.SparseTensor))
    return is_tensor or kinds[type(value)] in ("variable", "module")


def plan(model: Any, batch: TokenBatch, training: bool, call: Call | None) -> Plan:
    """Return how the model is called on the batch.

    A functional or sequential model gets its declared inputs, in the structure in which it declares them. A model that
    was built or called with one dict gets a dict with the same keys. Any other gets arguments by its signature: ids
    to the parameter of a known name or else the first one, the mask to one of a known name.

    Raises:
        BatchError: the model needs an input that the batch does not have, or a dtype that cannot hold the ids.
        UnsupportedError: several parts, or an object that cannot be called, without `call`.
    """
    if call is not None:
        inputs = tf.nest.map_structure(_native, batch.inputs())
        return Plan(lambda inputs: call(model, inputs), inputs)
    part = _only_part(model)
    structure = find_declared(part)
    if structure is not None:
        inputs, unused = fill(structure, batch, as_dtype)
        names = make_unique(getattr(part, "output_names", None) or ())
        return Plan(lambda inputs: part(inputs, training=training), inputs, unused, names)
    target = getattr(part, "call", None) if is_keras(part) else None
    if not callable(part):
        raise UnsupportedError(
            f"the model is a {type(part).__qualname__}, which cannot be called. Give a model with a __call__, or pass "
            "call=lambda model, inputs: model.method(inputs)"
        )
    target = target or getattr(part, "python_function", None) or part.__call__
    return _plan_signature(part, target, batch, training)


def _only_part(model: Any) -> Any:
    parts = as_parts(model)
    if isinstance(model, (list, tuple)):
        raise UnsupportedError(
            f"the model is a sequence of {len(parts)} parts, and embgrad does not know how to combine them. Pass "
            "call=lambda parts, inputs: outputs"
        )
    return parts[0]


def _plan_signature(part: Any, target: Any, batch: TokenBatch, training: bool) -> Plan:
    names = {parameter.name for parameter in parameters_of(target)}
    mode: dict[str, bool] = {name: training for name in MODES if name in names}
    if is_keras(part):  # accepts it and passes it to its layers
        mode.setdefault("training", training)
    parameters = parameters_of(target, skip=MODES)
    if is_keras(part) and [p.kind for p in parameters] == [
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    ]:
        return _plan_first(part, batch, mode)
    planned = plan_call(parameters, batch, masks=MASKS if is_keras(part) else ())
    dtypes = _dtypes(part, target)
    args = [_argument(p.name, value, dtypes) for p, value in zip(parameters, planned.args, strict=False)]
    kwargs = {name: _argument(name, value, dtypes) for name, value in planned.kwargs.items()}
    return Plan(lambda arguments: part(*arguments[0], **arguments[1], **mode), (args, kwargs), planned.unused)


def _plan_first(part: Any, batch: TokenBatch, mode: Mapping[str, bool]) -> Plan:
    """Plan a Keras `call(*args, **kwargs)`, which receives the batch as its first argument."""
    inputs = tf.nest.map_structure(_native, batch.inputs())
    unused = [name for name in ("mask", "types") if getattr(batch, name) is not None and not isinstance(inputs, dict)]
    return Plan(lambda inputs: part(inputs, **mode), inputs, tuple(unused))


def _dtypes(part: Any, target: Any) -> dict[str, Any]:
    """Return the dtypes that are declared for arguments: Keras's `mask` is boolean, a `tf.function` may have a signature."""
    dtypes: dict[str, Any] = {"mask": tf.bool} if is_keras(part) else {}
    signature = getattr(target, "input_signature", None) or getattr(part, "input_signature", None)
    if signature:
        names = list(inspect.signature(getattr(target, "python_function", target)).parameters)
        names = names[1:] if names[:1] == ["self"] else names
        specs: Sequence[Any] = signature
        dtypes |= {name: spec.dtype for name, spec in zip(names, specs, strict=False) if hasattr(spec, "dtype")}
    return dtypes


def _argument(name: str, value: Any, dtypes: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):  # the whole batch
        return tf.nest.map_structure(_native, value)
    return as_dtype(name, value, dtypes[name]) if dtypes.get(name) is not None else _native(value)


def _native(value: Any) -> Any:
    """Return a NumPy array as a tensor, 64-bit integers as TensorFlow's models take them: 32-bit where they fit."""
    if not isinstance(value, np.ndarray):
        return value
    limits = np.iinfo(np.int32)
    if value.dtype == np.int64 and (not value.size or (value.min() >= limits.min and value.max() <= limits.max)):
        return tf.constant(value.astype(np.int32))
    return tf.convert_to_tensor(value)


def as_dtype(name: str, value: Any, dtype: Any) -> Any:
    """Return the value in a declared dtype, if that holds it exactly."""
    if dtype is None or not isinstance(value, np.ndarray):
        return _native(value)
    kind = tf.as_dtype(dtype)
    if kind == tf.string:
        raise BatchError(
            f"the model declares its input {name!r} as text, and the batch holds token ids. Pass the part of the model "
            "behind the tokenizer, or call=lambda model, inputs: ..."
        )
    return tf.constant(cast_exactly(name, value, kind.as_numpy_dtype, kind.name))


class TensorFlowTensors:
    """The properties of TensorFlow's tensors that the core reads."""

    kind = "a tf.Tensor"
    scalars: tuple[tuple[int, ...], ...] = ((),)

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is a `tf.Tensor`."""
        return isinstance(value, tf.Tensor)

    def dtype(self, tensor: Any) -> str:
        """Return the dtype's name."""
        return str(tensor.dtype.name)

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """Return the values in memory of their own; half precision widened to float32."""
        return copy_owned(tensor.numpy())

    def rows(self, tensor: Any, examples: np.ndarray, positions: np.ndarray) -> Any:
        """Return the rows, on the tape that is open."""
        return tf.gather_nd(tensor, np.stack([examples, positions], axis=1))


# Arguments of calls


def integers(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arguments that are integers, as NumPy, by the parameters' names, or by their keys in a dict of inputs."""
    named = _bind(model, args, kwargs)
    arguments = dict(named.arguments) if named is not None else dict(kwargs)
    if named is None:
        arguments |= {f"argument {number}": value for number, value in enumerate(args)}
    declared = tf.nest.flatten(getattr(model, "inputs", None) or []) if is_keras(model) else []
    return integer_arguments(arguments, lambda name, value: _integer_array(value), [spec.name for spec in declared])


def like_evaluation(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call in evaluation mode: those that say the mode say that."""
    named = _bind(model, args, kwargs)
    for mode in MODES:
        if mode in kwargs:
            kwargs = {**kwargs, mode: False}
        elif named is not None and mode in named.arguments and mode in named.signature.parameters:
            args = list(args)
            args[list(named.signature.parameters).index(mode)] = False
    return args, kwargs


def is_symbolic(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call computes only the shapes of a Keras model's outputs."""
    return first((tuple(args), dict(kwargs)), lambda value: type(value).__name__ == "KerasTensor") is not None


def _bind(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
    """Return the arguments by parameter; None where the signature does not say."""
    try:
        return inspect.signature(_target(model)).bind(*args, **kwargs)
    except (TypeError, ValueError):  # the call itself reports a mistake, or accepts more than it declares
        return None


def _target(model: Any) -> Any:
    if is_keras(model):
        return model.call
    python_function = getattr(model.__call__, "python_function", None)
    return model.__call__ if python_function is None else python_function


def _integer_array(value: Any) -> np.ndarray | None:
    if (
        isinstance(value, (tf.Tensor, np.ndarray))
        and np.dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype)).kind in "iu"
    ):
        return np.array(value)
    return None
