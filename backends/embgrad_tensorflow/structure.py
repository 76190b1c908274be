"""What a model is made of: walked once, and walked again where a look at all that the walk came by shows anything else."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from embgrad_tensorflow.walk import APART, Kinds, Node, children, is_graph_of_layers, is_the_users, walk

__all__ = ["Structure", "structure"]

_flat: Final = itertools.chain.from_iterable

#: Keys that can be kept and compared: they hold nothing of the model's alive.
PLAIN_KEYS: Final = frozenset({str, int, bool})

#: Lists and dicts lie inside of one another no deeper than so; what does is walked each time.
DEEPEST: Final = 12

#: How the look goes into what was found in a place.
OVER: Final = 0  # not at all
INTO_DICTS: Final = 1
INTO_LISTS: Final = 2
INTO_OTHERS: Final = 3  # a graph of layers, a function, an object of the user's, a mapping with keys of its own kind


class _UnfitError(Exception):
    """What is held in a way that no second look would tell from another."""


@dataclass
class _Layer:
    """What was found at one depth: in the modules, in the lists and dicts that they hold, in those that these hold, ….

    Attributes:
        names: the keys of all dicts, in turn, and the names in what is neither a dict nor a list.
        counts: how many entries each container had.
        types: all entries' types.
        pinned: of the entries that are modules, variables, functions or of the user's own classes the identities. They live,
            or the whole is forgotten, so that no other can have these.
        are_pinned: which entries those are.
        ways: for each entry how the look goes on into it.
    """

    names: list[Any]
    counts: list[int]
    types: list[type]
    pinned: list[int] = field(default_factory=list)
    are_pinned: list[bool] = field(default_factory=list)
    ways: list[int] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Whether there is another one below."""
        return any(self.ways)


class _Found:
    """What containers hold now: those that have names for it first."""

    def __init__(self, dicts: Sequence[Any], lists: Sequence[Any], others: Sequence[Any]) -> None:
        further = [_pairs(one) for one in others]
        self.names = [*_flat(dicts), *(name for pairs in further for name, _ in pairs)]
        self.counts = [*map(len, dicts), *map(len, further), *map(len, lists)]
        self.values = [
            *_flat([one.values() for one in dicts]),
            *(value for pairs in further for _, value in pairs),
            *_flat(lists),
        ]
        self.types = list(map(type, self.values))

    def is_as(self, known: _Layer) -> bool:
        """Whether it is the same as it was."""
        return (
            self.counts == known.counts
            and self.names == known.names
            and self.types == known.types
            and list(map(id, itertools.compress(self.values, known.are_pinned))) == known.pinned
        )

    def below(self, known: _Layer) -> _Found:
        """What the lists, dicts and other containers among the entries hold."""
        ways = zip(self.values, known.ways, strict=True)
        inside: dict[int, list[Any]] = {INTO_DICTS: [], INTO_LISTS: [], INTO_OTHERS: []}
        for value, way in ((value, way) for value, way in ways if way):
            inside[way].append(value)
        return _Found(inside[INTO_DICTS], inside[INTO_LISTS], inside[INTO_OTHERS])


@dataclass
class _Skeleton:
    """How a model hangs together. It keeps nothing of it alive.

    Attributes:
        references: to the nodes' objects.
        types: theirs.
        roots: which of them are the parts; a function, or an object of the user's own class, is no node.
        places: for each node its path, its kind, its owner's number and its owner's path.
        modules: the numbers of the nodes that are modules.
        graphs: those that are graphs of layers.
        layers: what the look found, from the modules on.
        others: references to what else has to live.
        aliases: by a node's number its other paths.
        learned: what else follows from the structure alone.
    """

    references: list[Any]
    types: list[type]
    roots: list[int | None]
    places: list[tuple[str, str, int | None, str]]
    modules: list[int]
    graphs: list[int]
    layers: list[_Layer]
    others: list[Any]
    aliases: dict[int, list[str]]
    learned: dict[str, Any] = field(default_factory=dict)

    def nodes(self, parts: Sequence[Any]) -> list[Node] | None:
        """What the model is made of; None where anything is another than it was."""
        values = [reference() for reference in self.references]
        roots = list(zip(self.roots, parts, strict=True))
        if list(map(type, values)) != self.types or any(  # a reference to what has died has another type
            number is not None and values[number] is not part for number, part in roots
        ):
            return None
        graphs = [values[number] for number in self.graphs]
        found = _first(
            [values[number] for number in self.modules], [*graphs, *(part for number, part in roots if number is None)]
        )
        for layer in self.layers:
            if not found.is_as(layer):
                return None
            if layer.goes_on:
                found = found.below(layer)
        return [
            Node(path, value, kind, None if owner is None else values[owner], owner_path)
            for value, (path, kind, owner, owner_path) in zip(values, self.places, strict=True)
        ]


