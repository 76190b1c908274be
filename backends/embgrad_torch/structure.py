"""What a model is made of: walked once, and walked again where a look at every module shows that anything is another."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from embgrad.locks import locks_of
from embgrad_torch.versions import versions_of
from embgrad_torch.walk import walk
from embgrad_torch.ways import Ways

__all__ = ["Changed", "Kinds", "Structure", "recalled", "structure"]

_flat: Final = itertools.chain.from_iterable
_own: Final = operator.attrgetter("__dict__")
_inside: Final = operator.attrgetter("_modules")
_parameters: Final = operator.attrgetter("_parameters")
_buffers: Final = operator.attrgetter("_buffers")

#: The attributes that every module has, which are seen to by name.
_OF_TORCH: Final = frozenset(vars(torch.nn.Module()))

#: The modules that look up rows, whether or not the passes so far have come by them.
_LOOKING_UP: Final = (torch.nn.Embedding, torch.nn.EmbeddingBag)

#: The numbers that a model's parameters may have at most for what was found of it to be kept: it keeps weights that are
#: replaced alive until the next call.
LARGEST_KEPT: Final = 1 << 25


class Changed(BaseException):
    """A model is not what it was when it was last looked at. Nobody's handler is to stop it."""


class Kinds:
    """The names and types of all attributes of all modules, in order, and which of them are to be watched.

    Attributes:
        names: the names.
        types: the types.
        sizes: how many attributes each module has.
        ends: for each module the place behind its last attribute.
    """

    def __init__(self, names: list[str], types: list[type], sizes: list[int]) -> None:
        self.names = names
        self.types = types
        self.sizes = sizes
        self.ends = list(itertools.accumulate(sizes))
        self._of: dict[frozenset[type], list[bool]] = {}
        self._places: dict[frozenset[type], list[int]] = {}
        self._of_the_user: list[int] | None = None

    def chosen(self, wanted: frozenset[type], values: Sequence[Any]) -> list[Any]:
        """Those of the values that are exactly of the wanted types."""
        if wanted not in self._of:
            self._of[wanted] = [one in wanted for one in self.types]
        return list(itertools.compress(values, self._of[wanted]))

    def few(self, wanted: frozenset[type], values: Sequence[Any]) -> list[Any]:
        """The same, where they are few among many."""
        if wanted not in self._places:
            self._places[wanted] = [place for place, one in enumerate(self.types) if one in wanted]
        return [values[place] for place in self._places[wanted]]

    def of_the_user(self, wanted: Callable[[type], bool], values: Sequence[Any]) -> list[Any]:
        """Those of the values, of wanted types, that are no attributes that every module has; asked always for the same types."""
        if self._of_the_user is None:
            kinds = {one for one in set(self.types) if wanted(one)}
            named = enumerate(zip(self.names, self.types, strict=True))
            self._of_the_user = [place for place, (name, kind) in named if kind in kinds and name not in _OF_TORCH]
        return [values[place] for place in self._of_the_user]


class _Held:
    """Which tensors the modules hold, and what follows from that alone. It keeps none of them alive.

    Args:
        key: how many each module holds, first of parameters and then of buffers; all their names; and their identities.

    Attributes:
        parameters: of each whether it is a parameter that has not come before; so is `buffers` of buffers.
        tables: by identity the paths of those that have been looked up as tables, and None for the others.
    """

    def __init__(self, key: tuple[list[int], list[str], list[int]]) -> None:
        self.key = key
        sizes, _, identities = key
        count = sum(sizes[: len(sizes) // 2])
        first = _new(identities[:count]), _new(identities[count:])
        self.parameters = [*first[0], *[False] * len(first[1])]
        self.buffers = [*[False] * count, *first[1]]
        self.tables: dict[int, str | None] = dict.fromkeys(identities)

    @functools.cached_property
    def arrangement(self) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int | None, ...]]:
        """What does not tell one tensor from another: how many there are of which names, and which of these hold the same."""
        sizes, names, identities = self.key
        first: dict[int, int | None] = {id(None): None}
        same = tuple([first.setdefault(one, place) for place, one in enumerate(identities)])
        return tuple(sizes), tuple(names), same


def _new(identities: Sequence[int]) -> list[bool]:
    """Of each identity whether it has not come before; None has none."""
    seen = {id(None)}
    return [not (one in seen or seen.add(one)) for one in identities]  # type: ignore[func-returns-value]


