"""Assign roles (word, position, type, embeddings, layers) to points, by what a pass did; names decide only ambiguous cases."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.layers import Calls, Stack, alternate, ancestors, find_stacks, is_decoders
from embgrad.model_points.points import INPUT, OUTPUT, PRODUCT, WORD, Lookup, ModuleCall, Point

__all__ = ["EMBEDDINGS", "LAYER", "POSITION", "TYPE", "points_of", "with_role_by_position"]

POSITION: Final = "position"
TYPE: Final = "type"
EMBEDDINGS: Final = "embeddings"
LAYER: Final = "layer"

#: Patterns in table names that identify position and type lookups where their indices do not, as in a batch of one position.
SPELLED: Final = {POSITION: re.compile(r"(?:^|[^a-z])pos|wpe"), TYPE: re.compile("type|seg")}


def points_of(
    batch: TokenBatch,
    lookups: Sequence[Lookup],
    calls: Sequence[ModuleCall],
    foreign: Collection[int] = frozenset(),
    apart: Collection[str] = frozenset(),
) -> list[Point]:
    """Return the points that a forward pass reached, with roles: the lookups in order, then the modules in order of their calls.

    Args:
        calls: the pass's module calls, with tokens.
        foreign: the indices of the calls that do not compute the text's layers, such as those of an image.
        apart: the keys of lookups by position or type that do not lead to the text's layers.
    """
    every = lookups
    roles: dict[str, list[str]] = defaultdict(list)
    for lookup in lookups:
        if lookup.layout is not None and lookup.rival is None:
            roles[lookup.key].append(WORD)
    foreign = {*foreign, *(number for number, call in enumerate(calls) if call.kind == PRODUCT)}
    reading = Calls(batch.shape, calls, foreign)
    lookups = _without_slices([lookup for lookup in every if lookup.key not in apart], calls, ())
    stack = _layers(batch, reading, lookups)
    lookups = _without_slices(lookups, calls, stack.blocks)
    away = _away(batch, reading, lookups, stack.blocks)
    before = _find_made_before(reading, lookups, stack.blocks[-1:] if away is None else [away])
    added = {POSITION: _position(batch, before), TYPE: _type(batch, before)}
    words = sum(lookup.layout is not None for lookup in lookups)
    for role, candidate in added.items():
        # This lookup's indices may equal the ids by chance, if another lookup's indices are the ids as well.
        if candidate is not None and (candidate.layout is None or words > 1):
            roles[candidate.key].append(role)
    is_entered = stack.certain and away is None
    embeddings = _embeddings(
        lookups, reading, stack.blocks, [lookup for lookup in added.values() if lookup is not None], is_entered
    )
    if embeddings is not None:
        roles[embeddings].append(EMBEDDINGS)
    layers = [] if not is_entered or _are_parts(reading, stack.blocks) else stack.blocks
    for number, call in enumerate(layers):
        roles[calls[call].key(OUTPUT)].append(f"{LAYER}.{number}")
    if layers:
        roles[calls[layers[-1]].key(OUTPUT)].append(f"{LAYER}.-1")
    times = _times(calls)
    kept = {lookup.key for lookup in lookups} | set(apart)
    listed = [lookup for lookup in every if lookup.key in kept]
    at_lookups = [_at_lookup(lookup, roles[lookup.key], _other_names(lookup, calls), times) for lookup in listed]
    return [*at_lookups, *_at_modules(listed, calls, roles, times)]


def _at_lookup(lookup: Lookup, roles: Iterable[str], also: tuple[str, ...], times: Sequence[tuple[int, int]]) -> Point:
    time = 0 if lookup.parent is None else times[lookup.parent][0]
    return Point(lookup.key, tuple(roles), lookup.shape, lookup, lookup.key, also, time=time)


def _times(calls: Sequence[ModuleCall]) -> list[tuple[int, int]]:
    """Return when each call began and ended, by a clock that advances at both."""
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
    """Return other names of the table's module, and those of an `Embedding` that shares the table and made this lookup."""
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
    """Yield the points at the modules' inputs and outputs. A table's output is not listed: its lookup already is."""
    tables = {lookup.path for lookup in lookups}
    looked_up = {lookup.token for lookup in lookups}
    for call, (began, ended) in zip(calls, times, strict=True):
        input_key, output_key = call.key(INPUT), call.key(OUTPUT)
        if call.path and call.source is not None:
            input_roles = tuple(roles.get(input_key, ()))
            yield Point(input_key, input_roles, call.source_shape, None, input_key, call.also, bool(input_roles), began)
        if call.path and call.token is not None:
            hidden = call.path in tables and call.token in looked_up
            name = output_key if call.path in tables else f"{call.path}#{call.occurrence}"
            yield Point(
                name, tuple(roles.get(output_key, ())), call.token_shape, None, output_key, call.also, not hidden, ended
            )


