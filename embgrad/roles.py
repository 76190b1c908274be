"""Which points are the word lookup, the embeddings and the layers: told by what a forward pass did, by names only in doubt."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from embgrad.batch import TokenBatch
from embgrad.points import INPUT, OUTPUT, WORD, Lookup, ModuleCall, Point

__all__ = ["EMBEDDINGS", "LAYER", "POSITION", "TYPE", "points_of"]

POSITION: Final = "position"
TYPE: Final = "type"
EMBEDDINGS: Final = "embeddings"
LAYER: Final = "layer"

#: A number at the end of a path, alone or behind a mark: `layer.0`, `layer_._0`, `block_1`.
NUMBERED: Final = re.compile(r"(?:^|[._/])(\d+)$")

#: Where a class's name has an underscore in the name that Keras makes of it.
CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

#: What tells the lookups by position and by type apart where their indices do not, as in a batch of one position.
SPELLED: Final = {POSITION: re.compile(r"(?:^|[^a-z])pos|wpe"), TYPE: re.compile("type|seg")}


def points_of(batch: TokenBatch, lookups: Sequence[Lookup], calls: Sequence[ModuleCall]) -> list[Point]:
    """What a forward pass reached, with roles: the lookups in order, then the modules in the order of their calls.

    Args:
        batch: what the model was run on.
        lookups: its lookups.
        calls: its calls of modules, with tokens.
    """
    roles: dict[str, list[str]] = defaultdict(list)
    for lookup in lookups:
        if lookup.layout is not None:
            roles[lookup.key].append(WORD)
    added = {POSITION: _position(batch, lookups), TYPE: _type(batch, lookups)}
    words = sum(lookup.layout is not None for lookup in lookups)
    for role, found in added.items():
        # Indices can be the ids by chance, where another lookup's are too.
        if found is not None and (found.layout is None or words > 1):
            roles[found.key].append(role)
    layers = _layers(batch, calls)
    embeddings = _embeddings(lookups, calls, layers, [one for one in added.values() if one is not None])
    if embeddings is not None:
        roles[embeddings].append(EMBEDDINGS)
    if _are_parts(batch, calls, layers):
        layers = []
    for number, call in enumerate(layers):
        roles[calls[call].key(OUTPUT)].append(f"{LAYER}.{number}")
    if layers:
        roles[calls[layers[-1]].key(OUTPUT)].append(f"{LAYER}.-1")
    times = _times(calls)
    at_lookups = [_at_lookup(lookup, roles[lookup.key], _other_names(lookup, calls), times) for lookup in lookups]
    return [*at_lookups, *_at_modules(lookups, calls, roles, times)]


def _at_lookup(lookup: Lookup, roles: Iterable[str], also: tuple[str, ...], times: Sequence[tuple[int, int]]) -> Point:
    time = 0 if lookup.parent is None else times[lookup.parent][0]
    return Point(lookup.key, tuple(roles), lookup.shape, lookup, lookup.key, also, time=time)


def _times(calls: Sequence[ModuleCall]) -> list[tuple[int, int]]:
    """When each call began and ended, by a clock that ticks at both."""
    clock, open_ = 0, list[int]()
    began, ended = [0] * len(calls), [0] * len(calls)

    def close() -> None:
        ended[open_.pop()] = clock

    for number, call in enumerate(calls):
        while open_ and open_[-1] != call.parent:
            clock += 1
            close()
        clock += 1
        began[number] = clock
        open_.append(number)
    while open_:
        clock += 1
        close()
    return list(zip(began, ended, strict=True))


def _other_names(lookup: Lookup, calls: Sequence[ModuleCall]) -> tuple[str, ...]:
    """Other names of the table's module, and those of an embedding that shares the table and made this lookup."""
    names = [name for call in calls if call.path == lookup.path for name in call.also]
    maker = None if lookup.parent is None else calls[lookup.parent]
    if maker is not None and maker.kind == "Embedding" and maker.token is not None and maker.token == lookup.token:
        names += [maker.path, *maker.also]
    return tuple(dict.fromkeys(name for name in names if name and name != lookup.path))


