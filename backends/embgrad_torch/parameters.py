"""The parameters of a model by name: their gradients, the gradients of tied tables, and weights that can be read and written."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from embgrad.backend import WORD, ParameterValues, Request, TableRest, Weight, split_name
from embgrad.checkpoints import keras_checkpoint
from embgrad.errors import UnsupportedError, quote
from embgrad.keras import layers as keras_layers
from embgrad.keras import value_of
from embgrad.toolkit import MemoryMeter, as_parts, copy_owned, held
from embgrad_torch.inputs import dtype_name, is_quantised
from embgrad_torch.state import set_trainable
from embgrad_torch.walk import (
    Structure,
    Walked,
    by_identity,
    further_paths,
    held_tensors,
    join,
    keras_variables,
    memory_key,
    named_parameters,
    original,
    spell,
    storage_of,
    tables,
    walk,
)

__all__ = ["Tables", "alone", "device_meter", "is_bert", "parameter_values", "trainable", "weights", "writer"]


def trainable(walked: Walked) -> dict[str, Any]:
    """Return the trainable parameters by name, each once, in the model's order.

    Raises:
        UnsupportedError: one has no values, since it is loaded during the pass, as another parameter.
    """
    parameters = {name: parameter for name, parameter in named_parameters(walked) if parameter.requires_grad}
    for name, parameter in parameters.items():
        if parameter.is_meta:
            raise UnsupportedError(
                f"the trainable parameter {name!r} is on the device 'meta', so that its gradient cannot be read: a device_map "
                "that offloads weights loads them anew for each pass. Load the model without offloading, or freeze this parameter"
            )
    return parameters


def parameter_values(
    parameters: Mapping[str, Any], gradients: Mapping[str, np.ndarray | None]
) -> dict[str, ParameterValues]:
    """Return the gradients of the parameters as the core takes them."""
    return {
        name: ParameterValues(tuple(parameter.shape), gradients.get(name), dtype_name(parameter.dtype))
        for name, parameter in parameters.items()
    }


class Tables:
    """The tables of the lookups that a request asks for, and the parameters that share their memory.

    Attributes:
        parameters: the parameters in the memory of these tables, each once.
    """

    def __init__(self, parts: Sequence[Any], walked: Walked, request: Request) -> None:
        requested = {split_name(name).path for name in request.points}
        self._tables: dict[str, Any] = {
            path: table for path, table in _by_table_path(walked).items() if WORD in request.points or path in requested
        }
        memory = {_memory(table) for table in self._tables.values()}
        candidates = named_parameters(walked) if memory else ()
        shared = {id(parameter): parameter for _, parameter in candidates if _memory(parameter) in memory}
        self.parameters: list[Any] = list(shared.values())
        self._names = _names(parts, walked, shared)

    @contextlib.contextmanager
    def differentiable(self) -> Iterator[None]:
        """Make the frozen ones among the parameters trainable while the context is open."""
        frozen = [parameter for parameter in self.parameters if not parameter.requires_grad]
        try:
            set_trainable(frozen, trainable=True)
            yield
        finally:
            set_trainable(frozen, trainable=False)

    def rests(self, paths: Mapping[str, str], gradients: Sequence[np.ndarray | None]) -> dict[str, TableRest]:
        """Return, by key, the gradient that reaches a lookup's table other than through lookups.

        Args:
            paths: by key the table's path.
            gradients: of `parameters`.
        """
        return {key: self._rest(self._tables[path], gradients) for key, path in paths.items() if path in self._tables}

    def _rest(self, table: Any, gradients: Sequence[np.ndarray | None]) -> TableRest:
        sharing = [
            (parameter, gradient)
            for parameter, gradient in zip(self.parameters, gradients, strict=True)
            if _memory(parameter) == _memory(table)
        ]
        names = [*self._names[id(table)], *(name for parameter, _ in sharing for name in self._names[id(parameter)])]
        return TableRest(_sum_up(table, sharing), tuple(dict.fromkeys(names)))


def _by_table_path(walked: Walked) -> dict[str, Any]:
    paths = by_identity(tables(walked))
    by_path: dict[str, Any] = {}
    for _, parameter in named_parameters(walked):
        if id(parameter) in paths and parameter.is_floating_point() and not parameter.is_meta:
            by_path.setdefault(paths[id(parameter)], parameter)
    return by_path


def _names(parts: Sequence[Any], walked: Walked, shared: Mapping[int, Any]) -> dict[int, list[str]]:
    """Return by identity all names of each parameter, the first name first."""
    names: dict[int, list[str]] = {}
    if not shared:
        return names
    for name, variable in keras_variables(walked):
        if id(value_of(variable)) in shared:
            names.setdefault(id(value_of(variable)), []).append(name)
    aliases = further_paths(parts, walked)
    for path, module in walked:
        for name, parameter in module._parameters.items():
            if id(parameter) in shared:
                paths = (spell(path), *aliases.get(id(module), ()))
                names.setdefault(id(parameter), []).extend(join(path, name) for path in paths)
    return names


def _memory(tensor: Any) -> int:
    return storage_of(tensor) or id(tensor)


def _sum_up(table: Any, sharing: Sequence[tuple[Any, np.ndarray | None]]) -> np.ndarray | None:
    """Return the sum of the gradients of all parameters in the table's memory, each added where the parameter lies."""
    reached = [(parameter, torch.from_numpy(gradient)) for parameter, gradient in sharing if gradient is not None]
    if not reached:
        return None
    size, dtype = table.untyped_storage().nbytes() // table.element_size(), reached[0][1].dtype
    memory = torch.zeros(size, dtype=dtype, device="cpu")  # whatever the user's default device is
    for parameter, gradient in reached:
        memory.as_strided(parameter.shape, parameter.stride(), parameter.storage_offset()).add_(gradient)
    return np.array(memory.as_strided(table.shape, table.stride(), table.storage_offset()).numpy(), order="C")


