"""Walks a model's attributes: its modules and variables, each by its shortest attribute path."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf

from embgrad.points import UNNAMED_TABLE

__all__ = ["Node", "Tables", "handle_of", "is_keras", "kind_of", "walk"]

#: Attributes under which Keras and TensorFlow hold what the model's own attributes hold already.
BOOKKEEPING: Final = (
    "_checkpoint",
    "_functional",
    "_layers",
    "_metrics",
    "_non_trainable_variables",
    "_non_trainable_weights",
    "_operations",
    "_operations_by_depth",
    "_seed_generators",
    "_self_tracked_trackables",
    "_self_unconditional_checkpoint_dependencies",
    "_tracked",
    "_tracker",
    "_trainable_variables",
    "_trainable_weights",
)

#: Attributes that hold no modules or variables of the forward pass.
APART: Final = (
    "optimizer",
    "_optimizer",
    "_inbound_nodes",
    "_inbound_nodes_value",
    "_losses",
    "_nodes",
    "_nodes_by_depth",
    "_obj_reference_counts_dict",
    "_outbound_nodes",
    "_outbound_nodes_value",
    "_self_saveable_object_factories",
    "_self_unconditional_dependency_names",
)

#: The attribute under which each Keras's Embedding layer holds its table.
EMBEDDING_TABLES: Final = ("embeddings", "_embeddings")


@dataclass(frozen=True)
class Node:
    """A module or a variable in a model.

    Attributes:
        path: its attribute path; empty for the model itself.
        value: the object.
        kind: "module" or "variable".
        owner: the module that holds it; None for the model itself.
        owner_path: the owner's path.
    """

    path: str
    value: Any
    kind: str
    owner: Any
    owner_path: str


def walk(parts: Sequence[Any]) -> Iterator[Node]:
    """The modules and variables of a model, nearest first, each once, under the shortest path that leads there.

    Layers of functional and sequential models go by their names. With several parts, a path begins with the part's number.
    """
    numbered = len(parts) > 1
    open_ = deque(Node(str(number) if numbered else "", part, "module", None, "") for number, part in enumerate(parts))
    late: deque[Node] = deque()
    kinds = _Kinds()
    seen: dict[int, Any] = {}  # keeps them alive, so that no two have one id
    while open_ or late:
        node = open_.popleft() if open_ else late.popleft()
        if id(node.value) in seen:
            continue
        seen[id(node.value)] = node.value
        kind = kinds[type(node.value)] or ("module" if node.owner is None else None)
        if kind in ("module", "variable"):
            yield Node(node.path, node.value, kind, node.owner, node.owner_path)
        if kind == "variable":
            continue
        holder = (node.value, node.path) if kind == "module" else (node.owner, node.owner_path)
        for name, child in _children(node.value, kind):
            if kinds[type(child)] is None or name in APART:
                continue
            path = f"{node.path}.{name}" if node.path else name
            target = late if name in BOOKKEEPING else open_
            target.append(Node(path, child, "", *holder))


class _Kinds(dict[type, "str | None"]):
    """The kinds of classes, each found out once."""

    def __missing__(self, cls: type) -> str | None:
        self[cls] = kind_of(cls)
        return self[cls]


def kind_of(cls: type) -> str | None:
    """Whether objects of a class are a "variable", a "module", a "list" or a "dict"; None for anything else."""
    names = {base.__qualname__ for base in cls.__mro__}
    keras = {base.__qualname__ for base in cls.__mro__ if base.__module__.partition(".")[0] == "keras"}
    if issubclass(cls, tf.Variable) or "Variable" in keras:
        return "variable"
    if issubclass(cls, (list, tuple)) or "ListWrapper" in names:
        return "list"
    if issubclass(cls, Mapping) or "_DictWrapper" in names:
        return "dict"
    if issubclass(cls, tf.Module) or "AutoTrackable" in names or "SeedGenerator" in keras:
        return "module"
    return None


def is_keras(part: Any) -> bool:
    """Whether it is a layer or model of Keras 2 or 3."""
    bases = ((base.__module__.partition(".")[0], base.__qualname__) for base in type(part).__mro__)
    return any(root in ("keras", "tf_keras") and name == "Layer" for root, name in bases)


def handle_of(variable: Any) -> Any:
    """The resource that operations know a variable by, or None where it has none (yet)."""
    native = getattr(variable, "_value", variable)  # a Keras 3 variable wraps one of TensorFlow's
    return getattr(native, "handle", None)


def _children(value: Any, kind: str | None) -> Iterator[tuple[str, Any]]:
    if kind == "list":
        return ((str(number), entry) for number, entry in enumerate(value))
    if kind == "dict":
        return ((str(key), entry) for key, entry in list(value.items()))
    return _attributes(value)


def _attributes(module: Any) -> Iterator[tuple[str, Any]]:
    if _is_graph_of_layers(module):
        yield from ((layer.name, layer) for layer in module.layers)
    attributes = list(getattr(module, "__dict__", {}).items())
    yield from sorted(attributes, key=lambda item: item[0].startswith("_"))  # a stable sort: public ones first


def _is_graph_of_layers(module: Any) -> bool:
    return is_keras(module) and any(base.__qualname__ in ("Functional", "Sequential") for base in type(module).__mro__)


class Tables:
    """Names the tables that lookups are made in, by the resource of the variable."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._paths: dict[int, tuple[Any, str]] = {}

    def path(self, handle: Any) -> str:
        """The attribute path of the table's owner, for a bare variable its own; `UNNAMED_TABLE` for none of the model's."""
        if handle is None:
            return UNNAMED_TABLE
        if id(handle) not in self._paths:  # the first lookup, or a layer that was built just now
            found = ((handle_of(node.value), node) for node in walk(self._parts) if node.kind == "variable")
            self._paths = {id(known): (known, _table_path(node)) for known, node in found if known is not None}
            self._paths.setdefault(id(handle), (handle, UNNAMED_TABLE))
        return self._paths[id(handle)][1]


def _table_path(node: Node) -> str:
    """An Embedding layer goes by its own path: it holds one table."""
    attribute = node.path.removeprefix(f"{node.owner_path}.") if node.owner_path else node.path
    is_embedding = any(base.__qualname__ == "Embedding" for base in type(node.owner).__mro__)
    if is_embedding and attribute in EMBEDDING_TABLES and node.owner_path:
        return node.owner_path
    return node.path or UNNAMED_TABLE
