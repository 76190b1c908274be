"""Turn the batch into MXNet's arrays, and call the model with them in the order of its arguments."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.backend import Call, TokenBatch
from embgrad.toolkit import (
    CallPlan,
    copy_nest,
    copy_owned,
    expect_single,
    integer_arguments,
    parameters_of,
    plan_call,
    plan_mapping,
    whole_numbers,
)
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.walk import all_parameters, arrays_of, contexts_of, input_names

__all__ = ["GluonArrays", "arguments_of", "call_model", "is_floating", "native_like", "to_native", "widen"]

#: The names that `export` gives to the inputs of a gluonnlp model.
TRIPLE: Final = ["data0", "data1", "data2"]


def call_model(model: Any, parts: Sequence[Any], batch: TokenBatch, call: Call | None) -> tuple[Any, tuple[str, ...]]:
    """Call the model on the batch; return its outputs, and the names of the batch's parts that it could not take."""
    convert = _Conversion(all_parameters(parts), len(batch))
    if call is not None:
        return call(model, convert(batch.inputs())), ()
    expect_single(model)
    if isinstance(model, import_mxnet().gluon.SymbolBlock):
        arguments, unused = _by_input(model, batch)
        return model(*map(convert, arguments)), unused
    parameters, by_name = _parameters(model)
    if not by_name:  # Gluon cannot pass keyword-only arguments; those with a default are reported as unused
        parameters = [p for p in parameters if p.kind is not p.KEYWORD_ONLY or p.default is p.empty]
    plan = plan_call(parameters, batch)
    args = plan.args if by_name else _positional(parameters, plan)
    kwargs = plan.kwargs if by_name else {}
    return model(*map(convert, args), **{name: convert(value) for name, value in kwargs.items()}), plan.unused


def _by_input(block: Any, batch: TokenBatch) -> tuple[list[Any], tuple[str, ...]]:
    """Return the arguments of a SymbolBlock by its inputs' names, and the names of the batch's parts that it cannot take.

    Gluon's export names the inputs data0, data1 and so on, by their order alone; gluonnlp's triple goes by that order.
    """
    names = input_names(block)
    if batch.convention == "gluonnlp" and names == TRIPLE:
        return list(batch.to_gluonnlp()), tuple(batch.extras)
    filled, unused = plan_mapping(names, batch)
    return [filled[name] for name in names], unused


