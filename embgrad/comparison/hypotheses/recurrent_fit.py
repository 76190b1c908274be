"""The recurrent layers that reproduce the reference's output."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from embgrad.comparison.hypotheses.functions import ACTIVATIONS, IDENTITY, Activation
from embgrad.comparison.hypotheses.pooling import POOLS
from embgrad.comparison.hypotheses.recurrence import GATES, TANH, Cell, Recurrence
from embgrad.comparison.hypotheses.site import Before, Site, Values
from embgrad.comparison.hypotheses.sources import most_off, relative
from embgrad.comparison.recording import HeldWeight, contains
from embgrad.comparison.weight_values import layouts

__all__ = ["SQUASHES", "Fit", "Slot", "fits"]

#: The most examples and tokens by which recurrences are told apart first.
EXAMPLES: Final = 2
TOKENS: Final = 12

#: The functions of gates that models have in place of the logistic function.
SQUASHES: Final = (
    Activation("the hard logistic function of slope 1/5", lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    Activation("the hard logistic function of slope 1/6", lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    TANH,
    IDENTITY,
)


@dataclass(frozen=True, eq=False)
class Slot:
    """The weights of one cell.

    Attributes:
        kind: "LSTM", "GRU" or "RNN".
        weights: those of the inputs, of the state, and the biases.
        arrays: their values, (input or feature, gate, feature), and the biases', (gate, feature), at most two.
    """

    kind: str
    weights: tuple[HeldWeight, ...]
    arrays: tuple[np.ndarray, ...]

    def cell(self, order: tuple[int, ...], **options: Any) -> Cell:
        """Return the cell whose gates have the weights in an order."""
        entry, state, *biases = (array[..., list(order), :] for array in self.arrays)
        none = np.zeros_like(entry[0])
        bias, state_bias = (*biases, none, none)[:2]
        return Cell(self.kind, entry, state, bias, state_bias, **options)

    def others(self, index: int, values: np.ndarray) -> Iterator[Slot]:
        """Yield the slot with the values of b's partner of one of its weights, in each layout that they may have."""
        mine = self.weights[index].get()
        gates = len(GATES[self.kind])
        for _, _, its in layouts(mine, values):
            arrays = list(self.arrays)
            if index < 2:
                found = _by_gate(its.reshape(mine.shape), len(self.arrays[index]), gates)
                arrays[index] = self.arrays[index] if found is None else found
            elif len(self.weights) > 3:
                arrays[index] = its.reshape(gates, -1)
            else:
                arrays[2:] = its.reshape(-1, *self.arrays[2].shape)
            yield replace(self, arrays=tuple(arrays))


@dataclass(frozen=True, eq=False)
class Fit:
    """The recurrence that reproduces the reference's output.

    Attributes:
        path: the path of the module.
        entry: its input.
        real: the positions that are not padding, bool, (example, position).
        slots: the weights of its cells.
        order: the order in which the weights hold the gates.
        recurrence: the layers.
    """

    path: str
    entry: Before
    real: np.ndarray
    slots: tuple[Slot, ...]
    order: tuple[int, ...]
    recurrence: Recurrence

    def off(self, recurrence: Recurrence, wanted: np.ndarray) -> float:
        """Return the relative L2 of a recurrence's outputs in a few places against a site's, (example, position, feature).

        The places are the first examples, padding among them where there is some, and the first tokens where later ones do
        not count.
        """
        padded = np.flatnonzero(~self.real.all(1))
        count = max(EXAMPLES, int(padded[0]) + 1 if len(padded) and padded[0] < 2 * EXAMPLES else 0)
        at = (slice(count), slice(None if recurrence.needs_all_tokens else TOKENS))
        found, real = _run(recurrence, self.entry.values[at], self.real[at]), self.real[at]
        return relative(found, wanted[:count]) if recurrence.pool else relative(found[real], wanted[at][real])

    def outputs(self, recurrence: Recurrence, at: Values) -> np.ndarray:
        """Return a recurrence's outputs in a pass whose values at points a function returns."""
        return _run(recurrence, at(self.entry.name), self.real)

    def inputs(self, recurrence: Recurrence) -> tuple[str, ...]:
        """Return the name of the point that a recurrence reads."""
        return (self.entry.name,)