def _at_modules(
    lookups: Sequence[Lookup],
    calls: Sequence[ModuleCall],
    roles: Mapping[str, Sequence[str]],
    times: Sequence[tuple[int, int]],
) -> Iterator[Point]:
    """The modules' inputs and outputs. What the module of a table gives is told by the lookup already."""
    tables = {lookup.path for lookup in lookups}
    looked_up = {lookup.token for lookup in lookups}
    for call, (began, ended) in zip(calls, times, strict=True):
        given, gave = call.key(INPUT), call.key(OUTPUT)
        if call.path and call.source is not None:
            told = tuple(roles.get(given, ()))
            yield Point(given, told, call.source_shape, None, given, call.also, bool(told), began)
        if call.path and call.token is not None:
            hidden = call.path in tables and call.token in looked_up
            name = gave if call.path in tables else f"{call.path}#{call.occurrence}"
            yield Point(name, tuple(roles.get(gave, ())), call.token_shape, None, gave, call.also, not hidden, ended)


# The lookups by position and by type


def _position(batch: TokenBatch, lookups: Sequence[Lookup]) -> Lookup | None:
    """The first lookup whose indices go up by one at real positions."""
    fitting = [one for one in lookups if _counts_up(one, batch)]
    if any(row.sum() > 1 for row in batch.real):
        return _preferred(fitting, POSITION, told=True)
    # One real position goes up in any lookup; those that the mask leaves out tell where they count too, as in a micro-batch.
    throughout = [one for one in fitting if any(map(_goes_up_throughout, _per_position(one.indices, batch)))]
    return _preferred(fitting, POSITION, told=False) or _preferred(throughout, POSITION, told=True)


def _type(batch: TokenBatch, lookups: Sequence[Lookup]) -> Lookup | None:
    """The first lookup whose indices are the batch's types, or zeros where it has none."""
    types = np.zeros_like(batch.ids) if batch.types is None else batch.types
    fitting = [
        one
        for one in lookups
        if any(np.array_equal(np.broadcast_to(rows, batch.shape), types) for rows in _per_position(one.indices, batch))
    ]
    return _preferred(fitting, TYPE, told=batch.shape[1] > 1 or bool(types.any()))


def _preferred(fitting: Sequence[Lookup], role: str, told: bool) -> Lookup | None:
    """The first whose table is called so; else the first that is not `word`, if the indices alone tell."""
    other = TYPE if role == POSITION else POSITION
    spelled = [one for one in fitting if SPELLED[role].search(one.path.lower())]
    left = [one for one in fitting if one.layout is None and not SPELLED[other].search(one.path.lower())]
    return next(iter(spelled or (left if told else ())), None)


def _counts_up(lookup: Lookup, batch: TokenBatch) -> bool:
    return any(_goes_up(rows, lookup.padding, batch) for rows in _per_position(lookup.indices, batch))


def _goes_up(rows: np.ndarray, padding: int | None, batch: TokenBatch) -> bool:
    rows, real = np.broadcast_to(rows, batch.shape), batch.real
    if _goes_up_throughout(rows):
        return True
    # A table that declares a row of padding (RoBERTa's positions) gives it to pads, told or not.
    counted = real if padding is None else real & (rows != padding)
    return all((np.diff(row[kept]) == 1).all() for row, kept in zip(rows, counted, strict=True)) and bool(counted.any())


def _goes_up_throughout(rows: np.ndarray) -> bool:
    """From the first position to the last, whatever the mask leaves out."""
    return rows.shape[1] > 1 and bool((np.diff(rows) == 1).all())


def _per_position(indices: np.ndarray, batch: TokenBatch) -> Iterator[np.ndarray]:
    """The indices as (example or 1, position), in either reading where there are as many examples as positions."""
    examples, positions = batch.shape
    if indices.shape in ((positions,), (1, positions), (examples, positions)):
        yield indices.reshape(-1, positions)
    if indices.shape in ((positions, 1), (positions, examples)):
        yield np.asarray(indices.T)


# The layers


def _layers(batch: TokenBatch, calls: Sequence[ModuleCall]) -> list[int]:
    """The numbers of the calls of the repeated block, in order.

    Blocks that hold other modules come before those that hold none, such as the linear maps of a head or in a layer.
    """
    holding = {call.parent for call in calls}
    groups = [group for group in _groups(batch, calls) if len(group) > 1 and _is_stack(calls, group, holding)]
    outer = _outermost(calls, [group for group in groups if holding.issuperset(group)])
    single = [[number] for number in _singles(batch, calls, holding)]
    if not outer:
        single = [one for one in single if not any(_is_all_of(calls, one[0], group) for group in groups)]
        plain = _outermost(calls, [*groups, *single])
        first = [*single[:1], *sorted((group for group in plain if len(group) > 1), key=len, reverse=True)[:1]]
        found = min(first, key=lambda group: group[0], default=[])
        return [] if len(found) == 1 and _is_called_again(calls, found[0]) else found
    best = max(outer, key=len)  # of equals the first
    encoders = [
        group for group in (*outer, *single) if "encoder" in calls[group[0]].path.lower().replace("decoder", "")
    ]
    if "decoder" in calls[best[0]].path.lower() and encoders:
        return max(encoders, key=len)
    return _of_first_stack(calls, best, outer)