@dataclass
class _Skeleton:
    """How the modules of a model hang together. It keeps none of them alive.

    Attributes:
        references: to the modules, in the order of `walk`.
        roots: which of them are the parts.
        paths: theirs.
        types: theirs.
        names: what all modules in turn call their children.
        counts: how many children each has.
        children: the children's identities. They are modules that live, so that no other can have these.
        ways: that passes took through the model.
        locks: the modules'.
        versions: of the dicts of children, when they were last looked at.
        held: likewise of the dicts of tensors, and which these hold.
        kinds: likewise of the modules' dicts, and the types of their attributes.
        found: what a pass has found, see `Structure.found`, and the modules, with None for the parts. It does keep what it
            knows alive, but for the parts themselves, and is let go before each full garbage collection.
    """

    references: list[Any]
    roots: list[int]
    paths: list[str]
    types: list[type]
    names: list[str]
    counts: list[int]
    children: list[int]
    ways: Ways
    locks: Sequence[Any]
    versions: Sequence[Any] = ()
    held: tuple[Sequence[Any], _Held | None] = ((), None)
    kinds: tuple[Sequence[Any], Kinds | None] = ((), None)
    found: tuple[Any, list[Any]] | None = None

    def recalled(self, parts: Sequence[Any]) -> list[Any] | None:
        """The modules as they were when something was found of them; None where nothing is kept."""
        if self.found is None:
            return None
        modules = self.found[1].copy()
        for number, part in zip(self.roots, parts, strict=True):
            if self.references[number]() is not part:
                return None
            modules[number] = part
        return modules

    def modules(self, parts: Sequence[Any]) -> list[Any] | None:
        """The modules; None where anything is another than it was."""
        found = [reference() for reference in self.references]
        if list(map(type, found)) != self.types or any(
            found[number] is not part for number, part in zip(self.roots, parts, strict=True)
        ):
            return None  # a reference to what has died has another type
        inside = list(map(_inside, found))
        versions = versions_of(inside)
        if versions != self.versions:
            if list(map(len, inside)) != self.counts or list(_flat(inside)) != self.names:
                return None
            if list(map(id, _flat([one.values() for one in inside]))) != self.children:
                return None
            self.versions = versions
        return found


class Structure:
    """What a model is made of.

    Args:
        parts: its parts.
        modules: all modules, each once, in the order of `walk`.
        paths: their attribute paths.
        skeleton: what is remembered of the model, if anything is.
        recalled: whether this is remembered, too, and whoever uses it must first see to it that it still holds.

    Attributes:
        parts: as given; so are `modules`, `paths` and `recalled`.
        own: the dicts of the modules' attributes, when they were last looked at.
    """

    def __init__(
        self,
        parts: Sequence[Any],
        modules: list[Any],
        paths: list[str],
        skeleton: _Skeleton | None = None,
        *,
        recalled: bool = False,
    ) -> None:
        self.parts = parts
        self.modules = modules
        self.paths = paths
        self.recalled = recalled
        self._skeleton = skeleton
        self.own: list[dict[str, Any]] = []
        self._tensors: list[Any] = []
        self._held: _Held | None = None

    def own_now(self) -> list[dict[str, Any]]:
        """The dicts of the modules' attributes."""
        return list(map(_own, self.modules))

    @property
    def looked(self) -> tuple[Any, ...]:
        """What was seen when it was last looked at."""
        return self.own, self._tensors, self._held

    @looked.setter
    def looked(self, seen: tuple[Any, ...]) -> None:
        self.own, self._tensors, self._held = seen

    @property
    def found(self) -> Any:
        """What an earlier pass has found of the model, where it was kept, and may still hold; else None."""
        kept = None if self._skeleton is None else self._skeleton.found
        return None if kept is None else kept[0]

    def types_hold(self) -> bool:
        """Whether the modules are of the types that they had."""
        return self._skeleton is not None and list(map(type, self.modules)) == self._skeleton.types

    def keep(self, found: Any) -> None:
        """Keep what was found for the next pass, unless much memory hangs on it."""
        if self._skeleton is not None and self._skeleton.ways.weights <= LARGEST_KEPT:
            inner = self.modules.copy()
            for number in self._skeleton.roots:
                inner[number] = None
            self._skeleton.found = found, inner

    def look(self) -> _Held:
        """Look at what the modules hold now."""
        self.own = self.own_now()
        holding = [*map(_parameters, self.modules), *map(_buffers, self.modules)]
        filled = list(filter(None, holding))
        self._tensors = list(_flat([one.values() for one in filled]))
        versions = versions_of(holding)
        before, held = ((), None) if self._skeleton is None else self._skeleton.held
        if held is None or before != versions:
            names = list(_flat([one.keys() for one in filled]))
            key = (list(map(len, holding)), names, list(map(id, self._tensors)))
            if held is None or held.key != key:
                held = _Held(key)
            if self._skeleton is not None:
                self._skeleton.held = versions, held
        self._held = held
        return held

    @property
    def ways(self) -> Ways | None:
        """The ways that passes took through it; None where nothing is remembered of the model."""
        return None if self._skeleton is None else self._skeleton.ways

    @property
    def locks(self) -> Sequence[Any]:
        """The modules' locks, see `embgrad.locks`."""
        return locks_of(self.modules) if self._skeleton is None else self._skeleton.locks

    @property
    def tables(self) -> dict[int, str | None]:
        """By the identities of the tensors that the modules hold their paths, for who has found one out; else None."""
        return (self._held or self.look()).tables

    @property
    def walked(self) -> list[tuple[str, Any]]:
        """The modules with their paths."""
        return list(zip(self.paths, self.modules, strict=True))

    def parameters(self) -> list[Any]:
        """The parameters that the modules had when they were last looked at, each once."""
        held = self._held or self.look()
        return list(itertools.compress(self._tensors, held.parameters))

    def buffers(self) -> list[Any]:
        """The buffers that the modules had when they were last looked at, each once."""
        held = self._held or self.look()
        return list(itertools.compress(self._tensors, held.buffers))

    def kinds(self, values: Sequence[Any], versions: Sequence[Any]) -> Kinds:
        """The names and types of all attributes.

        Args:
            values: the attributes.
            versions: of the dicts that hold them, taken after them.
        """
        before, kinds = ((), None) if self._skeleton is None else self._skeleton.kinds
        if kinds is None or before != versions:
            names, types, sizes = list(_flat(self.own)), list(map(type, values)), list(map(len, self.own))
            if kinds is None or (kinds.names, kinds.types, kinds.sizes) != (names, types, sizes):
                kinds = Kinds(names, types, sizes)
            if self._skeleton is not None:
                self._skeleton.kinds = versions, kinds
        return kinds


