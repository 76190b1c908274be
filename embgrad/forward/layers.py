"""Which calls of modules are a model's layers: told by how they follow one another, and by how they are listed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from embgrad.forward.points import ModuleCall
from embgrad.inputs.batch import TokenBatch

__all__ = ["NUMBERED", "Calls", "Stack", "ancestors", "is_decoders", "stacked"]

#: A number at the end of a path, alone or behind a mark: `layer.0`, `layer_._0`, `block_1`.
NUMBERED: Final = re.compile(r"(?:^|[._/])(\d+)$")

#: Where a class's name has an underscore in the name that Keras makes of it.
CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

#: Kinds of modules that may stand between layers, or in one list with them, and are none.
SLIGHT: Final = re.compile(
    "drop|norm|identity|activation|relu|gelu|selu|celu|silu|swish|mish|sigmoid|tanh|softmax", re.I
)


class Place(NamedTuple):
    """Which of a list of blocks a call's module is, as its path says.

    Attributes:
        list: the path without the number, the same for all of the list.
        number: which of the list it is.
    """

    list: str
    number: int


class Stack(NamedTuple):
    """Calls of repeated blocks, in order.

    Attributes:
        blocks: the numbers of the calls.
        told: whether they are all layers of what they are layers of, each behind the one before it.
    """

    blocks: list[int]
    told: bool


class Calls:
    """The calls of one forward pass, and what is asked of them again and again.

    Attributes:
        batch: what the model was run on.
        all: the calls.
        holding: the numbers of those in which others are made.
        places: by number the place of each in a list; None where its path tells none.
        hidden: the numbers of those that take and give something for each example and position.
    """

    def __init__(self, batch: TokenBatch, calls: Sequence[ModuleCall]) -> None:
        self.batch = batch
        self.all = calls
        self.holding = {call.parent for call in calls}
        self.places = _places(calls)
        self.hidden = [number for number, call in enumerate(calls) if _is_hidden(call, batch)]

    def parent(self, number: int) -> int | None:
        """The number of the call in which one was made."""
        return self.all[number].parent

    def kinds(self, numbers: Iterable[int]) -> Counter[str]:
        """How many there are of each kind."""
        return Counter(self.all[number].kind for number in numbers)

    def lists(self, numbers: Iterable[int]) -> dict[tuple[int | None, str], list[int]]:
        """Those of each list: of one path but for the number, made in one call."""
        found: dict[tuple[int | None, str], list[int]] = defaultdict(list)
        for number in numbers:
            place = self.places[number]
            if place is not None:
                found[self.parent(number), place.list].append(number)
        return found

    def is_inside(self, number: int, outer: Iterable[int]) -> bool:
        """Whether a call is made in one of others, at whatever depth."""
        return not set(outer).isdisjoint(ancestors(self.all, self.parent(number)))

    def positions(self, number: int) -> int:
        """At how many positions it takes and gives something for each example; 0 where it takes or gives other things."""
        given, gave = self.all[number].source_shape, self.all[number].token_shape
        by_example = len(given) == len(gave) == 3 and given[0] == gave[0] == self.batch.shape[0]
        return max(given[1], gave[1]) if by_example else 0

    def is_slight(self, number: int) -> bool:
        """Whether there is nothing in it but dropout, norms and the like, by their kinds or because they change nothing."""
        inside = [number]
        for after in range(number + 1, len(self.all)):  # what is made in a call comes right behind its beginning
            if not self.is_inside(after, [number]):
                break
            inside.append(after)
        plain = [self.all[one] for one in inside if one not in self.holding]
        return all(SLIGHT.search(call.kind) or call.token == call.source for call in plain)

    def is_piped(self, number: int) -> bool:
        """Whether it is listed in the very module that calls it, as what a `Sequential` holds: layers, and other things."""
        parent, place = self.parent(number), self.places[number]
        return place is not None and place.list == ("" if parent is None else self.all[parent].path)


def ancestors(calls: Sequence[ModuleCall], number: int | None) -> Iterator[int]:
    """A call and those around it, from the innermost."""
    while number is not None:
        yield number
        number = calls[number].parent


# Places


def _places(calls: Sequence[ModuleCall]) -> list[Place | None]:
    """The places of the calls.

    TensorFlow numbers names that come again: `layer_0_1` and `layer_1_1` are 0 and 1 of a list, in the second trace.
    """
    places = [_place(call.path, call.kind) for call in calls]
    before: dict[tuple[int | None, str], dict[int, Place]] = defaultdict(dict)
    for number, place in enumerate(places):
        inner = _place(place.list, "") if place is not None and calls[number].path[len(place.list)] == "_" else None
        if inner is not None:
            before[calls[number].parent, inner.list][number] = inner
    for (_, name), inner_places in before.items():
        suffixes = {place.number for number in inner_places if (place := places[number]) is not None}
        if len(suffixes) == 1 < len({inner.number for inner in inner_places.values()}):
            for number, inner in inner_places.items():
                places[number] = Place(f"{name}_#_{min(suffixes)}", inner.number)
    return places


def _place(path: str, kind: str) -> Place | None:
    """The place that a path tells; None where it holds no number, or one that says something else.

    Keras counts the layers of a class as they are made: `add_3` is the fourth of the process, and no block's place.
    """
    found = NUMBERED.search(path)
    if found is None:
        return None
    name = re.split(r"[./]", path[: found.start()])[-1]
    counted = found[0].startswith("_") and name == CAPITAL.sub("_", kind).lower()
    return None if counted else Place(path[: found.start()], int(found[1]))


def _is_hidden(call: ModuleCall, batch: TokenBatch) -> bool:
    """Whether it takes and gives something for each example and position."""
    examples, positions = batch.shape
    shapes = ((examples, positions), (positions, examples))

    def fits(shape: tuple[int, ...]) -> bool:
        return (len(shape) == 3 and shape[:2] in shapes) or (len(shape) == 2 and shape[0] == examples * positions)

    return bool(call.path) and fits(call.token_shape) and fits(call.source_shape)


# Stacks


@dataclass
class _Company:
    """Calls made in one call that may be of one stack: they are of one kind, or in one list.

    Attributes:
        numbers: the numbers of the calls, in order.
        told: False where they are in a list that is no stack as a whole: a part of it is none either.
    """

    numbers: list[int]
    told: bool = True


def stacked(calls: Calls, marked: Collection[int] = ()) -> tuple[list[Stack], list[int]]:
    """The stacks of two blocks and more, by their first calls; and calls that may be a model's only layer, the outermost first.

    Args:
        calls: the calls.
        marked: calls in which ids, positions or types are looked up: no layers, though they may be listed with them.
    """
    stacks, single = list[Stack](), list[int]()
    companies, mixed = _companies(calls, marked)
    for company in companies:
        runs = _runs(calls, company.numbers)
        times = Counter(one for run in runs for one in calls.lists(run))
        torn = {one for one, count in times.items() if count > 1}  # lists that are not one stack
        if calls.holding.isdisjoint(company.numbers):
            whole = runs if len(runs) == 1 else []  # linear maps and the like, of which any two may follow one another
        elif torn or not company.told:
            whole, company.told = [company.numbers], False
        else:
            whole = runs
            single += [run[0] for run in runs if len(run) == 1 and run[0] not in mixed and _may_be_alone(calls, run[0])]
        stacks += [Stack(run, company.told) for run in whole if len(run) > 1]
    # The parts of a single layer may be listed, too, such as T5's attention and feed-forward net.
    parts = [one for one in stacks if _is_one_of_each(calls, one) and calls.is_inside(one.blocks[0], single)]
    around = {number for one in parts for number in ancestors(calls.all, one.blocks[0]) if calls.is_piped(number)}
    unclear = mixed | around.intersection(single)  # what is in them may be a layer's
    stacks = [
        one
        for one in stacks
        if one not in parts and not (calls.holding.isdisjoint(one.blocks) and calls.is_inside(one.blocks[0], unclear))
    ]
    depth = {number: len(list(ancestors(calls.all, number))) for number in single}
    single = sorted(set(single) - unclear, key=lambda number: (depth[number], number))
    return sorted(stacks), single


def _is_one_of_each(calls: Calls, stack: Stack) -> bool:
    """Whether no kind is repeated in it."""
    return max(calls.kinds(stack.blocks).values()) == 1


def _may_be_alone(calls: Calls, number: int) -> bool:
    """Whether it may be the only layer of a model: of a module that holds others, numbered in a list."""
    call = calls.all[number]
    return number in calls.holding and calls.places[number] is not None and call.source_shape == call.token_shape


def _companies(calls: Calls, marked: Collection[int]) -> tuple[list[_Company], set[int]]:
    """All calls that turn hidden states into such, by who may be of one stack; and those beside which others are listed."""
    of_kind: dict[tuple[object, ...], _Company] = {}
    company: dict[int, _Company] = {}
    for number in calls.hidden:
        call = calls.all[number]
        company[number] = of_kind.setdefault((call.parent, call.kind, call.token_shape), _Company([]))
        company[number].numbers.append(number)
    mixed = set[int]()
    for listed in calls.lists(calls.hidden).values():
        blocks = _blocks(calls, listed, marked)
        if len(calls.kinds(blocks)) > 1:
            mixed.update(blocks)
        told = _are_one_stack(calls, blocks)
        if told is not None:
            _join(company, blocks, told)
    return list({id(one): one for one in company.values()}.values()), mixed


def _join(company: dict[int, _Company], blocks: Sequence[int], told: bool) -> None:
    """Make one company of those of the blocks."""
    old = {id(company[number]): company[number] for number in blocks}.values()
    joined = _Company(sorted(number for one in old for number in one.numbers), told and all(one.told for one in old))
    company.update(dict.fromkeys(joined.numbers, joined))


def _blocks(calls: Calls, listed: Sequence[int], marked: Collection[int]) -> list[int]:
    """Those of a list that may be its layers."""
    blocks = [
        number
        for number in listed
        if number in calls.holding or not (calls.is_piped(number) or calls.is_slight(number))
    ]
    kinds = calls.kinds(blocks)

    def is_other(number: int) -> bool:
        """Whether it is what comes before the layers, or behind them."""
        slight = calls.is_piped(number) and calls.is_slight(number)
        return len(blocks) > 1 and kinds[calls.all[number].kind] == 1 and (slight or number in marked)

    while blocks and is_other(blocks[0]):
        blocks.pop(0)
    while blocks and is_other(blocks[-1]):
        blocks.pop()
    return blocks


def _are_one_stack(calls: Calls, blocks: Sequence[int]) -> bool | None:
    """Whether blocks that are listed together, but are of several kinds or shapes, are layers all the same; None for others.

    A list of layers may be of several kinds, as in Jamba, or with a layer in a wrapper. To leave some out would give others
    their numbers. What a `Sequential` holds may begin and end with other things, so that it must repeat what it begins with.
    """
    kinds, shapes = calls.kinds(blocks), {calls.all[number].token_shape for number in blocks}
    repeats = max(kinds.values(), default=0) > 1
    if len(kinds) < 2 and len(shapes) < 2:
        return None
    if calls.holding.isdisjoint(blocks):
        return False if repeats and len(kinds) > 1 else None
    if len(shapes) > 1:
        return False if repeats else None
    if calls.is_piped(blocks[0]):
        ends = [kinds[calls.all[blocks[end]].kind] for end in (0, -1)]
        return min(ends) > 1 if repeats else None
    return repeats or not _repeat_inside(calls, blocks)


def _repeat_inside(calls: Calls, blocks: Sequence[int]) -> bool:
    """Whether blocks are repeated inside of these, so that these may be no layers but parts of a model."""
    inside = [number for number in calls.hidden if number in calls.holding and calls.is_inside(number, blocks)]
    times = Counter((calls.parent(number), calls.all[number].kind) for number in inside)
    return max(times.values(), default=0) > 1


def _runs(calls: Calls, company: Sequence[int]) -> list[list[int]]:
    """The company in chains: each block takes what the one before it gave, or is the next of one list from its beginning.

    Between blocks that hold others may come modules such as dropout, but no other blocks.
    """
    runs = list[list[int]]()
    given = list[set[int | None]]()  # by run what its last block gave, as it is and as others made of it
    members, bridged = set(company), not calls.holding.isdisjoint(company)
    heavy = {number for number in calls.hidden if number in calls.holding and not calls.is_slight(number)}
    for number in range(company[0], company[-1] + 1):
        call = calls.all[number]
        if call.parent != calls.parent(company[0]):
            continue
        if number not in members:
            for reached in given if bridged and number not in heavy else ():
                reached.update({call.token} if call.source in reached else ())
            continue
        before = next(
            (one for one in reversed(range(len(runs))) if _follows(calls, number, runs[one], given[one])), None
        )
        if before is None:
            runs.append([])
            given.append(set())
            before = -1
        runs[before].append(number)
        given[before] = {call.token}
    return runs


def _follows(calls: Calls, number: int, run: Sequence[int], given: Collection[int | None]) -> bool:
    """Whether a block goes on with a chain. Of what is called as an encoder's or decoder's neither goes on with the other."""
    if is_decoders(calls.all[number]) != is_decoders(calls.all[run[-1]]):
        return False
    if calls.all[number].source in given:
        return True
    places = [calls.places[one] for one in (*run, number)]
    listed = {None if place is None else place.list for place in places}
    return len(listed) == 1 and [place.number for place in places if place is not None] == list(range(len(places)))


def is_decoders(call: ModuleCall) -> bool:
    """Whether it is called as a decoder's."""
    return "decoder" in call.path.lower()