# The lookups by position and by type


def _without_slices(
    lookups: Sequence[Lookup], calls: Sequence[ModuleCall], layers: Collection[int]
) -> Sequence[Lookup]:
    """Return the lookups without slices of tables that cannot hold the vectors of positions.

    Such vectors are as long as those of words, which they are added to, and are not looked up inside a layer.
    """
    dims = {lookup.dim for lookup in lookups if lookup.layout is not None}
    return [
        lookup
        for lookup in lookups
        if not lookup.sliced or (lookup.dim in dims and set(layers).isdisjoint(ancestors(calls, lookup.parent)))
    ]


def _find_made_before(calls: Calls, lookups: Sequence[Lookup], last: Sequence[int]) -> Sequence[Lookup]:
    """Return the lookups made before the last layer, if there is one: a decoder's positions are not the encoder's."""
    last_token = calls.all[last[0]].token if last else None
    return [lookup for lookup in lookups if last_token is None or lookup.token is None or lookup.token < last_token]


def _position(batch: TokenBatch, lookups: Sequence[Lookup]) -> Lookup | None:
    """Return the first lookup whose indices increase by one at real positions; None where there is none."""
    fitting = [lookup for lookup in lookups if _counts_up(lookup, batch)]
    if any(row.sum() > 1 for row in batch.real):
        return _prefer(fitting, POSITION, decided=True)
    # With one real position in each example any lookup fits. Masked positions then decide, where their indices count up too.
    throughout = [lookup for lookup in fitting if any(map(_goes_up_throughout, _per_position(lookup.indices, batch)))]
    return _prefer(fitting, POSITION, decided=False) or _prefer(throughout, POSITION, decided=True)


def _type(batch: TokenBatch, lookups: Sequence[Lookup]) -> Lookup | None:
    """Return the first lookup whose indices are the batch's types, or zeros where it has none."""
    fitting = [lookup for lookup in lookups if _are_types(lookup, batch)]
    return _prefer(fitting, TYPE, decided=batch.shape[1] > 1 or bool(_types(batch).any()))


def _types(batch: TokenBatch) -> np.ndarray:
    return np.zeros_like(batch.ids) if batch.types is None else batch.types


def _are_types(lookup: Lookup, batch: TokenBatch) -> bool:
    readings = () if lookup.sliced else _per_position(lookup.indices, batch)
    return any(np.array_equal(np.broadcast_to(rows, batch.shape), _types(batch)) for rows in readings)


def with_role_by_position(batch: TokenBatch, lookups: Sequence[Lookup]) -> list[Lookup]:
    """Return the lookups that may be the one by position or the one by type."""
    return [lookup for lookup in lookups if _counts_up(lookup, batch) or _are_types(lookup, batch)]


def _prefer(fitting: Sequence[Lookup], role: str, decided: bool) -> Lookup | None:
    """Return the first lookup whose table is named like the role; else, if indices suffice, the first that may have the role."""
    other = TYPE if role == POSITION else POSITION
    named = [lookup for lookup in fitting if SPELLED[role].search(lookup.path.lower())]
    unnamed = [lookup for lookup in fitting if lookup.layout is None and not SPELLED[other].search(lookup.path.lower())]
    return next(iter(named or (unnamed if decided else ())), None)


def _counts_up(lookup: Lookup, batch: TokenBatch) -> bool:
    readings = list(_per_position(lookup.indices, batch))
    # Flat indices count as positions only where they begin with the same number in each example.
    if not readings and lookup.indices.shape == (batch.ids.size,):
        rows = lookup.indices.reshape(batch.shape)
        readings = (
            [rows] if len({row[real][:1].tobytes() for row, real in zip(rows, batch.real, strict=True)}) == 1 else []
        )
    return any(_goes_up(rows, lookup.padding, batch) for rows in readings)


