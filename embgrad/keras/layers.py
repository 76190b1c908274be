"""Names in Keras models, the same on every framework that Keras runs on: of layers, of variables, and of tables.

A backend says what its objects are and what they hold; the walk, the order of attributes and the names are here.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from embgrad.keras.inputs import MODES, is_keras, keras_bases

__all__ = [
    "Kinds",
    "Node",
    "attributes",
    "bookkeeping",
    "entries",
    "errors_unchanged",
    "evaluating",
    "find_hidden",
    "find_loose",
    "further_names",
    "is_of_library",
    "padding_row",
    "restore_declared_order",
    "table_path",
    "table_paths",
    "value_of",
    "walk",
    "with_mask",
]

#: The attributes in which functional and sequential models hold their layers once more, which go by their names.
GRAPH: Final = frozenset({"_functional", "_operations", "_operations_by_depth"})

#: The order in which a walk takes what it meets: reached by public attributes, by private ones, or by what names no part.
PUBLIC, PRIVATE, NAMELESS = range(3)

#: The libraries whose layers are points, and what they multiply by is theirs.
LIBRARIES: Final = frozenset({"keras", "keras_hub", "tensorflow", "tf_keras"})

#: PyTorch's parameters, which a layer holds once more for the layers inside it.
PARAMETERS: Final = "_torch_params"


class Node(NamedTuple):
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


class Kinds(dict[type, "str | None"]):
    """The kinds of classes for `walk`, each computed once by a function of the class, or for containers by what they hold."""

    def __init__(self, kind_of: Callable[[type], str | None]) -> None:
        super().__init__()
        self._kind_of = kind_of

    def __missing__(self, cls: type) -> str | None:
        kind = self[cls] = self._kind_of(cls) or _kind_of_container(cls)
        return kind


def _kind_of_container(cls: type) -> str | None:
    if issubclass(cls, (list, tuple, set, frozenset, deque)):
        return "list"
    return "dict" if issubclass(cls, Mapping) else None


def walk(
    parts: Sequence[Any],
    kinds: Mapping[type, str | None],
    children: Callable[[Any, str], Iterable[tuple[str, Any]]],
    hidden: Callable[[Any], Collection[str]],
    aliases: dict[int, list[str]] | None = None,
) -> Iterator[Node]:
    """Return the modules and variables of a model, nearest first, each once, under the shortest path that leads there.

    Public attributes come before private ones, and layers of functional and sequential models go by their names. With several
    parts, a path begins with the part's number.

    Args:
        parts: the model's parts.
        kinds: for each class "module", "variable", "list" or "dict"; "function" or "object" for what may hold modules without
            being part of the model; None for what holds none.
        children: returns what an object of another kind than "list" and "dict" holds, each with its name.
        hidden: returns the attributes of a module in which the framework holds its parts once more. What only lists among them
            hold is found all the same.
        aliases: takes the other paths of the model's own attributes that lead to an object, by its id.
    """
    roots = ((str(number) if len(parts) > 1 else "", part) for number, part in enumerate(parts))
    waiting: list[deque[Node]] = [deque() for _ in range(NAMELESS + 1)]
    waiting[PUBLIC].extend(Node(path, part, "module", None, "") for path, part in roots)
    visited: dict[int, Any] = {}  # keeps the objects alive, so that ids stay unique
    while (level := next((level for level, nodes in enumerate(waiting) if nodes), None)) is not None:
        node = waiting[level].popleft()
        if id(node.value) in visited:
            if level != NAMELESS and aliases is not None:
                aliases.setdefault(id(node.value), []).append(node.path)
            continue
        visited[id(node.value)] = node.value
        kind = kinds[type(node.value)] or ("module" if node.owner is None else "")
        if kind in ("module", "variable"):
            yield node._replace(kind=kind)
        if kind == "variable":
            continue
        holder = (node.value, node.path) if kind == "module" else (node.owner, node.owner_path)
        known = hidden(node.value) if kind == "module" else ()
        for name, child in (entries if kind in ("list", "dict") else children)(node.value, kind):
            child_kind = kinds[type(child)]
            if child_kind is None or (name in known and child_kind not in ("list", "variable")):
                continue
            path = f"{node.path}.{name}" if node.path else name
            nameless = name in known or child_kind in ("function", "object")
            child_level = NAMELESS if nameless else PRIVATE if name.startswith("_") else PUBLIC
            waiting[max(level, child_level)].append(Node(path, child, "", *holder))


def entries(container: Any, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield what a "dict" or a "list" holds, each by its key or its number."""
    named = list(container.items()) if kind == "dict" else enumerate(container)
    return ((str(name), entry) for name, entry in named)