#: By the identities of a model's parts how it hung together.
_known: dict[tuple[int, ...], _Skeleton] = {}


def _let_go(phase: str, told: Mapping[str, int]) -> None:
    """Keep nothing alive that a full garbage collection would take: a model whose modules know the whole, for one."""
    if phase == "start" and told["generation"] == 2:
        for one in list(_known.values()):
            one.found = None


gc.callbacks.append(_let_go)


def recalled(parts: Sequence[Any]) -> Structure | None:
    """What a model was made of when a pass last found something of it; None where that is not kept. It may be another now."""
    skeleton = _known.get(tuple(map(id, parts)))
    modules = None if skeleton is None else skeleton.recalled(parts)
    if skeleton is None or modules is None:
        return None
    return Structure(parts, modules, skeleton.paths, skeleton, recalled=True)


def structure(parts: Sequence[Any]) -> Structure:
    """What a model is made of now."""
    key = tuple(map(id, parts))
    skeleton = _known.get(key)
    modules = None if skeleton is None else skeleton.modules(parts)
    if skeleton is not None and modules is not None:
        return Structure(parts, modules, skeleton.paths, skeleton)
    walked = walk(parts)
    modules, paths = [one for _, one in walked], [path for path, _ in walked]
    if any(isinstance(one, torch.jit.ScriptModule) for one in modules):  # their children are made when asked for
        return Structure(parts, modules, paths)
    skeleton = _known[key] = _learned(key, parts, modules, paths)
    return Structure(parts, modules, paths, skeleton)


def _learned(key: tuple[int, ...], parts: Sequence[Any], modules: Sequence[Any], paths: list[str]) -> _Skeleton:
    numbers = {id(one): number for number, one in enumerate(modules)}
    inside = [one._modules for one in modules]
    parameters = {id(one): one for module in modules for one in module._parameters.values() if one is not None}.values()
    return _Skeleton(
        references=[weakref.ref(one, lambda _: _known.pop(key, None)) for one in modules],
        roots=[numbers[id(part)] for part in parts],
        paths=paths,
        types=list(map(type, modules)),
        names=list(_flat(inside)),
        counts=list(map(len, inside)),
        children=list(map(id, _flat([one.values() for one in inside]))),
        locks=locks_of(modules),
        ways=Ways(
            sum(one.numel() for one in parameters if not torch.nn.parameter.is_lazy(one)),
            types=tuple(dict.fromkeys(map(type, modules))),
            inside={number for number, one in enumerate(modules) if isinstance(one, _LOOKING_UP)},
        ),
    )
