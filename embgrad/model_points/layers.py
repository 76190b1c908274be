"""Find the layers among the calls of a forward pass, by how the calls follow one another and how their modules are listed."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from embgrad.model_points.points import ModuleCall

__all__ = ["NUMBERED", "Calls", "Stack", "alternate", "ancestors", "find_stacks", "is_decoders"]

#: A number at the end of a path, alone or after a separator: `layer.0`, `layer_._0`, `block_1`.
NUMBERED: Final = re.compile(r"(?:^|[._/])(\d+)$")

#: The positions in a class's name where Keras inserts an underscore to derive a layer's name.
CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

#: Kinds of modules that may stand between layers, or in one list with them, without being layers.
SLIGHT: Final = re.compile(
    "drop|norm|identity|activation|relu|gelu|selu|celu|silu|swish|mish|sigmoid|tanh|softmax", re.I
)


class ListItem(NamedTuple):
    """An item of a list of modules, read from a path.

    Attributes:
        list: the path without the number; it is the same for all modules of the list.
        number: the module's index in the list.
    """

    list: str
    number: int


class Stack(NamedTuple):
    """A stack of calls of repeated blocks, in order.

    Attributes:
        blocks: the indices of the calls.
        certain: whether the blocks are known to be all layers of the stack, each applied after the one before it.
    """

    blocks: list[int]
    certain: bool


class Calls:
    """The calls of one forward pass, with the derived facts that several functions need.

    Attributes:
        shape: the batch's shape, (example, position).
        holding: the indices of the calls during which other calls are made.
        items: for each call the item of a list that its module is; None where its path names no item of a list.
        foreign: the indices of the calls that are no layers of the text's, since their input does not descend from the ids.
        hidden: the indices of the other calls whose input and output have an entry for each example and position.
    """

    def __init__(
        self, shape: tuple[int, int], calls: Sequence[ModuleCall], foreign: Collection[int] = frozenset()
    ) -> None:
        self.shape = shape
        self.all = calls
        self.holding = {call.parent for call in calls}
        self.items = _list_items(calls)
        self.foreign = foreign
        self.hidden = [n for n, call in enumerate(calls) if n not in foreign and _is_hidden(call, *shape)]
        self._slight: dict[int, bool] = {}

    @functools.cached_property
    def heavy(self) -> set[int]:
        """The indices of the hidden calls that hold others and are not slight."""
        return {number for number in self.hidden if number in self.holding and not self.is_slight(number)}

    def parent(self, number: int) -> int | None:
        """Return the index of the call during which a call was made; None for the outermost."""
        return self.all[number].parent

    def kinds(self, numbers: Iterable[int]) -> Counter[str]:
        """Return how many of these calls there are of each kind."""
        return Counter(self.all[number].kind for number in numbers)

    def lists(self, numbers: Iterable[int]) -> dict[tuple[int | None, str], list[int]]:
        """Return the calls grouped by list: those whose paths differ only in the number and that share a parent call."""
        groups: dict[tuple[int | None, str], list[int]] = defaultdict(list)
        for number in numbers:
            item = self.items[number]
            if item is not None:
                groups[self.parent(number), item.list].append(number)
        return groups

    def is_inside(self, number: int, outer: Iterable[int]) -> bool:
        """Return whether a call is made during one of the outer calls, at any depth."""
        outside = outer if isinstance(outer, (set, frozenset)) else set(outer)
        return any(number in outside for number in ancestors(self.all, self.parent(number)))

    def positions(self, number: int) -> int:
        """Return how many positions a call's input or output has for each example, the larger of the two.

        The result is 0 where either is not of shape (example, position, dim).
        """
        source, result = self.all[number].source_shape, self.all[number].token_shape
        by_example = len(source) == len(result) == 3 and source[0] == result[0] == self.shape[0]
        return max(source[1], result[1]) if by_example else 0

    def is_slight(self, number: int, apart: Collection[int | None] = ()) -> bool:
        """Return whether a call consists only of dropout, norms and the like: of modules so named, or that return their input.

        Args:
            apart: the indices of calls that may be inside it as well.
        """
        if apart:
            return self._consists_of_slight(number, apart)
        if number not in self._slight:
            self._slight[number] = self._consists_of_slight(number, ())
        return self._slight[number]

    def _consists_of_slight(self, number: int, apart: Collection[int | None]) -> bool:
        inside = [number]
        # Calls made during a call come right after it.
        for after in range(number + 1, len(self.all)):
            if not self.is_inside(after, [number]):
                break
            inside.append(after)
        plain = [self.all[index] for index in inside if index not in self.holding and index not in apart]
        return all(SLIGHT.search(call.kind) or call.token == call.source for call in plain)

    def is_piped(self, number: int) -> bool:
        """Return whether a call's module is listed in the very module that calls it, as the modules of a `Sequential` are."""
        parent, item = self.parent(number), self.items[number]
        return item is not None and item.list == ("" if parent is None else self.all[parent].path)


