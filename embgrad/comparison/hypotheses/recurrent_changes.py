"""The ways in which a recurrence of the port may differ from the reference's."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.changes import Change, with_fields
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, Activation
from embgrad.comparison.hypotheses.pooling import POOLS
from embgrad.comparison.hypotheses.product import cause_of
from embgrad.comparison.hypotheses.recurrence import GATES, LOGISTIC, Cell, Recurrence
from embgrad.comparison.hypotheses.recurrent_fit import SQUASHES, Fit
from embgrad.comparison.hypotheses.site import Site

__all__ = ["changes_of"]

#: The names of a cell's arrays.
MATRICES: Final = ("entry", "state")
BIASES: Final = ("bias", "state_bias")

#: The groups of a cell's arrays that may have the gates in another order, and what they are in sentences.
GROUPS: Final = (
    ((*MATRICES, *BIASES), ""),
    (("entry", *BIASES), " for the inputs"),
    (("state",), " in the matrix of the state"),
    (BIASES, " in the biases"),
)

#: The functions that models have for candidates and outputs, tanh as a rule.
CANDIDATES: Final = tuple(
    function
    for function in ACTIVATIONS
    if function.name
    in ("missing", "ReLU", "tanh", "the logistic function", "SiLU", "GELU by the error function", "ELU")
)

#: The most steps of all cells through a text with which each of several cells is changed by itself.
MOST_STEPS: Final = 400

#: What may become of the outputs of two directions, by the number of features to which it leads.
JOINED: Final = (("side by side", "side by side, the second first"), ("summed", "averaged"))

Function = Callable[[Cell], Cell]


def changes_of(site: Site, fit: Fit) -> Iterator[Change]:
    """Yield the changes of a recurrence of a that b may have, of all cells at once and of each by itself."""
    recurrence = fit.recurrence
    yield from _of_the_whole(fit.path, recurrence)
    for place, chosen in _scopes(fit):
        kind, cell = recurrence.cells[0].kind, recurrence.cells[chosen[0]]
        every = (
            _of_functions(place, cell),
            _of_biases(place, kind, has_two=len(fit.slots[0].arrays) > 3),
            _of_layouts(place, cell, fit.order),
            _of_orders(place, kind, fit.order),
        )
        for cause, sentence, function in itertools.chain(*every):
            yield Change(cause, sentence, functools.partial(_changed, frozenset(chosen), function))
    yield from _of_values(site, fit)


def _changed(chosen: frozenset[int], function: Function, recurrence: Recurrence) -> Recurrence:
    """Return a recurrence with some of its cells changed, which are counted layer by layer."""
    cells = iter(function(cell) if number in chosen else cell for number, cell in enumerate(recurrence.cells))
    return replace(recurrence, layers=tuple(tuple(itertools.islice(cells, len(layer))) for layer in recurrence.layers))


def _scopes(fit: Fit) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the groups of cells that may have changed together, by their numbers, with their name: all of them first."""
    recurrence, path = fit.recurrence, fit.path
    numbers, directions = range(len(recurrence.cells)), len(recurrence.layers[0])
    yield path, numbers
    sides = [f"the {'backward' if cell.backward else 'forward'} direction" for cell in recurrence.layers[0]]
    layers = range(len(recurrence.layers)) if len(recurrence.layers) > 1 else ()
    for layer in layers:
        yield f"layer {layer} of {path}", numbers[layer * directions : (layer + 1) * directions]
    for side, words in enumerate(sides if directions > 1 else ()):
        yield f"{words} of {path}", numbers[side::directions]
    is_quick = len(numbers) * fit.real.shape[1] <= MOST_STEPS
    for layer, (side, words) in itertools.product(layers if is_quick else (), enumerate(sides)):
        if directions > 1:
            yield f"{words} of layer {layer} of {path}", [layer * directions + side]


