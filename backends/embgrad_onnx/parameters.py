"""The weights of a graph: its initialisers and constants of real numbers, and those of whole numbers that it scales."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.backend import Weight
from embgrad.errors import UnsupportedError
from embgrad.toolkit import copy_owned
from embgrad_onnx.graphs import Scale, size_of
from embgrad_onnx.importing import import_onnx
from embgrad_onnx.modules import PARTS, Modules, modules_of
from embgrad_onnx.walk import FLOATING, Source, location_of, named_tensors, source_of

__all__ = ["weights"]


def weights(model: Any) -> Sequence[Weight]:
    """Return the initialisers and the constants of several real numbers, each once, in the graph's order.

    Quantised ones, from which the graph subtracts a zero point and which it multiplies by a scale, have the numbers that it uses.
    Exporters write vectors that are equal, such as the scales of norms that were not trained, once: these are the weights of
    each module that reads them.
    """
    source = source_of(model)
    modules = modules_of(source)
    graph = modules.graph
    floating = {
        name: tensor
        for name, tensor in graph.tensors.items()
        if tensor.data_type in FLOATING and (name not in graph.makers or size_of(tensor) > 1)
    }
    found: dict[str, Weight] = {}
    for name, tensor in graph.tensors.items():
        if name in graph.scales:
            found[name] = _scaled_weight(source, modules, name, graph.scales[name])
        elif name in floating:
            found[name] = _weight(source, modules, name, tensor)
    for name, tensor in floating.items():
        is_vector = size_of(tensor) == max(tensor.dims, default=1) > 1
        for module in modules.owners.get(name, [])[1:] if is_vector else ():
            shared = _shared_weight(found[name], module, found)
            found[shared.name] = shared
    return list(found.values())


def _shared_weight(weight: Weight, module: str, known: Collection[str]) -> Weight:
    """Return a weight as that of another module that reads it; it cannot be written, as it is also the other's."""
    part = PARTS.search(weight.name)
    spelled = f"{module}{part[0]}" if part is not None else ""
    name = spelled if spelled and spelled not in known else f"{module}:{weight.name}"

    def put(value: np.ndarray) -> None:
        raise UnsupportedError(
            f"the weight {name!r} is {weight.name!r}, which the graph holds once for several modules: write that one, or export "
            "the model after its weights have different values"
        )

    return replace(weight, name=name, module=module, put=put)


def _weight(source: Source, modules: Modules, name: str, tensor: Any) -> Weight:
    def read() -> np.ndarray:
        return _load(source, name)

    def put(value: np.ndarray) -> None:
        _write(source, name, value)

    return Weight(
        name,
        next(iter(modules.owners.get(name, ())), ""),
        tuple(tensor.dims),
        FLOATING[tensor.data_type],
        lambda: copy_owned(read()),
        lambda indices: copy_owned(read()[indices]),
        put,
    )


def _scaled_weight(source: Source, modules: Modules, name: str, scale: Scale) -> Weight:
    """Return a weight of whole numbers with the real numbers that the graph makes of it; it cannot be written."""

    def read() -> np.ndarray:
        whole = _load(source, name)
        shape = [-1 if axis == scale.axis % whole.ndim else 1 for axis in range(whole.ndim)]
        steps, zero = (
            np.zeros(1) if part is None else _load(source, part).astype(np.float64)
            for part in (scale.steps, scale.zero)
        )
        real = (whole.astype(np.float64) - zero.reshape(shape)) * steps.reshape(shape)
        return real.astype(np.float32)

    def put(value: np.ndarray) -> None:
        raise UnsupportedError(
            f"the weight {name!r} holds whole numbers that the graph scales: write the weight of the model that was quantised, "
            "and quantise that anew"
        )

    return Weight(
        name,
        next(iter(modules.owners.get(name, ())), ""),
        tuple(modules.graph.tensors[name].dims),
        "float32",
        read,
        lambda indices: read()[indices],
        put,
    )


def _load(source: Source, name: str) -> np.ndarray:
    """Return a weight's values, read from its file where they are in one."""
    onnx, _ = import_onnx()
    tensor = modules_of(source).graph.tensors[name]
    if location_of(tensor) is None:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    copied = onnx.TensorProto()  # into which onnx reads the values
    copied.CopyFrom(tensor)
    try:
        return np.asarray(onnx.numpy_helper.to_array(copied, str(source.folder)))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise UnsupportedError(
            f"the weight {name!r} cannot be read from {location_of(tensor)!r} in {source.folder} "
            f"({' '.join(str(error).split())[:200]}): write or fetch the file again"
        ) from error


def _write(source: Source, name: str, value: np.ndarray) -> None:
    """Write values into a weight of the proto, in its dtype; the file that they came from stays as it is."""
    onnx, _ = import_onnx()
    tensor = named_tensors(source.proto)[name]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    new = onnx.numpy_helper.from_array(np.asarray(value).astype(dtype), tensor.name)
    new.data_type = tensor.data_type
    tensor.CopyFrom(new)
    source.clear()