def weights(model: Any) -> list[Weight]:
    """Return the parameters and the floating buffers by name, each once, in the model's order.

    A model without parameters has the tensors that its modules hold as they are.
    """
    walked = walk(as_parts(model))
    canonical = _canonical(walked)
    of_keras = {
        id(variable.value): target for variable, target in keras_checkpoint(list(map(original, as_parts(model))))
    }
    by_memory: dict[Any, Weight] = {}
    nodes = {id(node.value): node for node in walked.variables}
    for name, variable in keras_variables(walked):
        tensor = value_of(variable)
        if _has_values(tensor) and memory_key(tensor) not in by_memory:
            node = nodes.get(id(variable))
            path = None if node is None or keras_layers.is_of_library(node.owner) else node.path
            weight = replace(_weight(name, "" if node is None else node.owner_path, tensor, None), path=path)
            target = of_keras.get(id(tensor))
            by_memory[memory_key(tensor)] = weight if target is None else target.with_name(weight)
    for path, module in walked:
        owner = spell(path)
        for name, tensor in held_tensors(module):
            if _has_values(tensor) and memory_key(tensor) not in by_memory:
                by_memory[memory_key(tensor)] = _weight(join(owner, name), owner, tensor, canonical.get(id(tensor)))
    for name, tensor in walked.loose:
        if _has_values(tensor):
            by_memory.setdefault(memory_key(tensor), _weight(name, "", tensor, None))
    return list(by_memory.values())


def alone(model: Any) -> AbstractContextManager[None]:
    """Hold the locks of the model's modules and parameters while the context is open."""
    return held(Structure(as_parts(model)).locks)


def device_meter(model: Any) -> MemoryMeter | None:
    """Return the meter of PyTorch's allocator on the model's CUDA GPU; None for a model on the CPU."""
    structure = Structure(as_parts(model))
    tensors = (*structure.parameters(), *structure.buffers())
    devices = {tensor.device for tensor in tensors if tensor.device.type != "meta"}
    if not devices or {device.type for device in devices} == {"cpu"}:
        return None
    device = next(iter(devices))
    if len(devices) > 1 or device.type != "cuda":
        raise UnsupportedError(
            f"the model is on {quote(sorted(map(str, devices)))}: expected a model on the CPU or on one CUDA GPU, whose memory "
            "can be measured"
        )

    def restart() -> None:
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)

    def read() -> tuple[int, int]:
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)

    return MemoryMeter(str(device), restart, read)


def writer(tensor: Any) -> Callable[[np.ndarray], None]:
    """Return a function that writes values into a tensor's memory."""

    def put(value: np.ndarray) -> None:
        if is_quantised(tensor):
            raise UnsupportedError(
                f"a weight of shape {tuple(tensor.shape)} is a quantised {type(tensor).__name__}, which holds no other values "
                "than those that it was made from. Use a model that is not quantised"
            )
        # Writing to `data` leaves the tensor's version, so that graphs of the user that saved the tensor stay valid.
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.data.copy_(torch.tensor(np.asarray(value), device="cpu"))

    return put


def _weight(name: str, owner: str, tensor: Any, canonical: str | None) -> Weight:
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32

    def values() -> Any:
        return tensor.detach().dequantize() if is_quantised(tensor) else tensor.detach()

    def get() -> np.ndarray:
        with torch.inference_mode(False), torch.no_grad():
            return copy_owned(values().to("cpu", wide).numpy())

    def rows(indices: np.ndarray) -> np.ndarray:
        with torch.inference_mode(False), torch.no_grad():
            selected = values()[torch.tensor(indices, device=tensor.device)]
            return np.asarray(selected.to("cpu", wide).contiguous().numpy())  # the selection is a copy of its own

    dtype = dtype_name(tensor.dtype)
    return Weight(name, owner, tuple(tensor.shape), dtype, get, rows, writer(tensor), canonical)


def _has_values(tensor: Any) -> bool:
    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        return False
    return bool(tensor.is_floating_point() and tensor.layout is torch.strided)


def _canonical(walked: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """Return by identity the checkpoint's names of an encoder's parameters, where the model holds one BERT."""
    encoders = [module for _, module in walked if is_bert(module)]
    if len(encoders) != 1:
        return {}
    from embgrad.checkpoints import bert_names

    parameters = bert_parameters(encoders[0])
    names = set(bert_names(encoders[0].config.num_hidden_layers))
    return {id(parameter): name for name, parameter in parameters.items()} if parameters.keys() <= names else {}


def bert_parameters(bert: Any) -> dict[str, Any]:
    """Return the parameters of a BERT by their names in a checkpoint, which compiled modules inside of it do not change."""
    return {spell(name): parameter for name, parameter in bert.named_parameters()}


def is_bert(module: Any) -> bool:
    """Return whether a module is a `transformers.BertModel`, without importing transformers."""
    bert = getattr(sys.modules.get("transformers.models.bert.modeling_bert"), "BertModel", None)
    return bert is not None and isinstance(module, bert)