def _of_the_whole(path: str, recurrence: Recurrence) -> Iterator[Change]:
    """Yield the changes of what is around the cells."""
    yield Change(
        "recurrence",
        f"{path} reads the tokens of a text one after the other in a, and the examples of the batch in b",
        lambda it: replace(it, across=not it.across, masked=False),
    )
    yield Change(
        "mask-ignored",
        f"the state of {path} {'runs through padding' if recurrence.masked else 'stays as it is at padding'} in b, not in a",
        lambda it: replace(it, masked=not it.masked),
    )
    for pool in POOLS if recurrence.pool else ():
        sentence = f"the pooled vector is {recurrence.pool} in a and {pool} in b"
        yield Change("pooling", sentence, with_fields(pool=pool))
    every = range(len(recurrence.layers))
    widths = {cell.entry.shape[0] for cell in recurrence.cells}
    for number in every if len(every) > 1 and len(widths) == 1 else ():
        yield Change("missing-part", f"b skips layer {number} of {path}", functools.partial(_without_layer, number))
        for other in (it for it in every if it != number):
            sentence = f"layer {number} of {path} has the weights of layer {other} in b"
            yield Change("swapped-weights", sentence, functools.partial(_with_layer_of, number, other))
    if len(recurrence.layers[0]) < 2:
        return
    yield Change(
        "recurrence",
        f"b does not turn the outputs of the backward direction of {path} back into the order of the tokens",
        lambda it: replace(it, turned=False),
    )
    for joined in itertools.chain(*(ways for ways in JOINED if recurrence.joined in ways)):
        if joined != recurrence.joined:
            sentence = f"the outputs of both directions of {path} are {recurrence.joined} in a and {joined} in b"
            yield Change("recurrence", sentence, with_fields(joined=joined))
    for chosen in [every, *([number] for number in every)] if len(every) > 1 else [every]:
        where = "" if len(chosen) == len(every) else f" in layer {chosen[0]}"
        yield Change(
            "swapped-weights",
            f"the weights of both directions of {path} are exchanged in b{where}",
            functools.partial(_with_directions_exchanged, chosen),
        )


def _without_layer(number: int, recurrence: Recurrence) -> Recurrence:
    return replace(recurrence, layers=(*recurrence.layers[:number], *recurrence.layers[number + 1 :]))


def _with_layer_of(number: int, other: int, recurrence: Recurrence) -> Recurrence:
    layers = list(recurrence.layers)
    layers[number] = recurrence.layers[other]
    return replace(recurrence, layers=tuple(layers))


def _with_directions_exchanged(chosen: Sequence[int], recurrence: Recurrence) -> Recurrence:
    layers = [_exchanged(cells) if number in chosen else cells for number, cells in enumerate(recurrence.layers)]
    return replace(recurrence, layers=tuple(layers))


