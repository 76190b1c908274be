"""The record of a pass with its points, and the blocks in it that may take something else than the ids, such as an image."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from embgrad.common.pytree import first
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.layers import Calls, ancestors, find_stacks
from embgrad.model_points.points import INPUT, Lookup, ModuleCall, Point

__all__ = ["Chain", "Reached"]


class Chain(list[int]):
    """The indices of the calls of blocks, each of which takes the output of the one before it."""


class Reached(list[Point]):
    """The points that a forward pass reached, with the pass's record.

    Args:
        points: the points.
        batch: the batch that the model was run on.
        lookups: the pass's lookups.
        calls: the pass's module calls, with tokens.

    Attributes:
        again: runs a request in the same way as the pass; None where `BoundModel.run` does.
        has_others: whether the user gave the model tensors beside ids, masks and lengths, such as an image.
    """

    again: Callable[[Any], Any] | None = None
    has_others: bool = False

    def __init__(
        self, points: Iterable[Point], batch: TokenBatch, lookups: Sequence[Lookup], calls: Sequence[ModuleCall]
    ) -> None:
        super().__init__(points)
        self.batch = batch
        self.lookups = lookups
        self.calls = calls

    def repeat_by(self, again: Callable[[Any], Any], given: Any) -> Reached:
        """Return the same points, after setting what is known of a pass of the user.

        Args:
            again: runs a request in the same way as the pass.
            given: the arguments of the pass.
        """
        examples, positions = self.batch.shape
        plain = ((), (examples,), (examples, positions), (positions, examples))
        self.again = again
        self.has_others = (
            first(given, lambda value: _is_floating(value) and tuple(value.shape) not in plain) is not None
        )
        return self

    def words(self) -> list[str]:
        """Return the keys of the lookups whose indices are the batch's ids."""
        return [lookup.key for lookup in self.lookups if lookup.layout is not None]

    def chains(self, *, alone: bool) -> list[Chain]:
        """Return the chains of blocks of which it is not known whether they take the ids; none where all do.

        Args:
            alone: whether the model is given nothing but ids, so that the only blocks of a model take these.
        """
        reading = Calls(self.batch.shape, self.calls)
        groups = self._groups(reading)
        if not groups or (len(groups) == 1 and (alone or self._leads(reading, groups[0][0]))):
            return []
        return [chain for group in groups for chain in _chains(reading, group)]

    def key(self, chain: Chain) -> str:
        """Return the key of the point at a chain's input."""
        return self.calls[chain[0]].key(INPUT)

    def inside(self, chains: Collection[Chain]) -> frozenset[int]:
        """Return the indices of the calls of chains and of the calls made during these."""
        outer = frozenset(number for chain in chains for number in chain)
        reading = Calls(self.batch.shape, self.calls)
        return outer.union(number for number in range(len(self.calls)) if reading.is_inside(number, outer))

    def _groups(self, reading: Calls) -> list[list[int]]:
        """Return the blocks that are in no other block, by the list that they are in; else the chains of plain modules."""
        around = {number for lookup in self.lookups for number in ancestors(self.calls, lookup.parent) if lookup.layout}
        blocks = [
            number
            for number, call in enumerate(self.calls)
            if number in reading.holding and reading.items[number] is not None and number not in around
            if call.source is not None and len(call.source_shape) == 3
        ]
        stacks, single = find_stacks(reading)
        groups = [
            *reading.lists(blocks).values(),
            *(stack.blocks for stack in stacks),
            *([number] for number in single),
        ]
        holding = [group for group in groups if not reading.holding.isdisjoint(group)]
        groups = [group for group in holding or groups if around.isdisjoint(group)]
        members = {number for group in groups for number in group}
        outermost: list[list[int]] = []
        for group in groups:
            new = [number for number in group if not any(number in other for other in outermost)]
            new = [number for number in new if not reading.is_inside(number, members)]
            if new:
                outermost.append(new)
        return outermost

    def _leads(self, reading: Calls, first: int) -> bool:
        """Return whether modules alone lead from the lookup of the ids to a block: each takes what another returned."""
        words = [lookup for lookup in self.lookups if lookup.layout is not None]
        makers = {number for lookup in words for number in ancestors(self.calls, lookup.parent)}
        tokens = {lookup.token for lookup in words} | {self.calls[number].token for number in makers}
        for call in self.calls[:first]:
            if call.source in tokens:
                tokens.add(call.token)
        return self.calls[first].source in tokens - {None}


def _is_floating(value: object) -> bool:
    return "float" in str(getattr(value, "dtype", "")) and hasattr(value, "shape")


def _chains(reading: Calls, group: Sequence[int]) -> Iterator[Chain]:
    """Yield the parts of a group in which each block takes the output of the one before it."""
    chain = Chain()
    for number in group:
        if chain and reading.all[number].source != reading.all[chain[-1]].token:
            yield chain
            chain = Chain()
        chain.append(number)
    yield chain