@dataclass
class Structure:
    """What a model is made of.

    Attributes:
        nodes: its modules and variables, in the order of `walk`.
        learned: what follows from the structure alone, for who has found it out. It must hold nothing of the model's.
    """

    nodes: list[Node]
    learned: dict[str, Any]
    _aliases: Mapping[int, list[str]]

    def aliases(self) -> dict[int, list[str]]:
        """The nodes' other paths, by the identities of their objects."""
        return {id(self.nodes[number].value): paths for number, paths in self._aliases.items()}


#: By the identities of a model's parts how it hung together.
_known: dict[tuple[int, ...], _Skeleton] = {}


def structure(parts: Sequence[Any]) -> Structure:
    """What a model is made of now."""
    key = tuple(map(id, parts))
    skeleton = _known.get(key)
    nodes = None if skeleton is None else skeleton.nodes(parts)
    if skeleton is not None and nodes is not None:
        return Structure(nodes, skeleton.learned, skeleton.aliases)
    _known.pop(key, None)
    paths: dict[int, list[str]] = {}
    nodes = list(walk(parts, paths))
    aliases = {number: paths[id(node.value)] for number, node in enumerate(nodes) if id(node.value) in paths}
    try:
        skeleton = _known[key] = _learned(key, parts, nodes, aliases)
    except (_UnfitError, TypeError):  # the latter: no weak references to something
        return Structure(nodes, {}, aliases)
    return Structure(nodes, skeleton.learned, aliases)


def _learned(
    key: tuple[int, ...], parts: Sequence[Any], nodes: Sequence[Node], aliases: dict[int, list[str]]
) -> _Skeleton:
    numbers = {id(node.value): number for number, node in enumerate(nodes)}
    modules = [number for number, node in enumerate(nodes) if node.kind == "module"]
    if any(not isinstance(getattr(nodes[number].value, "__dict__", None), dict) for number in modules):
        raise _UnfitError
    if any(base.__qualname__ == "ConcreteFunction" for node in nodes for base in type(node.value).__mro__):
        raise _UnfitError

    def reference(value: Any) -> Any:
        return weakref.ref(value, lambda _: _known.pop(key, None))

    graphs = [number for number in modules if is_graph_of_layers(nodes[number].value)]
    roots = [numbers.get(id(part)) for part in parts]
    beside = [part for part, number in zip(parts, roots, strict=True) if number is None]
    found = _first([nodes[number].value for number in modules], [*(nodes[number].value for number in graphs), *beside])
    layers: list[_Layer] = []
    others: dict[int, Any] = {id(part): part for part in beside}
    kinds = Kinds()
    while not layers or layers[-1].goes_on:
        if len(layers) == DEEPEST:
            raise _UnfitError
        found = found.below(layers[-1]) if layers else found
        layers.append(_taken_down(found, kinds, set(numbers), others))
    return _Skeleton(
        references=[reference(node.value) for node in nodes],
        types=[type(node.value) for node in nodes],
        roots=roots,
        places=[
            (node.path, node.kind, None if node.owner is None else numbers[id(node.owner)], node.owner_path)
            for node in nodes
        ],
        modules=modules,
        graphs=graphs,
        layers=layers,
        others=[reference(one) for one in others.values()],
        aliases=aliases,
    )


def _first(modules: Sequence[Any], others: Sequence[Any]) -> _Found:
    """What modules hold by their attributes, and others in their own way."""
    return _Found(list(map(attrgetter("__dict__"), modules)), (), others)


def _taken_down(found: _Found, kinds: Kinds, nodes: set[int], others: dict[int, Any]) -> _Layer:
    """What is to be remembered of what containers hold.

    Args:
        found: that.
        kinds: of classes.
        nodes: the identities of the model's modules and variables.
        others: takes what else is pinned, by identity.
    """
    if not {type(name) for name in found.names} <= PLAIN_KEYS:
        raise _UnfitError
    layer = _Layer(found.names, found.counts, found.types)
    for name, value in itertools.zip_longest(found.names, found.values):
        kind = None if name in APART else kinds[type(value)]
        is_new = id(value) not in nodes and id(value) not in others
        layer.are_pinned.append(kind in ("module", "variable", "function", "object"))
        if layer.are_pinned[-1]:
            layer.pinned.append(id(value))
            if is_new:
                others[id(value)] = value
        layer.ways.append(_way(value, kind, is_new))
    return layer


def _way(value: Any, kind: str | None, is_new: bool) -> int:
    if kind == "list":
        return INTO_LISTS
    if kind == "dict":
        return INTO_DICTS if isinstance(value, dict) and {*map(type, value)} <= PLAIN_KEYS else INTO_OTHERS
    # a module that the walk has not come by hangs on an attribute that is apart
    return INTO_OTHERS if is_new and kind in ("function", "object") else OVER


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    if is_graph_of_layers(value):
        return [(layer.name, layer) for layer in value.layers]
    kind = Kinds()[type(value)]
    if kind == "function" and not is_the_users(value):
        return []
    return list(children(value, kind))
