"""Walk a model's modules, each once under its first attribute path; return the names of parameters and tables."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import sys
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from embgrad.keras import Node, is_keras, keras_bases, make_unique, value_of
from embgrad.keras import layers as keras_layers
from embgrad.toolkit import as_parts, locks_of

__all__ = [
    "Structure",
    "TablePaths",
    "Walked",
    "by_identity",
    "further_paths",
    "held_parameters",
    "held_tensors",
    "is_compiled_wrapper",
    "join",
    "keras_variables",
    "memory_key",
    "named_parameters",
    "original",
    "paths",
    "scripted_name",
    "spell",
    "storage_of",
    "tables",
    "walk",
]

#: The attribute of a wrapper by `torch.compile` that holds the module which was compiled.
ORIGINAL: Final = "_orig_mod"

#: The largest number of further paths that are listed of one module: a module that many others share has as many.
MOST_PATHS: Final = 16

CPU: Final = torch.device("cpu")

#: Modules that are never called.
UNCALLED: Final = (torch.nn.ParameterDict, torch.nn.ParameterList)

#: What each module holds in its attributes itself, and the most dicts and lists inside each other that tensors are looked for in.
OWN_ATTRIBUTES: Final = frozenset(vars(torch.nn.Module()))
MOST_NESTED: Final = 4

#: The modules that give a shared table its path.
EMBEDDINGS: Final = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class Walked(list[tuple[str, Any]]):
    """The modules of a model with their paths, each once.

    Attributes:
        variables: the variables of Keras layers; PyTorch's parameters are inside these.
        names: by identity the further names of modules in a model with Keras layers.
        keras: the Keras layers that no other Keras layer holds; empty in a model without any.
    """

    def __init__(self, modules: Iterable[tuple[str, Any]]) -> None:
        super().__init__(modules)
        self.variables: Sequence[Node] = ()
        self.names: Mapping[int, tuple[str, ...]] = {}
        self.keras: Sequence[Any] = ()

    @functools.cached_property
    def loose(self) -> Sequence[tuple[str, Any]]:
        """The tensors that modules hold as they are, alone or in dicts and lists, if the model has no parameters."""
        if self.variables or any(module._parameters for _, module in self):
            return ()
        return [
            (spell(join(path, name)), tensor)
            for path, module in self
            for name, tensor in _loose(
                {name: value for name, value in vars(module).items() if name not in OWN_ATTRIBUTES}
            )
        ]


def walk(parts: Sequence[Any]) -> Walked:
    """Return the modules of a model, in the order of `named_modules`, which takes several times as long.

    With several parts, a path begins with the part's number. A model with Keras layers is walked as on every other framework:
    Keras leaves most layers out of PyTorch's modules.
    """
    waiting = _roots(parts)
    reached: dict[int, tuple[str, Any]] = {}
    while waiting:
        path, module = waiting.pop()
        if id(module) not in reached:
            reached[id(module)] = (path, module)
            if module._modules:  # most modules hold none
                waiting += [(join(path, name), child) for name, child in reversed(_children(module))]
    has_keras = "keras" in sys.modules and any(is_keras(module) for _, module in reached.values())
    return _walk_keras(parts) if has_keras else Walked(reached.values())


def _walk_keras(parts: Sequence[Any]) -> Walked:
    aliases: dict[int, list[str]] = {}
    nodes = [
        Node(spell(node.path), node.value, node.kind, node.owner, spell(node.owner_path))
        for node in keras_layers.walk(parts, _kinds, _list_held, keras_layers.find_hidden, aliases)
    ]
    modules = [node for node in nodes if node.kind == "module"]
    walked = Walked((node.path, node.value) for node in modules)
    walked.variables = [node for node in nodes if node.kind == "variable" and value_of(node.value) is not None]
    walked.names = {key: names for key, names in keras_layers.further_names(modules, aliases).items() if names}
    walked.keras = [node.value for node in modules if is_keras(node.value) and not is_keras(node.owner)]
    return walked


def _loose(held: Any, depth: int = MOST_NESTED) -> Iterator[tuple[str, Any]]:
    """Yield the floating tensors in dicts and lists inside each other, with the keys and numbers that lead there."""
    entries = held.items() if isinstance(held, Mapping) else enumerate(held)
    for name, value in entries:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                yield str(name), value
        elif depth and isinstance(value, (Mapping, list, tuple)):
            yield from ((join(str(name), inner), tensor) for inner, tensor in _loose(value, depth - 1))


def _kind_of(cls: type) -> str | None:
    """Return the kind of a class in a model with Keras layers."""
    if issubclass(cls, torch.nn.Module):
        return "module"
    if "Variable" in keras_bases(cls):
        return "variable"
    return "object" if "SeedGenerator" in keras_bases(cls) else None


_kinds: Final = keras_layers.Kinds(_kind_of)


def _list_held(value: Any, kind: str) -> Iterable[tuple[str, Any]]:
    """Return what an object in a model with Keras layers holds, each with its name."""
    if kind == "object":
        held: Iterable[tuple[str, Any]] = vars(value).items()
        return held
    return keras_layers.attributes(value, value._modules) if is_keras(value) else _children(value)


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
        of_keras = {node.path: value_of(node.value) for node in self.walked.variables}
        return _each_once([*(module._parameters for module in self.modules), of_keras])

    @property
    def device(self) -> Any:
        """The device of the inputs: that of the first parameter or buffer with values."""
        of_keras = (value_of(node.value) for node in self.walked.variables)
        of_modules = (tensor for module in self.modules for _, tensor in held_tensors(module))
        tensors = itertools.chain(of_keras, of_modules)
        return next((tensor.device for tensor in tensors if not tensor.is_meta), CPU)

    def masked_rows(self, paths: Iterable[str]) -> list[int | None]:
        """Return the rows that the Keras layers of these tables mask, which a `padding_idx` of PyTorch's does not."""
        variables = self.walked.variables
        rows = dict(zip(keras_layers.table_paths(variables), map(_masked_row, variables), strict=True))
        return [rows.get(path) for path in paths]

    def buffers(self) -> list[Any]:
        """Return the buffers that the modules have now, each once."""
        return _each_once(module._buffers for module in self.modules)