def arguments_of(block: Any, args: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return by name the arguments of a block's call that are whole numbers; Gluon's users pass ids as floats, too."""
    names = [parameter.name for parameter in _parameters(block)[0]]
    names += [f"args.{index}" for index in range(len(names), len(args))]

    def whole(_name: str, value: Any) -> np.ndarray | None:
        return whole_numbers(value.asnumpy()) if GluonArrays().is_tensor(value) else None

    return integer_arguments(dict(zip(names, args, strict=False)), whole, sequences=False)


class _Conversion:
    """The conversion from NumPy to MXNet's arrays, in the context of the model's parameters.

    Whole numbers become floats of the model's dtype, as Gluon's own data loaders make them: a net that computes with its
    ids (`x != 0` times activations) needs them so, and a lookup takes them. Models of mx.np, which mix the two, get int32, and
    so do numbers that the float type does not hold.
    """

    def __init__(self, parameters: Sequence[Any], examples: int) -> None:
        self._examples = examples
        self._mx = import_mxnet()
        contexts = (context for p in parameters for context in contexts_of(p))
        self._context = next(contexts, None) or self._mx.current_context()
        dtypes = Counter(p.dtype for p in parameters)  # strings or classes, of which two may mean one dtype
        names = Counter[str]()
        for dtype, count in dtypes.items():
            names[np.dtype(dtype).name] += count
        floats = [name for name, _ in names.most_common() if name in ("float16", "float32", "float64")]
        self._float = floats[0] if floats else "float32"
        data = [array for p in parameters for array in arrays_of(p)]
        self._as_numpy = self._mx.util.is_np_array() or any(isinstance(array, self._mx.np.ndarray) for array in data)

    def __call__(self, value: Any) -> Any:
        """Return the same structure with MXNet's arrays; a list counts as an array where its first axis is the examples.

        Arrays and objects, such as a cache, are copied, never shared: models write into what they are given.
        """
        if isinstance(value, Mapping):
            return {key: self(entry) for key, entry in value.items()}
        if type(value) is tuple:
            return tuple(map(self, value))
        if isinstance(value, self._mx.nd.NDArray):
            moved = value.as_in_context(self._context)
            return moved.copy() if moved is value else moved
        array = self._array(value)
        if array is None:
            return copy_nest(value)
        dtype = self._float if array.dtype.kind == "f" else self._integer_dtype(array)
        return to_native(array, self._context, dtype, self._as_numpy)

    def _array(self, value: Any) -> np.ndarray | None:
        """Return the value as an array of numbers; None where it is something else."""
        if isinstance(value, list) and len(value) == self._examples:
            try:
                value = np.asarray(value)
            except ValueError:  # ragged
                return None
        return value if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else None

    def _integer_dtype(self, array: np.ndarray) -> str:
        largest = int(np.abs(array.astype(np.int64)).max(initial=0))
        floating = self._float if self._float != "float16" else "float32"
        if not self._as_numpy and largest <= 2 ** (np.finfo(floating).nmant + 1):
            return floating
        return "int32" if largest < 2**31 else "int64"


def to_native(array: np.ndarray, context: Any, dtype: Any, as_numpy: bool) -> Any:
    """Return an array of mx.np or of mx.nd."""
    mx = import_mxnet()
    with mx.util.np_shape(as_numpy):  # only mx.np has the shape ()
        made = mx.ndarray.ndarray.array(array, ctx=context, dtype=dtype)  # `mx.nd.array` warns of SciPy's modules
        return made.as_np_ndarray() if as_numpy else made


def native_like(values: np.ndarray, array: Any) -> Any:
    """Return the values as an array of another's kind, dtype and context."""
    return to_native(values, array.ctx, array.dtype, isinstance(array, import_mxnet().np.ndarray))


def widen(array: np.ndarray) -> np.ndarray:
    """Return an array of `asnumpy`, which owns its memory, as float32 or float64."""
    return array if array.dtype in (np.float32, np.float64) else copy_owned(array)


def is_floating(value: object) -> bool:
    """Return whether a value is an array that can have a gradient."""
    return isinstance(value, import_mxnet().nd.NDArray) and np.dtype(value.dtype).kind == "f"


class GluonArrays:
    """The reading of MXNet's arrays, see `embgrad.backend.cotangents.Tensors`."""

    kind = "an MXNet array"
    scalars: tuple[tuple[int, ...], ...] = ((), (1,))  # mx.nd has no shape ()

    def __init__(self, *, training: bool = False) -> None:
        self._training = training

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is an array of mx.nd or mx.np."""
        return isinstance(value, import_mxnet().nd.NDArray)

    def dtype(self, tensor: Any) -> str:
        """Return the dtype's name."""
        return str(np.dtype(tensor.dtype))

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """Return a copy as NumPy, half precision widened; MXNet raises the errors of earlier operators here."""
        return widen(tensor.asnumpy())

    def rows(self, tensor: Any, examples: np.ndarray, positions: np.ndarray) -> Any:
        """Return the rows, recorded in the mode of the graph."""
        mx = import_mxnet()
        indices = to_native(np.stack([examples, positions]), tensor.ctx, np.int64, False)
        with mx.autograd.record(train_mode=self._training):
            rows = mx.nd.gather_nd(tensor.as_nd_ndarray(), indices)
            return rows.as_np_ndarray() if isinstance(tensor, mx.np.ndarray) else rows


def _parameters(block: Any) -> tuple[Sequence[inspect.Parameter], bool]:
    """Return the parameters of the method that declares what the model takes, and whether they can be passed by name."""
    gluon = import_mxnet().gluon
    called = parameters_of(block.__call__)  # that of Gluon's blocks names none
    if _has_named_parameters(called):
        return called, True
    if getattr(type(block), "forward", None) is gluon.HybridBlock.forward and "forward" not in vars(block):
        return parameters_of(block.hybrid_forward, skip=block._reg_params)[1:], False  # the first one is F
    declared = parameters_of(block.forward)
    children = list(block._children.values())
    if len(children) == 1 and not _has_named_parameters(declared):
        return _parameters(children[0])[0], False  # a wrapper that passes everything on
    return declared, False


def _has_named_parameters(parameters: Sequence[inspect.Parameter]) -> bool:
    return any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _positional(parameters: Sequence[inspect.Parameter], plan: CallPlan) -> list[Any]:
    """Return the arguments by position, as Gluon passes them on; those omitted before the last get their defaults."""
    given = dict(plan.kwargs)
    args = list(plan.args)
    for parameter in parameters[len(args) :]:
        if not given:
            break
        args.append(given.pop(parameter.name, parameter.default))
    return args