def _goes_up(rows: np.ndarray, padding: int | None, batch: TokenBatch) -> bool:
    rows, real = np.broadcast_to(rows, batch.shape), batch.real
    if _goes_up_throughout(rows):
        return True
    # A table that declares a padding row (RoBERTa's positions) uses it for pads, whether or not the mask marks them.
    counted = real if padding is None else real & (rows != padding)
    return all((np.diff(row[mask]) == 1).all() for row, mask in zip(rows, counted, strict=True)) and bool(counted.any())


def _goes_up_throughout(rows: np.ndarray) -> bool:
    """Return whether the indices increase by one from the first position to the last, masked positions included."""
    return rows.shape[1] > 1 and bool((np.diff(rows) == 1).all())


def _per_position(indices: np.ndarray, batch: TokenBatch) -> Iterator[np.ndarray]:
    """Yield the indices as (example or 1, position): in both readings where examples and positions are equal in number."""
    examples, positions = batch.shape
    if indices.shape in ((positions,), (1, positions), (examples, positions)):
        yield indices.reshape(-1, positions)
    if indices.shape in ((positions, 1), (positions, examples)):
        yield np.asarray(indices.T)


# The layers


def _layers(batch: TokenBatch, calls: Calls, lookups: Sequence[Lookup]) -> Stack:
    """Return the calls of the repeated block in order; `certain` is False where they may be something else than the layers.

    Blocks that hold other modules are preferred to blocks that hold none, such as the linear maps in a head or a layer.
    """
    added = (_position(batch, lookups), _type(batch, lookups))
    makers = {
        lookup.parent for lookup in lookups if lookup.layout is not None or any(lookup is other for other in added)
    }
    stacks, single = find_stacks(calls, {number for maker in makers for number in ancestors(calls.all, maker)})
    outer = _outermost(calls, [stack for stack in stacks if not calls.holding.isdisjoint(stack.blocks)])
    alone = [Stack([number], certain=True) for number in single]
    if not outer:
        return _inner(calls, stacks, alone)
    best = max(outer, key=lambda stack: len(stack.blocks))  # the first of those of equal length
    encoders = [
        stack
        for stack in (*outer, *alone)
        if "encoder" in calls.all[stack.blocks[0]].path.lower().replace("decoder", "")
    ]
    if is_decoders(calls.all[best.blocks[0]]) and encoders:
        return max(encoders, key=lambda stack: len(stack.blocks))
    layers = _of_first_stack(calls, best, outer)
    return layers._replace(certain=layers.certain and not _is_in_pieces(calls, layers, [*outer, *alone]))


def _inner(calls: Calls, stacks: Sequence[Stack], alone: Sequence[Stack]) -> Stack:
    """Return the layers where no block that holds others is repeated: a single block, or a chain of modules that hold none."""
    alone = [single for single in alone if not any(_is_all_of(calls, single.blocks[0], stack) for stack in stacks)]
    plain = _outermost(calls, [*stacks, *alone])
    chains = sorted((stack for stack in plain if len(stack.blocks) > 1), key=lambda stack: -len(stack.blocks))
    layers = min([*alone[:1], *chains[:1]], key=lambda stack: stack.blocks[0], default=Stack([], certain=True))
    if len(layers.blocks) == 1 and _is_called_again(calls, layers.blocks[0]):
        return Stack([], certain=False)
    return layers


def _outermost(calls: Calls, stacks: Sequence[Stack]) -> list[Stack]:
    """Return the stacks that are not made inside a block of another stack."""
    members = {number for stack in stacks for number in stack.blocks}
    return [stack for stack in stacks if not calls.is_inside(stack.blocks[0], members)]


def _is_called_again(calls: Calls, number: int) -> bool:
    """Return whether a module that may be a model's only layer is called several times.

    Nothing shows then which of its calls, or which of its modules, is a layer.
    """
    call = calls.all[number]
    return sum(other.parent == call.parent and other.path == call.path for other in calls.all) > 1


def _is_all_of(calls: Calls, number: int, stack: Stack) -> bool:
    """Return whether a call consists of the stack's calls one after another and nothing else."""
    call, first, last = calls.all[number], calls.all[stack.blocks[0]], calls.all[stack.blocks[-1]]
    return call.source == first.source and call.token == last.token