def attributes(module: Any, *further: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a module holds, by name: the layers of a functional or sequential model, then attributes, public ones first.

    Args:
        module: the module.
        further: what the framework keeps apart from the module's attributes, such as PyTorch its modules.
    """
    if not {"Functional", "Sequential"}.isdisjoint(keras_bases(type(module))):
        yield from ((layer.name, layer) for layer in module.layers)
    held = dict(getattr(module, "__dict__", {}))
    for entries in further:
        held |= entries
    yield from sorted(held.items(), key=lambda item: item[0].startswith("_"))


@functools.cache
def bookkeeping() -> Mapping[str, type]:
    """Return the attributes that Keras gives every layer and model, with their types.

    They hold settings for building and training, and once more what the model's own attributes hold.
    """
    modules = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
    fresh = [
        instance for keras in modules for instance in (keras.layers.Layer(name="embgrad"), keras.Model(name="embgrad"))
    ]
    names = {name: type(value) for instance in fresh for name, value in vars(instance).items()}
    # Keras 3 sets the first two as it runs a model, and the last on PyTorch as it builds a layer.
    return {**names, "stop_evaluating": bool, "stop_predicting": bool, PARAMETERS: object}


def find_hidden(module: Any) -> frozenset[str]:
    """Return the attributes of a Keras layer or model in which no name of a part begins; other modules have none."""
    return GRAPH.union(bookkeeping()) if is_keras(module) else frozenset()


def further_names(nodes: Iterable[Node], aliases: Mapping[int, Sequence[str]]) -> dict[int, tuple[str, ...]]:
    """Return by identity the further names of modules: their other paths, and a Keras layer's name where no other has it.

    Args:
        nodes: the modules.
        aliases: the other paths of modules by identity, as `walk` returns them.
    """
    nodes = list(nodes)
    by_path = {node.path: aliases[id(node.value)] for node in nodes if id(node.value) in aliases}
    counts = Counter(getattr(node.value, "name", None) for node in nodes if is_keras(node.value))
    return {id(node.value): tuple(dict.fromkeys(_further_names(node, by_path, counts))) for node in nodes}


def _further_names(node: Node, aliases: Mapping[str, Sequence[str]], counts: Mapping[Any, int]) -> Iterator[str]:
    steps = node.path.split(".")
    for count in range(len(steps), 0, -1):
        for alias in aliases.get(".".join(steps[:count]), ()):
            if alias != ".".join(steps[:count]):
                yield ".".join([alias, *steps[count:]])
    name = getattr(node.value, "name", None) if is_keras(node.value) else None
    if node.path and isinstance(name, str) and name != node.path and counts[name] == 1:
        yield name


def table_paths(nodes: Sequence[Node], path_of: Callable[[Node], str] | None = None) -> list[str]:
    """Return the paths of variables as tables: the variable's own where several would share a path.

    Args:
        path_of: returns a variable's path; `table_path` by default.
    """
    paths = list(map(path_of or table_path, nodes))
    counts = Counter(paths)
    return [path if counts[path] == 1 else node.path for path, node in zip(paths, nodes, strict=True)]


def table_path(node: Node) -> str:
    """Return the path of a variable as a table: that of its layer where that is an `Embedding`, else its own."""
    attribute = node.path.removeprefix(f"{node.owner_path}.")
    is_embedding = any(base.__qualname__ == "Embedding" for base in type(node.owner).__mro__)
    return node.owner_path if is_embedding and attribute.lstrip("_") == "embeddings" and node.owner_path else node.path


def is_of_library(layer: Any) -> bool:
    """Return whether a layer's class is one of Keras's or TensorFlow's own."""
    return type(layer).__module__.partition(".")[0] in LIBRARIES


def find_loose(nodes: Iterable[Node]) -> dict[int, str]:
    """Return by identity the paths of the matrices that products are points by: those of no module of their own.

    Such are the matrices of what is never called, and of modules with several. A layer with one is a point itself.
    """
    held = [node for node in nodes if len(node.value.shape) > 1 and not is_of_library(node.owner)]
    counts = Counter(id(node.owner) for node in held)
    return {
        id(node.value): node.path
        for node in held
        if counts[id(node.owner)] > 1 or not node.owner_path or not callable(node.owner)
    }


def restore_declared_order(module: Any, returned: Any) -> Any:
    """Return what a functional model returned, a dict in the order of its declared outputs: Keras sorts it on PyTorch."""
    if type(returned) is not dict or "Functional" not in keras_bases(type(module)):
        return returned
    outputs = module.output
    same = isinstance(outputs, Mapping) and outputs.keys() == returned.keys()
    return {name: returned[name] for name in outputs} if same else returned


@contextlib.contextmanager
def errors_unchanged() -> Iterator[None]:
    """Keep Keras from replacing an error of a function of the user's that runs inside a layer's call, see `EmbgradError`."""
    try:
        yield
    except Exception as error:
        if "keras" in sys.modules:
            with contextlib.suppress(AttributeError, TypeError):  # an error that takes no attributes
                error._keras_call_info_injected = True  # type: ignore[attr-defined]
        raise


@contextlib.contextmanager
def evaluating(model: Any, kwargs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the keyword arguments of a call of a Keras model as they are in evaluation mode.

    The call is open: Keras hands its mode on to the layers inside, in a context of the thread.
    """
    calls = model._get_call_context()
    before = calls.get_value("training")
    calls.set_value("training", False)
    try:
        yield {name: False if name in MODES else value for name, value in kwargs.items()}
    finally:
        calls.set_value("training", before)


def value_of(variable: Any) -> Any:
    """Return the framework's own tensor inside a variable of Keras 3: its `value` is another one under mixed precision."""
    return variable._value


def with_mask(new: Any, tensor: Any) -> Any:
    """Return a tensor that replaces another, with the mask that Keras's layers hand on at that."""
    if (mask := getattr(tensor, "_keras_mask", None)) is not None:
        new._keras_mask = mask
    return new


def padding_row(owner: Any) -> int | None:
    """Return the row that a table's layer declares to be padding: 0 under `mask_zero`."""
    return 0 if getattr(owner, "mask_zero", False) is True else None