def _exchanged(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    return tuple(replace(other, backward=cell.backward) for cell, other in zip(cells, cells[::-1], strict=True))


_Changes = Iterator[tuple[str, str, Function]]


def _of_functions(place: str, cell: Cell) -> _Changes:
    """Yield changes of the functions of a cell."""
    yield "recurrence", f"{place} reads the tokens from the last to the first in one model alone", _backward
    if cell.kind == "GRU":
        first, second = _in_turn(("product with the state", "state before the product"), cell.resets_product)
        sentence = f"the reset gate of {place} multiplies the {first} in a and the {second} in b"
        yield "recurrence", sentence, lambda it: replace(it, resets_product=not it.resets_product)
        first, second = _in_turn(("old state", "candidate"), cell.keeps)
        sentence = f"the update gate of {place} is the share of the {first} in a and of the {second} in b"
        yield "recurrence", sentence, lambda it: replace(it, keeps=not it.keeps)
    if cell.kind != "RNN":
        yield from _of_function("the gates", place, (LOGISTIC, *SQUASHES), cell.squash, "squash")
    yield from _of_function("the candidate", place, CANDIDATES, cell.candidate, "candidate")
    if cell.kind == "LSTM":
        yield from _of_function("the output", place, CANDIDATES, cell.emitted, "emitted")
        yield from _of_function(
            "the candidate and the output", place, CANDIDATES, cell.candidate, "candidate", "emitted"
        )


def _in_turn(words: tuple[str, str], is_first: bool) -> tuple[str, str]:
    """Return what holds in a and what holds in b, of two alternatives."""
    return words if is_first else (words[1], words[0])


def _of_function(what: str, place: str, others: Sequence[Activation], own: Activation, *fields: str) -> _Changes:
    """Yield the changes of a function, which a cell holds in some fields, to each of others."""
    for other in others:
        if other.name != own.name:
            sentence = f"the function of {what} of {place} is {own.name} in a and {other.name} in b"
            yield "activation", sentence, with_fields(**dict.fromkeys(fields, other))


def _backward(cell: Cell) -> Cell:
    return replace(cell, backward=not cell.backward)


def _of_biases(place: str, kind: str, *, has_two: bool) -> _Changes:
    """Yield changes of the biases of a cell."""
    yield "missing-bias", f"b adds no bias in {place}", lambda it: _biased(it, 0, 0)
    if has_two:
        yield "missing-bias", f"b adds the bias of the inputs alone in {place}", lambda it: _biased(it, 1, 0)
        yield "missing-bias", f"b adds the bias of the state alone in {place}", lambda it: _biased(it, 0, 1)
        yield "different-weight", f"b adds the bias of the inputs twice in {place}", lambda it: _biased(it, 2, 1)
        yield "different-weight", f"b adds the bias of the state twice in {place}", lambda it: _biased(it, 1, 2)
    yield "different-weight", f"b adds the biases twice in {place}", lambda it: _biased(it, 2, 2)
    if kind == "GRU":
        sentence = f"the reset gate of {place} multiplies the state's bias of the candidate in a, and not in b"
        yield "recurrence", sentence, lambda it: replace(it, bias=it.bias + it.state_bias, state_bias=0 * it.bias)
    for number, gate in enumerate(GATES[kind]):
        for step, words in ((1.0, "adds 1 to"), (-1.0, "subtracts 1 from")):
            sentence = f"b {words} the bias of the {gate} gate of {place}"
            yield "different-weight", sentence, functools.partial(_shifted, number, step)


def _biased(cell: Cell, own: float, of_state: float) -> Cell:
    return replace(cell, bias=own * cell.bias, state_bias=of_state * cell.state_bias)


def _shifted(gate: int, step: float, cell: Cell) -> Cell:
    bias = cell.bias.copy()
    bias[gate] += step
    return replace(cell, bias=bias)


def _of_layouts(place: str, cell: Cell, stored: tuple[int, ...]) -> _Changes:
    """Yield changes of how matrices are stored, where a's weights hold the gates in an order of their own."""
    for part, words in (("entry", "inputs"), ("state", "state")):
        values = getattr(cell, part)
        if values.shape[0] == values.shape[2]:
            sentence = f"the matrices of the {words} of {place} are transposed in b"
            yield "transposed-weight", sentence, functools.partial(_relaid, part, stored, _transposed)
        sentence = f"the matrix of the {words} of {place} is reshaped where it is to be transposed in b"
        for function in (_reshaped, _reshaped_by_feature):
            yield "permuted-weight", sentence, functools.partial(_relaid, part, stored, function)


def _transposed(values: np.ndarray) -> np.ndarray:
    """Return square matrices (input, gate, feature) transposed, and others as they are."""
    return values.transpose(2, 1, 0) if values.shape[0] == values.shape[2] else values


def _reshaped(values: np.ndarray) -> np.ndarray:
    """Return a matrix (input, gate, feature) whose numbers are stored as (gate, feature, input)."""
    return np.asarray(values.transpose(1, 2, 0).reshape(values.shape))


def _reshaped_by_feature(values: np.ndarray) -> np.ndarray:
    """Return a matrix (input, gate, feature) stored as that, and read as (gate, feature, input)."""
    rows, gates, size = values.shape
    return np.asarray(values.reshape(gates, size, rows).transpose(2, 0, 1))


def _relaid(part: str, stored: tuple[int, ...], function: Callable[[np.ndarray], np.ndarray], cell: Cell) -> Cell:
    """Return a cell with a function of a matrix whose gates are in the order of the weights."""
    values = function(getattr(cell, part)[:, np.argsort(stored)])
    changed: Cell = with_fields(**{part: values[:, list(stored)]})(cell)
    return changed


def _of_orders(place: str, kind: str, stored: tuple[int, ...]) -> _Changes:
    """Yield other orders of the gates, where a's weights hold them in an order of their own."""
    gates = GATES[kind]
    blocks = [gates[stored.index(block)] for block in range(len(gates))]
    for parts, words in GROUPS:
        for order in itertools.permutations(range(len(gates))):
            if list(order) == sorted(order):
                continue
            taken = [gates[order.index(gates.index(gate))] for gate in blocks]
            sentence = f"b takes the gates of {place}{words} as {', '.join(taken)}, and a as {', '.join(blocks)}"
            yield "permuted-weight", sentence, functools.partial(Cell.ordered, order=order, parts=parts)


def _of_values(site: Site, fit: Fit) -> Iterator[Change]:
    """Yield the changes by b's weights that differ from their partners."""
    for number, slot in enumerate(fit.slots):
        for index, weight in enumerate(slot.weights):
            partner, match = site.partners.get(weight.name, (None, None))
            if partner is None or match is None or match.is_equal:
                continue
            for other in slot.others(index, partner.get()):
                cell = other.cell(fit.order)
                parts = MATRICES[index : index + 1] or BIASES
                arrays = {part: getattr(cell, part) for part in parts}
                function = functools.partial(_changed, frozenset([number]), with_fields(**arrays))
                yield Change(cause_of(match), f"b has {weight.name} {match.as_object}", function)