def _of_first_stack(calls: Calls, best: Stack, stacks: Sequence[Stack]) -> Stack:
    """Return the first stack of the same kinds: in T5, encoder and decoder are stacks of one class, the encoder first."""
    kinds = calls.kinds(best.blocks)
    alike = [stack for stack in stacks if kinds & calls.kinds(stack.blocks)]
    return min(alike, key=lambda stack: stack.blocks[0])


def _is_in_pieces(calls: Calls, layers: Stack, stacks: Sequence[Stack]) -> bool:
    """Return whether blocks of the same kind in another module are layers too: they continue these, or precede them singly.

    A stack before another that does not lead to it belongs to an encoder. For a single block, nothing shows that.
    """
    kinds, first, last = calls.kinds(layers.blocks), layers.blocks[0], layers.blocks[-1]
    for stack in stacks:
        start = stack.blocks[0]
        if not kinds & calls.kinds(stack.blocks) or is_decoders(calls.all[start]) != is_decoders(calls.all[first]):
            continue
        if start < first and len(stack.blocks) == 1 and not calls.is_inside(first, stack.blocks):
            return True
        if start > last and calls.all[start].source in _find_made_of(calls, last, start):
            return True
    return False


def _find_made_of(calls: Calls, last: int, until: int) -> set[int | None]:
    """Return the tokens of a call's output and of the tensors that other calls computed from it, up to another call."""
    tokens = {calls.all[last].token}
    for call in calls.all[last + 1 : until]:
        if call.source in tokens:
            tokens.add(call.token)
    return tokens


def _are_parts(calls: Calls, layers: Sequence[int]) -> bool:
    """Return whether these are only some of the model's layers, so that none can be called the last.

    This holds where other blocks of their kind run on fewer positions, as after Funnel's pooling; or where their outputs go
    into other blocks with the same numbers, as XLM's attentions feed its feed-forward nets, and are not a whole layer's; or
    where modules that compute stand between any two.
    """
    if not layers:
        return False
    first = calls.all[layers[0]]
    path, kinds = first.path.lower(), calls.kinds(layers)
    others = [
        (number, call)
        for number, call in enumerate(calls.all)
        if number not in calls.foreign
        if "decoder" in path or "decoder" not in call.path.lower()  # a decoder may have other positions
    ]
    positions = calls.shape[1]
    pooled = [number for number, call in others if call.kind in kinds and 1 < calls.positions(number) < positions]
    if len(pooled) > 1 or any(calls.parent(number) == first.parent for number in pooled):
        return True
    lists = calls.lists(number for number, _ in others if number in calls.holding and number in calls.hidden)
    beside = {key: listed for key, listed in lists.items() if key[0] == first.parent}
    of_layers = [beside.pop(key) for key in calls.lists(layers) if key in beside]
    if any(_take_turns(calls, listed, other) for listed in of_layers for other in beside.values()):
        return True
    return alternate(calls, layers)


def _away(batch: TokenBatch, calls: Calls, lookups: Sequence[Lookup], layers: Sequence[int]) -> int | None:
    """Return the last block before `layers` that runs the ids at a different number of positions; None where there is none.

    An encoder that pads its inputs, as LED's does to its window size, has such blocks. The layers after it are the decoder's.
    """
    word = _word_of(lookups, (_position(batch, lookups), _type(batch, lookups)))
    if word is None or not layers:
        return None
    first, around = calls.all[layers[0]], set(ancestors(calls.all, word.parent))
    without = around.difference(
        ancestors(calls.all, layers[0])
    )  # such as the encoder's call, when `layers` are the decoder's
    turned = (first.token_shape[-1], calls.shape[1])  # the axes of a convolution

    def is_away(number: int) -> bool:
        call = calls.all[number]
        if number not in calls.holding or calls.items[number] is None or call.token_shape[1:] == turned:
            return False
        if number in calls.foreign:
            return False
        if calls.positions(number) in (0, 1, calls.shape[1]) or (call.token or 0) < (word.token or 0):
            return False
        named = is_decoders(first) and not is_decoders(call) and "encoder" in call.path.lower()
        beside = call.parent == first.parent and (call.parent is None or call.parent in around)
        return named or beside or not without.isdisjoint(ancestors(calls.all, number))

    return next((number for number in reversed(range(layers[0])) if is_away(number)), None)