def _each_once(holders: Iterable[Mapping[str, Any]]) -> list[Any]:
    tensors = itertools.chain.from_iterable([holder.values() for holder in holders if holder])
    return list({id(tensor): tensor for tensor in tensors if tensor is not None}.values())


def further_paths(parts: Sequence[Any], walked: Walked) -> dict[int, tuple[str, ...]]:
    """Return by identity the further paths of modules that several modules hold, directly or not."""
    if walked.keras:
        return dict(walked.names)
    first = {id(module): spell(path) for path, module in walked}
    edges = sum(len(_children(module)) for _, module in walked)
    if edges + len(parts) == len(walked):  # a tree
        return {}
    further: dict[int, list[str]] = defaultdict(list)
    waiting = [(path, part, frozenset[int]()) for path, part in _roots(parts)]
    while waiting:
        path, module, above = waiting.pop()
        others = further[id(module)]
        if spell(path) != first[id(module)]:
            if len(others) >= MOST_PATHS or id(module) in above:
                continue
            others.append(spell(path))
        inside = above | {id(module)}
        waiting += [(join(path, name), child, inside) for name, child in reversed(_children(module))]
    return {key: tuple(dict.fromkeys(paths)) for key, paths in further.items() if paths}


def _children(module: Any) -> list[tuple[str, Any]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def held_tensors(module: Any) -> list[tuple[str, Any]]:
    """Return the parameters and buffers that a module holds itself, with their names."""
    named = (*module._parameters.items(), *module._buffers.items())
    return [(name, tensor) for name, tensor in named if tensor is not None]


def held_parameters(module: Any) -> list[Any]:
    """Return the parameters that a module holds itself, or a Keras layer with those that it holds."""
    if is_keras(module):
        return [value_of(variable) for variable in module.weights if value_of(variable) is not None]
    return list(module._parameters.values())


def join(path: str, name: str) -> str:
    """Return the path of a module's attribute."""
    return f"{path}.{name}" if path else name


def spell(path: str) -> str:
    """Return a path as users write it: without the steps into compiled modules."""
    return ".".join(step for step in path.split(".") if step != ORIGINAL) if ORIGINAL in path else path


def is_compiled_wrapper(module: Any) -> bool:
    """Return whether a module is the wrapper that `torch.compile` makes of another, which has the same path."""
    return ORIGINAL in module._modules


def original(module: Any) -> Any:
    """Return the module inside a wrapper that `torch.compile` made; any other module as it is."""
    return module._modules[ORIGINAL] if is_compiled_wrapper(module) else module


def scripted_name(structure: Structure) -> str | None:
    """Return the path, or the class, of the first TorchScript module; None where there is none."""
    for path, module in structure.walked:
        if isinstance(module, torch.jit.ScriptModule):
            return path or type(module).__name__
    return None


def named_parameters(walked: Walked) -> Iterator[tuple[str, Any]]:
    """Yield the parameters with their names, in the model's order: each once, under its first name.

    Variables of Keras go by Keras's paths, all others by attribute paths.
    """
    yielded: set[int] = set()
    for name, variable in keras_variables(walked):
        if id(value_of(variable)) not in yielded:
            yielded.add(id(value_of(variable)))
            yield name, value_of(variable)
    for path, module in walked:
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in yielded:
                yielded.add(id(parameter))
                yield spell(join(path, name)), parameter


def keras_variables(walked: Walked) -> list[tuple[str, Any]]:
    """Return the variables of Keras with their names, in Keras's order: its paths, of which repeats get `#1`, `#2`, …

    With several parts, a name begins with the part's number.
    """
    known = {id(node.value): node for node in walked.variables}
    listed = [variable for _, module in walked if known and is_keras(module) for variable in _list(module)]
    each = {id(variable): variable for variable in listed if value_of(variable) is not None}
    for node in walked.variables:
        each.setdefault(id(node.value), node.value)
    part = {key: f"{node.path.partition('.')[0]}." for key, node in known.items()} if walked[0][0] else {}
    names = make_unique([f"{part.get(key, '')}{variable.path}" for key, variable in each.items()])
    return list(zip(names, each.values(), strict=True))


def _list(layer: Any) -> Iterable[Any]:
    """Return the variables that a Keras layer lists: the trainable ones first, in the order that users know."""
    return (*layer.trainable_variables, *layer.variables)


def tables(walked: Walked) -> list[tuple[str, Any]]:
    """Return the matrices of modules with their paths, those of embeddings first.

    A table called `weight` has its module's path, as has that of a Keras `Embedding`. One that several modules share has that
    of an embedding, or of the first.
    """
    matrices = []
    for path, node in zip(keras_layers.table_paths(walked.variables), walked.variables, strict=True):
        if value_of(node.value).dim() == 2:
            matrices.append((path != node.owner_path, path, value_of(node.value)))
    for path, module in walked:
        embedding = isinstance(module, EMBEDDINGS)
        for name, tensor in held_tensors(module):
            if tensor.dim() == 2:
                matrices.append((not embedding, _table_path(spell(path), name), tensor))
    matrices += [(True, name, tensor) for name, tensor in walked.loose if tensor.dim() == 2]
    return [(path, tensor) for _, path, tensor in sorted(matrices, key=operator.itemgetter(0))]


def by_identity(named: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """Return the first path of each table, by identity."""
    paths: dict[int, str] = {}
    for path, tensor in named:
        paths.setdefault(id(tensor), path)
    return paths


class TablePaths:
    """The paths of tables that are looked up."""

    def __init__(self, walked: Walked) -> None:
        self._walked = walked
        self._paths: dict[int, str] | None = None
        self._casts: dict[int, tuple[Any, Any]] = {}
        self._alone: dict[int | None, str] | None = None

    def alone(self) -> Mapping[int | None, str]:
        """Return the names of the matrices of what is never called as a module, and of modules with several, by their memory."""
        if self._alone is None:
            held = [
                (
                    path,
                    [
                        (name, value)
                        for name, value in held_tensors(module)
                        if value.dim() > 1 and value.is_floating_point()
                    ],
                    not path or isinstance(module, UNCALLED),
                )
                for path, module in self._walked
            ]
            self._alone = {
                storage: join(spell(path), name)
                for path, matrices, is_uncalled in held
                if len(matrices) > 1 or is_uncalled
                for name, value in matrices
                if (storage := storage_of(value)) is not None
            }
            loose = keras_layers.find_loose(self._walked.variables)
            of_keras = [(loose.get(id(node.value)), value_of(node.value)) for node in self._walked.variables]
            self._alone |= {storage_of(value): path for path, value in of_keras if path is not None}
            self._alone |= _alone_in_memory(self._walked.loose)
        return self._alone

    def of(self, table: Any) -> str | None:
        """Return the attribute path of a table; None for a table that is not in the memory of a module's."""
        if self._paths is None:
            self._paths = by_identity(tables(self._walked))
        table = self._before_cast(table)
        path = self._paths.get(id(table))
        if path is None:  # the table may be another tensor in the same memory, such as a parameter's `.data`
            key = memory_key(table)
            path = next((path for path, other in tables(self._walked) if memory_key(other) == key), None)
        return path

    def holder(self, array: Any) -> str | None:
        """Return the path of the parameter or buffer that an array is, or is a view or a cast of; None for any other array."""
        array = self._before_cast(array)
        storage = storage_of(array)
        if storage is None:
            return None
        for path, module in self._walked:
            for name, tensor in held_tensors(module):
                if storage_of(tensor) == storage:
                    return _table_path(spell(path), name)
        return None

    def padding(self, table: Any) -> int | None:
        """Return the row that a table's Keras layer declares to be padding."""
        table = self._before_cast(table)
        owners = (node.owner for node in self._walked.variables if value_of(node.value) is table)
        return next(filter(lambda row: row is not None, map(keras_layers.padding_row, owners)), None)

    def cast(self, matrix: Any, result: Any) -> None:
        """Record that a tensor is a parameter in another dtype, such as a table under mixed precision."""
        if result is not matrix and isinstance(matrix, torch.nn.Parameter) and matrix.dim() == 2:
            self._casts[id(result)] = weakref.ref(result), matrix

    def _before_cast(self, table: Any) -> Any:
        reference, matrix = self._casts.get(id(table), (None, table))
        return table if reference is None or reference() is not table else matrix


def _alone_in_memory(named: Iterable[tuple[str, Any]]) -> dict[int | None, str]:
    """Return the names of matrices by their memory, without that which several tensors share."""
    by_storage: dict[int | None, dict[Any, str]] = defaultdict(dict)
    for name, tensor in named:
        by_storage[storage_of(tensor)].setdefault(memory_key(tensor), name)
        if tensor.dim() < 2:
            by_storage[storage_of(tensor)][None] = name
    return {storage: next(iter(names.values())) for storage, names in by_storage.items() if len(names) == 1}


def _table_path(module: str, name: str) -> str:
    return module if module and name == "weight" else join(module, name)


def _masked_row(node: Any) -> int | None:
    return keras_layers.padding_row(node.owner)


def storage_of(tensor: Any) -> int | None:
    """Return the address of the memory that a tensor is in or is a view of; None for a subclass without memory of its own."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):
        return None


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
    first = [spell(path) for path, _ in walked]
    further = itertools.chain.from_iterable(further_paths(parts, walked).values())
    return list(dict.fromkeys(path for path in (*first, *by_identity(tables(walked)).values(), *further) if path))