def ancestors(calls: Sequence[ModuleCall], number: int | None) -> Iterator[int]:
    """Yield a call and the calls around it, from the innermost to the outermost."""
    while number is not None:
        yield number
        number = calls[number].parent


# Lists


def _list_items(calls: Sequence[ModuleCall]) -> list[ListItem | None]:
    """Return for each call the item of a list that its module is; None where its path names no item of a list.

    TensorFlow numbers repeated names: in the second trace, `layer_0_1` and `layer_1_1` are items 0 and 1 of one list.
    """
    items = [_list_item(call.path, call.kind) for call in calls]
    before: dict[tuple[int | None, str], dict[int, ListItem]] = defaultdict(dict)
    for number, item in enumerate(items):
        inner = _list_item(item.list, "") if item is not None and calls[number].path[len(item.list)] == "_" else None
        if inner is not None:
            before[calls[number].parent, inner.list][number] = inner
    for (_, name), inner_items in before.items():
        suffixes = {item.number for number in inner_items if (item := items[number]) is not None}
        if len(suffixes) == 1 < len({inner.number for inner in inner_items.values()}):
            for number, inner in inner_items.items():
                items[number] = ListItem(f"{name}_#_{min(suffixes)}", inner.number)
    return items


def _list_item(path: str, kind: str) -> ListItem | None:
    """Return the list item that a path names; None where it has no number, or a number that is not an index.

    Keras numbers the layers of a class in order of creation: `add_3` is the process's fourth `Add`, not item 3 of a list.
    """
    match = NUMBERED.search(path)
    if match is None:
        return None
    name = re.split(r"[./]", path[: match.start()])[-1]
    counted = match[0].startswith("_") and name == CAPITAL.sub("_", kind).lower()
    return None if counted else ListItem(path[: match.start()], int(match[1]))


def _is_hidden(call: ModuleCall, examples: int, positions: int) -> bool:
    """Return whether the call's input and output have an entry for each example and position."""
    shapes = ((examples, positions), (positions, examples))

    def fits(shape: tuple[int, ...]) -> bool:
        return (len(shape) == 3 and shape[:2] in shapes) or (len(shape) == 2 and shape[0] == examples * positions)

    is_operation = call.kind.endswith("OpLambda")  # of Keras 2, such as a sum in a functional model
    return bool(call.path) and not is_operation and fits(call.token_shape) and fits(call.source_shape)


# Stacks


@dataclass
class _Group:
    """A group of calls with the same parent that may form one stack: they share a kind, or a list.

    Attributes:
        numbers: the indices of the calls, in order.
        certain: False where the calls share a list that as a whole is no stack. Then no section of the list is a stack either.
    """

    numbers: list[int]
    certain: bool = True