def _take_turns(calls: Calls, left: Sequence[int], right: Sequence[int]) -> bool:
    """Return whether two lists of blocks have the same numbers and are called alternately."""
    numbers = [[item.number for call in blocks if (item := calls.items[call]) is not None] for blocks in (left, right)]
    turns = [number for pair in zip(*sorted((list(left), list(right))), strict=False) for number in pair]
    return bool(left) and numbers[0] == numbers[1] and turns == sorted(turns)


# The embeddings


def _embeddings(
    lookups: Sequence[Lookup],
    reading: Calls,
    layers: Sequence[int],
    added: Sequence[Lookup],
    is_entered: bool,
) -> str | None:
    """Return the key of the embedding block's output: of the module that makes all lookups, or else the first layer's input.

    If only dropout, norms and the like stand between the two, they belong to the block, and it is the first layer's input too.

    Args:
        layers: the indices of the calls that are layers, or may be.
        added: the lookups by position and type.
        is_entered: whether the first of `layers` is known to be the first layer.
    """
    word, calls = _word_of(lookups, added), reading.all
    if word is None:
        return None
    block = _block(word, reading, layers[:1] or _later_blocks(word, reading), lookups, added)
    entered = layers[0] if layers and is_entered else None
    if block is not None and (entered is None or not _leads_slightly(reading, block, entered)):
        return calls[block].key(OUTPUT)
    return None if entered is None else _key_of(calls[entered].source, lookups, calls, entered)


def _word_of(lookups: Sequence[Lookup], added: Sequence[Lookup | None]) -> Lookup | None:
    """Return the first lookup of the ids that is not the position or type lookup; None where there is none."""
    return next(
        (lookup for lookup in lookups if lookup.layout is not None and all(lookup is not other for other in added)),
        None,
    )


def _block(
    word: Lookup, reading: Calls, layers: Sequence[int], lookups: Sequence[Lookup], added: Sequence[Lookup]
) -> int | None:
    """Return the outermost call that makes the lookups by id, position and type and holds no layer; None where there is none.

    Where no layer is known, the call holds nothing but lookups, dropout, norms and the like: it may be a whole model otherwise.
    """
    calls, makers = reading.all, {lookup.parent for lookup in lookups}
    above_layers = {number for layer in layers for number in ancestors(calls, layer)}
    inside = [
        number
        for number in ancestors(calls, word.parent)
        if number not in above_layers and calls[number].path and calls[number].token is not None
        if layers or reading.is_slight(number, makers)
    ]
    with_all = [n for n in inside if added and all(n in ancestors(calls, lookup.parent) for lookup in added)]
    return with_all[-1] if with_all else None


def _later_blocks(word: Lookup, reading: Calls) -> list[int]:
    """Return the calls of blocks at any number of positions whose input is made after the lookup of the ids."""
    return [
        number
        for number, call in enumerate(reading.all)
        if number in reading.holding and reading.items[number] is not None and reading.positions(number) > 1
        if (call.source or 0) > (word.token or 0)
    ]


def _leads_slightly(calls: Calls, block: int, layer: int) -> bool:
    """Return whether a layer takes what dropout, norms and the like make of a block's output, and not the output itself."""
    output = calls.all[block].token
    tokens = {output}
    for number in range(block, layer):
        call = calls.all[number]
        if call.source in tokens and call.token is not None and calls.is_slight(number):
            tokens.add(call.token)
    source = calls.all[layer].source
    return source != output and source in tokens


def _key_of(token: int | None, lookups: Sequence[Lookup], calls: Sequence[ModuleCall], layer: int) -> str:
    """Return the key of the point that made a layer's input: the last module that returned it, its lookup, or the input."""
    tables = {lookup.path for lookup in lookups if lookup.token == token}
    around = set(ancestors(calls, layer))
    giving = [
        call
        for number, call in enumerate(calls[:layer])
        if number not in around and call.token == token and call.path and call.path not in tables and call.ended >= 0
    ]
    if giving:
        return max(giving, key=lambda call: call.ended).key(OUTPUT)
    looked_up = next((lookup for lookup in lookups if lookup.token == token), None)
    return calls[layer].key(INPUT) if looked_up is None else looked_up.key