def _outermost(calls: Sequence[ModuleCall], groups: Sequence[list[int]]) -> list[list[int]]:
    """The groups that are not made inside a call of another."""
    members = {number for group in groups for number in group}
    return [group for group in groups if members.isdisjoint(_ancestors(calls, calls[group[0]].parent))]


def _is_called_again(calls: Sequence[ModuleCall], number: int) -> bool:
    """Whether what may be a model's only layer is called several times: nothing tells then what of it is a layer."""
    call = calls[number]
    return sum(one.parent == call.parent and one.path == call.path for one in calls) > 1


def _is_all_of(calls: Sequence[ModuleCall], number: int, group: Sequence[int]) -> bool:
    """Whether a call is the group's calls one after the other and no more."""
    call = calls[number]
    return call.source == calls[group[0]].source and call.token == calls[group[-1]].token


def _of_first_stack(calls: Sequence[ModuleCall], best: list[int], groups: Sequence[list[int]]) -> list[int]:
    """Encoder and decoder may be stacks of one class, as in T5: the encoder comes first."""
    alike = [group for group in groups if calls[group[0]].kind == calls[best[0]].kind]
    return min(alike, key=lambda group: group[0])


def _groups(batch: TokenBatch, calls: Sequence[ModuleCall]) -> list[list[int]]:
    """Calls of one kind, made in one call of what holds them, each of which turns hidden states into such of one shape."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, call in enumerate(calls):
        if _is_hidden(call, batch):
            groups[call.parent, call.kind, call.token_shape].append(number)
    return sorted(groups.values(), key=lambda group: group[0])


def _is_hidden(call: ModuleCall, batch: TokenBatch) -> bool:
    """Whether it takes and gives something for each example and position."""
    examples, positions = batch.shape
    shapes = ((examples, positions), (positions, examples))

    def fits(shape: tuple[int, ...]) -> bool:
        return (len(shape) == 3 and shape[:2] in shapes) or (len(shape) == 2 and shape[0] == examples * positions)

    return bool(call.path) and fits(call.token_shape) and fits(call.source_shape)


def _is_stack(calls: Sequence[ModuleCall], group: Sequence[int], holding: Collection[int | None]) -> bool:
    """Whether each takes what the one before it gave, or they are numbered one after the other.

    Between blocks that hold others may come modules such as dropout.
    """
    through = [number for number in range(group[0], group[-1]) if calls[number].parent == calls[group[0]].parent]
    if not all(number in holding for number in group):
        through = []
    if all(_leads(calls, before, through, after) for before, after in pairwise(group)):
        return True
    return [_number(calls[one]) for one in group] == list(range(len(group)))


def _leads(calls: Sequence[ModuleCall], before: int, through: Sequence[int], after: int) -> bool:
    """Whether a call takes what one before it gave, as it is or by way of others."""
    there = {calls[before].token}
    for number in through:
        if before < number < after and calls[number].source in there:
            there.add(calls[number].token)
    return calls[after].source in there


def _are_parts(batch: TokenBatch, calls: Sequence[ModuleCall], layers: Sequence[int]) -> bool:
    """Whether these are but a part of the model's layers, so that none can be said to be the last.

    Others of their kind run on fewer positions, as behind Funnel's pooling; or what they give goes into other blocks of the
    same numbers, as XLM's attentions and its feed-forward nets, and is no layer's.
    """
    if not layers:
        return False
    first = calls[layers[0]]
    path = first.path.lower()
    others = [
        (number, call)
        for number, call in enumerate(calls)
        if "decoder" in path or "decoder" not in call.path.lower()  # a decoder's own positions are others
    ]
    pooled = [number for number, call in others if call.kind == first.kind and _is_pooled(call, batch)]
    if len(pooled) > 1 or any(calls[number].parent == first.parent for number in pooled):
        return True
    holding = {call.parent for call in calls}
    beside: dict[str, list[int]] = defaultdict(list)
    for number, call in others:
        numbered = number in holding and _number(call) is not None
        if call.parent == first.parent and numbered and _is_hidden(call, batch):
            beside[NUMBERED.sub("", call.path)].append(number)
    own = beside.pop(NUMBERED.sub("", first.path), [])
    return any(_take_turns(calls, own, other) for other in beside.values())


def _is_pooled(call: ModuleCall, batch: TokenBatch) -> bool:
    """Whether it takes and gives something for each example, at fewer positions than there are ids."""
    examples, positions = batch.shape
    given, gave = call.source_shape, call.token_shape
    return len(given) == len(gave) == 3 and given[0] == gave[0] == examples and 1 < max(given[1], gave[1]) < positions


def _take_turns(calls: Sequence[ModuleCall], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two lists of blocks have the same numbers, and are called in turn."""
    numbers = [[number for call in side if (number := _number(calls[call])) is not None] for side in (one, other)]
    turns = [number for pair in zip(*sorted((list(one), list(other))), strict=False) for number in pair]
    return bool(one) and numbers[0] == numbers[1] and turns == sorted(turns)


