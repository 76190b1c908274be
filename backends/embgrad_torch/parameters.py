"""The parameters of a model by name: gradients, what else reaches the tables of lookups, and weights to be read and written."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from embgrad.backend import ParameterValues, Request, TableRest, Weight
from embgrad.backend.locks import held
from embgrad.backend.signature import as_parts
from embgrad.checkpoints.load_bert import bert_names
from embgrad.common.arrays import owned
from embgrad.forward.points import WORD, split_name
from embgrad_torch.inputs import dtype_name
from embgrad_torch.walk import Structure, by_identity, further_paths, named_parameters, place_of, spelled, tables, walk

__all__ = ["Tables", "alone", "parameter_values", "putter", "trainable", "weights"]


def trainable(walked: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The trainable parameters by attribute path, each once, in the model's order."""
    return {name: one for name, one in named_parameters(walked) if one.requires_grad}


def parameter_values(
    parameters: Mapping[str, Any], gradients: Sequence[np.ndarray | None]
) -> dict[str, ParameterValues]:
    """Return the gradients of the parameters as the core takes them."""
    return {
        name: ParameterValues(tuple(one.shape), gradient, dtype_name(one.dtype))
        for (name, one), gradient in zip(parameters.items(), gradients, strict=True)
    }


class Tables:
    """The tables of the lookups that a request asks for, and the parameters that share their memory.

    Attributes:
        parameters: those of them through which the graph may have a way, each once.
    """

    def __init__(self, parts: Sequence[Any], walked: Sequence[tuple[str, Any]], request: Request) -> None:
        self._tables: dict[str, Any] = {}
        self.parameters: list[Any] = []
        if not request.tables:
            return
        asked = {split_name(name).path for name in request.points}
        self._tables = {
            path: one for path, one in _by_table_path(walked).items() if WORD in request.points or path in asked
        }
        memory = {_memory(one) for one in self._tables.values()}
        candidates = named_parameters(walked) if memory else ()
        shared = {id(one): one for _, one in candidates if _memory(one) in memory}
        self.parameters = list(shared.values())
        self._names = _names(parts, walked, shared)

    @contextlib.contextmanager
    def differentiable(self) -> Iterator[None]:
        """Meanwhile those that are frozen are not."""
        frozen = [one for one in self.parameters if not one.requires_grad]
        try:
            for one in frozen:
                one.requires_grad_(True)
            yield
        finally:
            for one in frozen:
                one.requires_grad_(False)

    def rests(self, paths: Mapping[str, str], gradients: Sequence[np.ndarray | None]) -> dict[str, TableRest]:
        """Return by the keys of lookups the gradient that reaches their tables by other ways.

        Args:
            paths: by key the table's path.
            gradients: of `parameters`.
        """
        return {key: self._rest(self._tables[path], gradients) for key, path in paths.items() if path in self._tables}

    def _rest(self, table: Any, gradients: Sequence[np.ndarray | None]) -> TableRest:
        sharing = [
            (one, gradient)
            for one, gradient in zip(self.parameters, gradients, strict=True)
            if _memory(one) == _memory(table)
        ]
        own = self._names[id(table)]
        names = [*own, *(name for one, _ in sharing for name in self._names[id(one)])]
        return TableRest(_gathered(table, sharing), tuple(dict.fromkeys(names)))


def _by_table_path(walked: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    paths = by_identity(tables(walked))
    found: dict[str, Any] = {}
    for _, one in named_parameters(walked):
        if id(one) in paths and one.is_floating_point():
            found.setdefault(paths[id(one)], one)
    return found


def _names(parts: Sequence[Any], walked: Sequence[tuple[str, Any]], shared: Mapping[int, Any]) -> dict[int, list[str]]:
    """Return by identity all names of each parameter, the first name first."""
    found: dict[int, list[str]] = {}
    if not shared:
        return found
    also = further_paths(parts, walked)
    for path, module in walked:
        for name, one in module._parameters.items():
            if id(one) in shared:
                spelt = [f"{path}.{name}" if path else name for path in (spelled(path), *also.get(id(module), ()))]
                found.setdefault(id(one), []).extend(spelt)
    return found


def _memory(tensor: Any) -> Any:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):  # a subclass without memory of its own
        return id(tensor)


def _gathered(table: Any, sharing: Sequence[tuple[Any, np.ndarray | None]]) -> np.ndarray | None:
    """The sum of the gradients of all that lies in the table's memory, each at its place there."""
    if all(gradient is None for _, gradient in sharing):
        return None
    kept = next(gradient for _, gradient in sharing if gradient is not None)
    size, dtype = table.untyped_storage().nbytes() // table.element_size(), torch.from_numpy(kept).dtype
    memory = torch.zeros(size, dtype=dtype, device="cpu")  # wherever the user has new tensors
    for one, gradient in sharing:
        if gradient is not None:
            place = memory.as_strided(one.shape, one.stride(), one.storage_offset())
            place += torch.from_numpy(gradient)
    return np.array(memory.as_strided(table.shape, table.stride(), table.storage_offset()).numpy(), order="C")


def weights(model: Any) -> list[Weight]:
    """The parameters and the floating buffers by attribute path, each once, in the model's order."""
    walked = walk(as_parts(model))
    canonical = _canonical(walked)
    seen: set[Any] = set()
    found = []
    for path, module in walked:
        owner = spelled(path)
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or not _has_values(tensor) or place_of(tensor) in seen:
                continue
            seen.add(place_of(tensor))
            found.append(_weight(f"{owner}.{name}" if owner else name, owner, tensor, canonical.get(id(tensor))))
    return found


def alone(model: Any) -> AbstractContextManager[None]:
    """Meanwhile no other thread runs the model, or a part of it."""
    return held(Structure(as_parts(model)).locks)


def putter(tensor: Any) -> Callable[[np.ndarray], None]:
    """Return a function that writes values into a tensor's memory."""

    def put(value: np.ndarray) -> None:
        # By `data`, since a graph that the user holds would else take its saved tensors for overwritten.
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.data.copy_(torch.tensor(np.asarray(value), device="cpu"))

    return put


def _weight(name: str, owner: str, tensor: Any, canonical: str | None) -> Weight:
    def get() -> np.ndarray:
        with torch.inference_mode(False), torch.no_grad():
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            return owned(tensor.detach().to("cpu", wide).numpy())

    dtype = dtype_name(tensor.dtype)
    return Weight(name, owner, tuple(tensor.shape), dtype, get, putter(tensor), canonical)


def _has_values(tensor: Any) -> bool:
    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        return False
    return bool(tensor.is_floating_point() and tensor.layout is torch.strided)


def _canonical(walked: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """Return by identity the checkpoint's names of an encoder's parameters, where the model holds one BERT."""
    # Where nobody has a BERT, asking transformers for the class would import it, and TensorFlow with it.
    kind = getattr(sys.modules.get("transformers.models.bert.modeling_bert"), "BertModel", None)
    encoders: Sequence[Any] = [module for _, module in walked if kind is not None and isinstance(module, kind)]
    if len(encoders) != 1:
        return {}
    own = dict(encoders[0].named_parameters())
    known = set(bert_names(encoders[0].config.num_hidden_layers))
    return {id(parameter): name for name, parameter in own.items()} if own.keys() <= known else {}
