"""What a model is made of: walked once, and walked again where a look at every module shows that anything is another."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from embgrad.locks import locks_of
from embgrad_torch.walk import walk
from embgrad_torch.ways import Ways

__all__ = ["Kinds", "Structure", "structure"]

_flat: Final = itertools.chain.from_iterable


class Kinds:
    """The types of all attributes of all modules, in order, and which of them are to be watched.

    Attributes:
        types: the types.
        of: by what is asked of a type, for each attribute whether it is so.
    """

    def __init__(self, types: list[type]) -> None:
        self.types = types
        self.of: dict[Any, list[bool]] = {}

    def chosen(self, wanted: frozenset[type], values: Sequence[Any]) -> list[Any]:
        """Those of the values that are exactly of the wanted types."""
        if wanted not in self.of:
            self.of[wanted] = [one in wanted for one in self.types]
        return list(itertools.compress(values, self.of[wanted]))


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
        kinds: of the attributes, when they were last looked at.
        ways: that passes took through the model.
        locks: the modules'.
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
    kinds: Kinds = field(default_factory=lambda: Kinds([]))

    def modules(self, parts: Sequence[Any]) -> list[Any] | None:
        """The modules; None where anything is another than it was."""
        found = [reference() for reference in self.references]
        if list(map(type, found)) != self.types or any(
            found[number] is not part for number, part in zip(self.roots, parts, strict=True)
        ):
            return None  # a reference to what has died has another type
        inside = [one._modules for one in found]
        if list(map(len, inside)) != self.counts or list(_flat(inside)) != self.names:
            return None
        return found if list(map(id, _flat([one.values() for one in inside]))) == self.children else None


@dataclass
class Structure:
    """What a model is made of.

    Attributes:
        parts: its parts.
        modules: all modules, each once, in the order of `walk`.
        paths: their attribute paths.
        kinds: of the attributes, when they were last looked at.
    """

    parts: Sequence[Any]
    modules: list[Any]
    paths: list[str]
    _skeleton: _Skeleton | None = None

    @property
    def ways(self) -> Ways | None:
        """The ways that passes took through it; None where nothing is remembered of the model."""
        return None if self._skeleton is None else self._skeleton.ways

    @property
    def locks(self) -> Sequence[Any]:
        """The modules' locks, see `embgrad.locks`."""
        return locks_of(self.modules) if self._skeleton is None else self._skeleton.locks

    @property
    def walked(self) -> list[tuple[str, Any]]:
        """The modules with their paths."""
        return list(zip(self.paths, self.modules, strict=True))

    def parameters(self) -> list[Any]:
        """The parameters that the modules have now, each once."""
        return _unique([one._parameters for one in self.modules])

    def buffers(self) -> list[Any]:
        """The buffers that the modules have now, each once."""
        return _unique([one._buffers for one in self.modules])

    def kinds(self, values: Sequence[Any]) -> Kinds:
        """The types of these values of attributes."""
        types = list(map(type, values))
        if self._skeleton is None:
            return Kinds(types)
        if self._skeleton.kinds.types != types:
            self._skeleton.kinds = Kinds(types)
        return self._skeleton.kinds


#: By the identities of a model's parts how it hung together.
_known: dict[tuple[int, ...], _Skeleton] = {}


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
            sum(
                one.numel()
                for one in _unique([one._parameters for one in modules])
                if not torch.nn.parameter.is_lazy(one)
            )
        ),
    )


def _unique(held: Sequence[Any]) -> list[Any]:
    return list({id(one): one for one in _flat([some.values() for some in held]) if one is not None}.values())