def _singles(batch: TokenBatch, calls: Sequence[ModuleCall], holding: Collection[int | None]) -> list[int]:
    """Calls that may be the only layer of a model: of modules that hold others, numbered in a list; the outermost first."""
    found = [
        number
        for number, call in enumerate(calls)
        if number in holding
        and _number(call) is not None
        and _is_hidden(call, batch)
        and call.source_shape == call.token_shape
    ]
    return sorted(found, key=lambda number: len(list(_ancestors(calls, calls[number].parent))))


def _number(call: ModuleCall) -> int | None:
    """Which of a list of blocks it is, as its path says; None where that holds no number, or one that says something else.

    Keras counts the layers of a class as they are made: `add_3` is the fourth of the process, and no block's place.
    """
    found = NUMBERED.search(call.path)
    if found is None:
        return None
    name = re.split(r"[./]", call.path[: found.start()])[-1]
    counted = found[0].startswith("_") and name == CAPITAL.sub("_", call.kind).lower()
    return None if counted else int(found[1])


def _ancestors(calls: Sequence[ModuleCall], number: int | None) -> Iterator[int]:
    while number is not None:
        yield number
        number = calls[number].parent


# The embeddings


def _embeddings(
    lookups: Sequence[Lookup], calls: Sequence[ModuleCall], layers: Sequence[int], added: Sequence[Lookup]
) -> str | None:
    """The key of what the embedding block gives: the module that makes all lookups, or else what the first layer takes."""
    word = next((one for one in lookups if one.layout is not None and all(one is not other for other in added)), None)
    if word is None:
        return None
    block = _block(word, calls, layers, added)
    if block is not None:
        return calls[block].key(OUTPUT)
    return _key_of(calls[layers[0]].source, lookups, calls, layers[0]) if layers else None


def _block(word: Lookup, calls: Sequence[ModuleCall], layers: Sequence[int], added: Sequence[Lookup]) -> int | None:
    """The outermost call that makes the lookups by id, position and type, and that holds no layer."""
    above_layers = {number for layer in layers[:1] for number in _ancestors(calls, layer)}
    inside = [
        number
        for number in _ancestors(calls, word.parent)
        if number not in above_layers and calls[number].path and calls[number].token is not None
    ]
    with_all = [n for n in inside if added and all(n in _ancestors(calls, one.parent) for one in added)]
    return with_all[-1] if with_all else None


def _key_of(token: int | None, lookups: Sequence[Lookup], calls: Sequence[ModuleCall], layer: int) -> str:
    """The key of the tensor that a layer takes: of the last module that gave it, of a lookup, or else the layer's input."""
    tables = {lookup.path for lookup in lookups if lookup.token == token}
    around = set(_ancestors(calls, layer))
    giving = [
        call
        for number, call in enumerate(calls[:layer])
        if number not in around and call.token == token and call.path and call.path not in tables and call.ended >= 0
    ]
    if giving:
        return max(giving, key=lambda call: call.ended).key(OUTPUT)
    looked_up = next((lookup for lookup in lookups if lookup.token == token), None)
    return calls[layer].key(INPUT) if looked_up is None else looked_up.key
