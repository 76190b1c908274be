"""Walk a model's modules, each once under its first attribute path; return the names of parameters and tables."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from embgrad.backend.locks import locks_of
from embgrad.backend.signature import as_parts

__all__ = [
    "Structure",
    "TablePaths",
    "by_identity",
    "further_paths",
    "is_compiled_wrapper",
    "joined",
    "memory_key",
    "named_parameters",
    "paths",
    "scripted_name",
    "spelled",
    "tables",
    "walk",
]

#: The attribute of a wrapper by `torch.compile` that holds the module which was compiled.
ORIGINAL: Final = "_orig_mod"

#: The largest number of further paths that are listed of one module: a module that many others share has as many.
MOST_PATHS: Final = 16

#: The modules that give a shared table its path.
EMBEDDINGS: Final = (torch.nn.Embedding, torch.nn.EmbeddingBag)


def walk(parts: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the modules of a model with their paths, in the order of `named_modules`, which takes several times as long.

    With several parts, a path begins with the part's number.
    """
    waiting = _roots(parts)
    reached: dict[int, tuple[str, Any]] = {}
    while waiting:
        path, module = waiting.pop()
        if id(module) not in reached:
            reached[id(module)] = (path, module)
            waiting += [(joined(path, name), child) for name, child in reversed(_children(module))]
    return list(reached.values())


def _roots(parts: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the parts with their paths, the last first."""
    return [(str(number) if len(parts) > 1 else "", part) for number, part in enumerate(parts)][::-1]


class Structure:
    """The modules of a model, walked once for a pass.

    Attributes:
        parts: the model's parts.
        walked: the modules with their paths, each once.
        modules: the modules.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.walked = walk(parts)
        self.modules = [module for _, module in self.walked]

    @property
    def locks(self) -> Sequence[Any]:
        """The locks of the modules and of their parameters, which several models may share."""
        return locks_of([*self.modules, *self.parameters()])

    def parameters(self) -> list[Any]:
        """Return the parameters that the modules have now, each once."""
        return _each_once(module._parameters for module in self.modules)

    def buffers(self) -> list[Any]:
        """Return the buffers that the modules have now, each once."""
        return _each_once(module._buffers for module in self.modules)


def _each_once(holders: Iterable[Mapping[str, Any]]) -> list[Any]:
    tensors = itertools.chain.from_iterable([holder.values() for holder in holders if holder])
    return list({id(tensor): tensor for tensor in tensors if tensor is not None}.values())


def further_paths(parts: Sequence[Any], walked: Sequence[tuple[str, Any]]) -> dict[int, tuple[str, ...]]:
    """Return by identity the further paths of modules that several modules hold, directly or not."""
    first = {id(module): spelled(path) for path, module in walked}
    edges = sum(len(_children(module)) for _, module in walked)
    if edges + len(parts) == len(walked):  # a tree
        return {}
    further: dict[int, list[str]] = defaultdict(list)
    waiting = [(path, part, frozenset[int]()) for path, part in _roots(parts)]
    while waiting:
        path, module, above = waiting.pop()
        others = further[id(module)]
        if spelled(path) != first[id(module)]:
            if len(others) >= MOST_PATHS or id(module) in above:
                continue
            others.append(spelled(path))
        inside = above | {id(module)}
        waiting += [(joined(path, name), child, inside) for name, child in reversed(_children(module))]
    return {key: tuple(dict.fromkeys(paths)) for key, paths in further.items() if paths}


def _children(module: Any) -> list[tuple[str, Any]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def joined(path: str, name: str) -> str:
    """Return the path of a module's attribute."""
    return f"{path}.{name}" if path else name


def spelled(path: str) -> str:
    """Return a path as users write it: without the steps into compiled modules."""
    return ".".join(step for step in path.split(".") if step != ORIGINAL) if ORIGINAL in path else path


def is_compiled_wrapper(module: Any) -> bool:
    """Return whether a module is the wrapper that `torch.compile` makes of another, which has the same path."""
    return ORIGINAL in module._modules


def scripted_name(structure: Structure) -> str | None:
    """Return the path, or the class, of the first TorchScript module; None where there is none."""
    for path, module in structure.walked:
        if isinstance(module, torch.jit.ScriptModule):
            return path or type(module).__name__
    return None


def named_parameters(walked: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters with their attribute paths, in the model's order: each once, under its first name."""
    yielded: set[int] = set()
    for path, module in walked:
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in yielded:
                yielded.add(id(parameter))
                yield spelled(joined(path, name)), parameter


def tables(walked: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the matrices of modules with their paths, those of embeddings first.

    A table called `weight` has its module's path. One that several modules share has that of an embedding, or
    of the first.
    """
    matrices = []
    for path, module in walked:
        embedding = isinstance(module, EMBEDDINGS)
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.dim() == 2:
                matrices.append((not embedding, _table_path(spelled(path), name), tensor))
    return [(path, tensor) for _, path, tensor in sorted(matrices, key=operator.itemgetter(0))]


def by_identity(named: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """Return the first path of each table, by identity."""
    paths: dict[int, str] = {}
    for path, tensor in named:
        paths.setdefault(id(tensor), path)
    return paths


class TablePaths:
    """The paths of tables that are looked up.

    Args:
        walked: the modules with their paths.
    """

    def __init__(self, walked: Sequence[tuple[str, Any]]) -> None:
        self._walked = walked
        self._paths: dict[int, str] | None = None

    def of(self, table: Any) -> str | None:
        """Return the attribute path of a table; None for a table that is not in the memory of a module's."""
        if self._paths is None:
            self._paths = by_identity(tables(self._walked))
        path = self._paths.get(id(table))
        if path is None:  # the table may be another tensor in the same memory, such as a parameter's `.data`
            key = memory_key(table)
            path = next((path for path, other in tables(self._walked) if memory_key(other) == key), None)
        return path


def _table_path(module: str, name: str) -> str:
    return module if module and name == "weight" else joined(module, name)


def memory_key(tensor: Any) -> Any:
    """Return a key that tensors of the same memory share, such as a parameter and its `.data`."""
    with contextlib.suppress(RuntimeError):  # a subclass without memory of its own
        if (address := tensor.data_ptr()) != 0:  # the fake tensors of a trace have 0
            return (address, tensor.shape, tensor.stride(), tensor.device)
    return id(tensor)


def paths(model: Any) -> list[str]:
    """Return every path under which a module or a table can be named."""
    parts = as_parts(model)
    walked = walk(parts)
    first = [spelled(path) for path, _ in walked]
    further = itertools.chain.from_iterable(further_paths(parts, walked).values())
    return list(dict.fromkeys(path for path in (*first, *by_identity(tables(walked)).values(), *further) if path))