def _run(recurrence: Recurrence, x: np.ndarray, real: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return recurrence.run(x, real)


def fits(site: Site) -> Iterator[Fit]:
    """Yield the recurrences that reproduce the reference's output."""
    real, most = site.recordings[0].batch.real, most_off(site)
    for path, held, entry, is_pooled in _modules(site, real):
        for slots, order, recurrence in _candidates(held, entry.values.shape[-1], site.a.shape[-1]):
            fit = Fit(path, entry, real, slots, order, recurrence)
            if is_pooled:
                outputs = _run(recurrence, entry.values, real)
                pools = (replace(recurrence, pool=name) for name in POOLS)
                found = (it for it in pools if site.off(it.pooled(outputs, real), from_a=True) <= most)
                yield from (replace(fit, recurrence=it) for it in itertools.islice(found, 1))
            elif fit.off(recurrence, site.a) <= most >= site.off(_run(recurrence, entry.values, real), from_a=True):
                yield fit


def _modules(site: Site, real: np.ndarray) -> Iterator[tuple[str, Sequence[HeldWeight], Before, bool]]:
    """Yield the modules of a that may be recurrent: the path, the weights, a tensor that they may read, and whether the site
    pools their outputs.

    Some return no tensor of positions, such as one of packed texts.
    """
    for path, entry in site.modules:
        if entry.values.shape[:2] == real.shape == site.a.shape[:2]:
            yield path, _held(site, path), entry, False
    paths = dict.fromkeys(weight.module for weight in site.recordings[0].weights if len(weight.shape) > 1)
    for path in paths if site.a.shape[1] == 1 < real.shape[1] else ():
        held = _held(site, path)
        if sum(len(weight.shape) > 1 for weight in held) > 1:  # so that a deep model's single matrices cost nothing
            yield from ((path, held, before, True) for before in site.before if before.values.shape[:2] == real.shape)


def _held(site: Site, path: str) -> Sequence[HeldWeight]:
    """Return the weights of a module of a and of those in it."""
    return [weight for weight in site.recordings[0].weights if contains(path, weight.module)]


def _candidates(
    held: Sequence[HeldWeight], inputs: int, features: int
) -> Iterator[tuple[tuple[Slot, ...], tuple[int, ...], Recurrence]]:
    """Yield the recurrences that the weights of a module may be, with these and the order of their gates."""
    for directions, joined in ((1, "side by side"), (2, "side by side"), (2, "summed"), (2, "averaged")):
        size = features // directions if joined == "side by side" else features
        for kind, turned in itertools.product(GATES, (False, True)):
            slots = _slots(held, kind, (inputs, features, size), directions, turned)
            for order, options in _conventions(kind) if slots else ():
                for backward, masked in itertools.product((False, True), (True, False)):
                    if backward and directions == 2:  # the second cell of a layer is backward in any case
                        continue
                    cells = [
                        slot.cell(order, backward=backward or number % directions == 1, **options)
                        for number, slot in enumerate(slots)
                    ]
                    layers = tuple(tuple(cells[at : at + directions]) for at in range(0, len(cells), directions))
                    yield slots, order, Recurrence(layers, masked, joined)


def _slots(
    held: Sequence[HeldWeight], kind: str, sizes: tuple[int, int, int], directions: int, turned: bool
) -> tuple[Slot, ...]:
    """Return the weights of each cell, in the model's order; none where they are not those of such cells.

    Args:
        held: the weights of a module.
        kind: the kind of the cells.
        sizes: the number of features of the input, of a layer's output, and of a cell's state.
        directions: the number of cells in each layer.
        turned: whether square matrices, of which there is one at least, have the inputs along their second axis.
    """
    inputs, following, size = sizes
    gates = len(GATES[kind])
    whole = gates * size
    biases = [weight for weight in held if weight.shape in ((whole,), (2, whole))]
    matrices = [weight for weight in held if len(weight.shape) == 2 and weight.shape != (2, whole)]
    count = len(matrices) // 2
    if not count or len(matrices) % 2 or count % directions or len(biases) % count:
        return ()
    if len(matrices) + len(biases) < len(held) or len(biases) > 2 * count:
        return ()
    if turned and not any(len(set(weight.shape)) == 1 for weight in matrices):
        return ()
    each, slots = len(biases) // count, []
    for number in range(count):
        widths = (inputs if number < directions else following, size)
        pair, own = matrices[2 * number : 2 * number + 2], biases[number * each : (number + 1) * each]
        if any(sorted(weight.shape) != sorted((width, whole)) for weight, width in zip(pair, widths, strict=True)):
            return ()
        found = [_by_gate(weight.get(), width, gates, turned) for weight, width in zip(pair, widths, strict=True)]
        arrays = [array for array in found if array is not None]
        arrays += [row.reshape(gates, size) for bias in own for row in bias.get().astype(np.float64).reshape(-1, whole)]
        slots.append(Slot(kind, (*pair, *own), tuple(arrays)))
    return tuple(slots)


def _by_gate(values: np.ndarray, rows: int, gates: int, turned: bool = False) -> np.ndarray | None:
    """Return a matrix as (input, gate, feature), which may have the inputs along either axis; None where it has others.

    Square matrices have them along the first one, or along the second where they are turned.
    """
    matrix = values.astype(np.float64)
    if turned and matrix.shape[0] == matrix.shape[1]:
        matrix = matrix.T
    if matrix.shape[0] == rows and matrix.shape[1] % gates == 0:
        return np.asarray(matrix.reshape(rows, gates, -1))
    if matrix.shape[1] == rows and matrix.shape[0] % gates == 0:
        return np.asarray(matrix.T.reshape(rows, gates, -1))
    return None


def _conventions(kind: str) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Yield the orders in which weights may hold the gates, with the functions of the cell, the frequent ones first."""
    orders = list(itertools.permutations(range(len(GATES[kind]))))
    if kind == "RNN":
        yield from ((orders[0], {"candidate": function}) for function in (TANH, *ACTIVATIONS))
        return
    forms: list[dict[str, Any]] = [{}]
    if kind == "GRU":
        forms += [{"resets_product": False}, {"keeps": False}, {"keeps": False, "resets_product": False}]
    yield from itertools.product(orders, forms)
    for squash in SQUASHES[:2]:
        yield from ((order, {**form, "squash": squash}) for order, form in itertools.product(orders, forms))
