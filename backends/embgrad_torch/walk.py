"""Walks a model's modules: each once, by the first attribute path that leads there, and all names that things in it have."""

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
    "named_parameters",
    "paths",
    "place_of",
    "spelled",
    "tables",
    "walk",
]

#: The attribute of a compiled module that holds the module which was compiled: it has the same attributes.
ORIGINAL: Final = "_orig_mod"

#: How many further paths of one module are told. A module that many others share has as many.
MOST_PATHS: Final = 16


#: The modules whose tables are called by their own paths, also where others share these.
EMBEDDINGS: Final = (torch.nn.Embedding, torch.nn.EmbeddingBag)


def walk(parts: Sequence[Any]) -> list[tuple[str, Any]]:
    """The modules of a model with their paths, in the order of `named_modules`, which takes several times as long.

    With several parts, a path begins with the part's number.
    """
    numbered = len(parts) > 1
    waiting = [(str(number) if numbered else "", part) for number, part in enumerate(parts)][::-1]
    seen: dict[int, tuple[str, Any]] = {}
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen[id(module)] = (path, module)
        waiting += [(_joined(path, name), child) for name, child in reversed(_children(module))]
    return list(seen.values())


class Structure:
    """The modules of a model, walked once for a pass.

    Args:
        parts: the model's parts.

    Attributes:
        parts: see above.
        walked: the modules with their paths, each once.
        modules: the modules.
        paths: their paths.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.walked = walk(parts)
        self.modules = [module for _, module in self.walked]
        self.paths = [path for path, _ in self.walked]

    @property
    def locks(self) -> Sequence[Any]:
        """The locks of the modules and of their parameters, which several models may have, see `embgrad.backend.locks`."""
        return locks_of([*self.modules, *self.parameters()])

    def parameters(self) -> list[Any]:
        """The parameters that the modules have now, each once."""
        return _each_once(module._parameters for module in self.modules)

    def buffers(self) -> list[Any]:
        """The buffers that the modules have now, each once."""
        return _each_once(module._buffers for module in self.modules)


def _each_once(holders: Iterable[Mapping[str, Any]]) -> list[Any]:
    tensors = itertools.chain.from_iterable([held.values() for held in holders if held])
    return list({id(one): one for one in tensors if one is not None}.values())


def further_paths(parts: Sequence[Any], walked: Sequence[tuple[str, Any]]) -> dict[int, tuple[str, ...]]:
    """Return by identity the further paths of modules that several modules hold, directly or not."""
    first = {id(module): spelled(path) for path, module in walked}
    held = sum(len(_children(module)) for _, module in walked)
    if held + len(parts) == len(walked):  # a tree: each is held once
        return {}
    found: dict[int, list[str]] = defaultdict(list)
    numbered = len(parts) > 1
    waiting = [(str(number) if numbered else "", part, frozenset[int]()) for number, part in enumerate(parts)][::-1]
    while waiting:
        path, module, above = waiting.pop()
        others = found[id(module)]
        if spelled(path) != first[id(module)]:
            if len(others) >= MOST_PATHS or id(module) in above:
                continue
            others.append(spelled(path))
        inside = above | {id(module)}
        waiting += [(_joined(path, name), child, inside) for name, child in reversed(_children(module))]
    return {key: tuple(dict.fromkeys(paths)) for key, paths in found.items() if paths}


def _children(module: Any) -> list[tuple[str, Any]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def spelled(path: str) -> str:
    """A path as users write it: without the steps into compiled modules."""
    return ".".join(step for step in path.split(".") if step != ORIGINAL) if ORIGINAL in path else path


def is_compiled_wrapper(module: Any) -> bool:
    """Return whether a module is the wrapper that `torch.compile` makes of another, which has the same path."""
    return ORIGINAL in module._modules


def named_parameters(walked: Iterable[tuple[str, Any]], *, repeated: bool = False) -> Iterator[tuple[str, Any]]:
    """The parameters by attribute path, in the model's order: each once, under its first name, or `repeated` under all."""
    seen: set[int] = set()
    for path, module in walked:
        for name, parameter in module._parameters.items():
            if parameter is not None and (repeated or id(parameter) not in seen):
                seen.add(id(parameter))
                yield spelled(_joined(path, name)), parameter


def tables(walked: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The matrices of modules with these paths, each with its path, those of embeddings first.

    A table called `weight` has its module's path. One that several modules share has that of an embedding, or
    of the first.
    """
    found = []
    for path, module in walked:
        embedding = isinstance(module, EMBEDDINGS)
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.dim() == 2:
                found.append((not embedding, _table_path(spelled(path), name), tensor))
    return [(path, tensor) for _, path, tensor in sorted(found, key=operator.itemgetter(0))]


def by_identity(found: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """Return the first path of each table, by identity."""
    paths: dict[int, str] = {}
    for path, tensor in found:
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
        """The attribute path of a table; None where it is no module's, nor in the memory of one."""
        if self._paths is None:
            self._paths = by_identity(tables(self._walked))
        known = self._paths.get(id(table))
        if known is None:  # it may be another tensor in the same memory, such as a parameter's `.data`
            place = place_of(table)
            known = next((path for path, one in tables(self._walked) if place_of(one) == place), None)
        return known


def _table_path(module: str, name: str) -> str:
    return module if module and name == "weight" else _joined(module, name)


def place_of(tensor: Any) -> Any:
    """Return a key that tensors of the same memory share, such as a parameter and its `.data`."""
    with contextlib.suppress(RuntimeError):  # a subclass without memory of its own
        if (place := tensor.data_ptr()) != 0:  # 0 is what the tensors have that a trace is made with
            return (place, tensor.shape, tensor.stride(), tensor.device)
    return id(tensor)


def paths(model: Any) -> list[str]:
    """Every path under which a module or a table can be named."""
    parts = as_parts(model)
    walked = walk(parts)
    further = [path for some in further_paths(parts, walked).values() for path in some]
    own = [spelled(path) for path, _ in walked]
    return list(dict.fromkeys(path for path in (*own, *by_identity(tables(walked)).values(), *further) if path))
