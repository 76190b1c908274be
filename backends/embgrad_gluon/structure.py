"""What a model is made of: walked once, and walked again where a look at every block shows that anything is another."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.walk import all_blocks, named_blocks, own_parameters, table_path

__all__ = ["Structure", "structure"]

_flat: Final = itertools.chain.from_iterable


@dataclass(eq=False)
class _Skeleton:
    """How the blocks of a model hang together. It keeps none of them alive.

    Attributes:
        references: to the blocks, in the order of `all_blocks`.
        blocks: their identities. What a reference still leads to lives, so that no other can have its identity.
        names: what all blocks in turn call their children.
        counts: how many children each has.
        children: the children's identities. They are blocks that live.
        held: what the blocks held when that was last looked at.
    """

    references: list[Any]
    blocks: list[int]
    names: list[str]
    counts: list[int]
    children: list[int]
    held: Held | None = None

    def found(self) -> list[Any] | None:
        """The blocks; None where anything is another than it was."""
        found = [reference() for reference in self.references]
        if list(map(id, found)) != self.blocks:
            return None
        inside = [one._children for one in found]
        if list(map(len, inside)) != self.counts or list(_flat(inside)) != self.names:
            return None
        return found if list(map(id, _flat([one.values() for one in inside]))) == self.children else None


@dataclass(eq=False)
class Held:
    """The parameters that the blocks hold. It keeps none of them alive; as long as they are the same, it is the same object.

    Attributes:
        names: what all blocks in turn call them.
        parameters: their identities, those that are held several times likewise.
        references: to them.
        tables: by which paths those go that may be tables, the best first; the second number is a parameter's place.
    """

    names: list[str]
    parameters: list[int]
    references: list[Any]
    tables: list[tuple[str, int]]


class Structure:
    """What a model is made of now.

    Args:
        parts: its parts.
        blocks: all blocks, each once, in the order of `all_blocks`.
        skeleton: how they hang together.

    Attributes:
        parts: its parts.
        blocks: its blocks.
    """

    def __init__(self, parts: Sequence[Any], blocks: list[Any], skeleton: _Skeleton) -> None:
        self.parts = parts
        self.blocks = blocks
        self._skeleton = skeleton
        self._parameters: list[Any] | None = None

    def parameters(self) -> list[Any]:
        """The parameters that the blocks held when they were first asked for, each once."""
        if self._parameters is None:
            self._parameters = list({id(one): one for one in self._held_now()}.values())
        return self._parameters

    def tables(self) -> list[tuple[str, Any]]:
        """The parameters that may be tables, with their paths: an embedding's before the others."""
        parameters = self._held_now()
        return [(path, parameters[place]) for path, place in self._held(parameters).tables]

    def identity(self) -> tuple[Held, tuple[Any, ...]]:
        """An object that is the same as long as blocks and parameters are, and the dtypes to which these were cast."""
        parameters = self._held_now()
        return self._held(parameters), tuple([one.dtype for one in parameters])

    def _held_now(self) -> list[Any]:
        own = [one._params._params.values() for one in self.blocks]
        return list(_flat((*own, *[one._reg_params.values() for one in self.blocks])))

    def _held(self, parameters: Sequence[Any]) -> Held:
        own = [one._params._params for one in self.blocks]
        names = list(_flat((*own, *[one._reg_params for one in self.blocks])))
        identities, known = list(map(id, parameters)), self._skeleton.held
        if known is None or known.names != names or known.parameters != identities or not _are_alive(known.references):
            references = [weakref.ref(one) for one in parameters]
            known = self._skeleton.held = Held(names, identities, references, _tables(self.parts, identities))
        return known


def _are_alive(references: Sequence[Any]) -> bool:
    return all(reference() is not None for reference in references)


def _tables(parts: Sequence[Any], identities: Sequence[int]) -> list[tuple[str, int]]:
    nn = import_mxnet().gluon
    embeddings = (nn.nn.Embedding, nn.contrib.nn.SparseEmbedding)
    places = {identity: place for place, identity in enumerate(identities)}
    blocks = list(named_blocks(parts))
    found: dict[int, str] = {}
    for path, block in sorted(blocks, key=lambda one: not isinstance(one[1], embeddings)):
        for name, parameter in own_parameters(block).items():
            found.setdefault(places[id(parameter)], table_path(f"{path}.{name}" if path else name))
    return [(path, place) for place, path in found.items()]


#: By the identities of a model's parts how it hung together.
_known: dict[tuple[int, ...], _Skeleton] = {}


def structure(parts: Sequence[Any]) -> Structure:
    """What a model is made of now."""
    key = tuple(map(id, parts))
    skeleton = _known.get(key)
    blocks = None if skeleton is None else skeleton.found()
    if skeleton is None or blocks is None:
        blocks = all_blocks(parts)
        skeleton = _known[key] = _skeleton(key, blocks)
    return Structure(parts, blocks, skeleton)


def _skeleton(key: tuple[int, ...], blocks: Sequence[Any]) -> _Skeleton:
    inside = [one._children for one in blocks]
    return _Skeleton(
        references=[weakref.ref(one, lambda _: _known.pop(key, None)) for one in blocks],
        blocks=list(map(id, blocks)),
        names=list(_flat(inside)),
        counts=list(map(len, inside)),
        children=list(map(id, _flat([one.values() for one in inside]))),
    )