def find_stacks(calls: Calls, marked: Collection[int] = ()) -> tuple[list[Stack], list[int]]:
    """Find the stacks of at least two blocks, and the calls that may be a model's only layer.

    Args:
        marked: calls that look up ids, positions or types. They are not layers, though they may be listed with layers.

    Returns:
        The stacks in order of their first calls, and the indices of the single calls, the outermost first.
    """
    stacks, single = list[Stack](), list[int]()
    groups, mixed = _groups(calls, marked)
    for group in groups:
        runs = _runs(calls, group.numbers)
        counts = Counter(name for run in runs for name in calls.lists(run))
        # Lists whose calls are in several runs are not one stack.
        torn = {name for name, count in counts.items() if count > 1}
        if calls.holding.isdisjoint(group.numbers):
            # Of linear maps and the like, any two may follow one another by chance.
            whole = runs if len(runs) == 1 else []
        elif torn or not group.certain:
            whole, group.certain = [group.numbers], False
        else:
            whole = runs
            single += [run[0] for run in runs if len(run) == 1 and run[0] not in mixed and _may_be_alone(calls, run[0])]
        stacks += [Stack(run, group.certain) for run in whole if len(run) > 1]
    # The modules inside a single layer may be listed, too, such as T5's attention and feed-forward net.
    parts = [stack for stack in stacks if _is_one_of_each(calls, stack) and calls.is_inside(stack.blocks[0], single)]
    around = {number for stack in parts for number in ancestors(calls.all, stack.blocks[0]) if calls.is_piped(number)}
    unclear = mixed | around.intersection(single)  # the modules inside these calls may belong to a layer
    stacks = [
        stack
        for stack in stacks
        if stack not in parts
        and not (calls.holding.isdisjoint(stack.blocks) and calls.is_inside(stack.blocks[0], unclear))
    ]
    depth = {number: len(list(ancestors(calls.all, number))) for number in single}
    single = sorted(set(single) - unclear, key=lambda number: (depth[number], number))
    return sorted(stacks), single


def alternate(calls: Calls, run: Sequence[int]) -> bool:
    """Return whether other modules that compute stand between any two blocks, which are parts of layers then, as attentions.

    They change the number of features, or are in a list of their own at the same index as the block before them.
    """

    def computes(number: int, block: int) -> bool:
        call, item, own = calls.all[number], calls.items[number], calls.items[block]
        if calls.parent(number) != calls.parent(block) or calls.is_slight(number):
            return False
        widens = number not in calls.holding and call.source_shape[-1] != call.token_shape[-1]
        beside = item is not None and own is not None and item.list != own.list and item.number == own.number
        return widens or beside

    hidden = set(calls.hidden)
    gaps = [(block, hidden.intersection(range(block + 1, other))) for block, other in itertools.pairwise(run)]
    holding = bool(gaps) and not calls.holding.isdisjoint(run)
    return holding and all(any(computes(number, block) for number in gap) for block, gap in gaps)


def _is_one_of_each(calls: Calls, stack: Stack) -> bool:
    """Return whether each block of the stack has a kind of its own."""
    return len(calls.kinds(stack.blocks)) == len(stack.blocks)


def _may_be_alone(calls: Calls, number: int) -> bool:
    """Return whether a call may be a model's only layer: its module is numbered in a list and holds other modules."""
    call = calls.all[number]
    return number in calls.holding and calls.items[number] is not None and call.source_shape == call.token_shape


def _groups(calls: Calls, marked: Collection[int]) -> tuple[list[_Group], set[int]]:
    """Group all calls that map hidden states to hidden states by the stack that they may belong to.

    Returns:
        The groups, and the indices of the calls whose list also holds blocks of other kinds.
    """
    of_kind: dict[tuple[object, ...], _Group] = {}
    group_of: dict[int, _Group] = {}
    for number in calls.hidden:
        call = calls.all[number]
        group_of[number] = of_kind.setdefault((call.parent, call.kind, call.token_shape), _Group([]))
        group_of[number].numbers.append(number)
    mixed = set[int]()
    for listed in calls.lists(calls.hidden).values():
        blocks = _blocks(calls, listed, marked)
        if len(calls.kinds(blocks)) > 1:
            mixed.update(blocks)
        certain = _are_one_stack(calls, blocks)
        if certain is not None:
            _join(group_of, blocks, certain)
    return list({id(group): group for group in group_of.values()}.values()), mixed


def _join(group_of: dict[int, _Group], blocks: Sequence[int], certain: bool) -> None:
    """Merge the groups of all these blocks into one."""
    old = {id(group_of[number]): group_of[number] for number in blocks}.values()
    joined = _Group(
        sorted(number for group in old for number in group.numbers), certain and all(group.certain for group in old)
    )
    group_of.update(dict.fromkeys(joined.numbers, joined))


def _blocks(calls: Calls, listed: Sequence[int], marked: Collection[int]) -> list[int]:
    """Return the calls of a list that may be layers."""
    blocks = [
        number
        for number in listed
        if number in calls.holding or not (calls.is_piped(number) or calls.is_slight(number))
    ]
    kinds = calls.kinds(blocks)

    def is_other(number: int) -> bool:
        """Return whether the block is a different module that comes before or after the layers."""
        slight = calls.is_piped(number) and calls.is_slight(number)
        return kinds[calls.all[number].kind] == 1 and (slight or number in marked)

    while blocks and is_other(blocks[0]):
        blocks.pop(0)
    while blocks and is_other(blocks[-1]):
        blocks.pop()
    return blocks


def _are_one_stack(calls: Calls, blocks: Sequence[int]) -> bool | None:
    """Return whether listed blocks of several kinds or shapes are layers all the same; None where their list does not decide.

    A list of layers may hold several kinds, as in Jamba, or one layer in a wrapper. Skipping some of its blocks would shift
    the numbers of the others. A `Sequential` may begin and end with other modules, so it must repeat its first and last kind.
    """
    kinds, shapes = calls.kinds(blocks), {calls.all[number].token_shape for number in blocks}
    repeats = len(kinds) < len(blocks)
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
    """Return whether blocks are repeated inside these, so that these may be large components of a model instead of layers."""
    inside = [number for number in calls.hidden if number in calls.holding and calls.is_inside(number, blocks)]
    return len({(calls.parent(number), calls.all[number].kind) for number in inside}) < len(inside)


def _runs(calls: Calls, group: Sequence[int]) -> list[list[int]]:
    """Split a group into chains: each block takes the output of the one before it, or is the next of one list from its start.

    Between blocks that hold others there may be modules such as dropout, but no other blocks.
    """
    runs = list[list[int]]()
    outputs = list[set[int | None]]()  # for each run its last block's output, also after dropout and the like
    members, bridged = set(group), not calls.holding.isdisjoint(group)
    for number in (each for each in range(group[0], group[-1] + 1) if calls.parent(each) == calls.parent(group[0])):
        call = calls.all[number]
        if number not in members:
            for tokens in outputs if bridged and number not in calls.heavy else ():
                tokens.update({call.token} if call.source in tokens else ())
            continue
        before = next(
            (index for index in reversed(range(len(runs))) if _follows(calls, number, runs[index], outputs[index])),
            None,
        )
        if before is None:
            runs.append([])
            outputs.append(set())
            before = -1
        runs[before].append(number)
        outputs[before] = {call.token}
    return runs


def _follows(calls: Calls, number: int, run: Sequence[int], outputs: Collection[int | None]) -> bool:
    """Return whether a block continues a chain.

    A block with an encoder's path does not continue a decoder's chain, nor the reverse.
    """
    if is_decoders(calls.all[number]) != is_decoders(calls.all[run[-1]]):
        return False
    if calls.all[number].source in outputs:
        return True
    items = [calls.items[index] for index in (*run, number)]
    listed = {None if item is None else item.list for item in items}
    return len(listed) == 1 and [item.number for item in items if item is not None] == list(range(len(items)))


def is_decoders(call: ModuleCall) -> bool:
    """Return whether the call's path contains "decoder"."""
    return "decoder" in call.path.lower()
