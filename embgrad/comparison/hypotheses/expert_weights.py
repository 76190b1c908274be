"""The weights of the experts of a layer and of their router, read from a model's weights by their shapes and numbers."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from embgrad.comparison.hypotheses.core_difference import listed
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, GELUS, Activation
from embgrad.comparison.recording import Recording

__all__ = ["FUNCTIONS", "Bank", "Router", "Scores", "banks_of", "differing_weights", "routers_of", "stacks_of"]

#: The weights that a layer has for each expert, (expert, …), by name without the expert's number.
Stacks = Mapping[str, np.ndarray]

#: A number in a weight's name, by which experts are counted.
NUMBER: Final = re.compile(r"(?<=[._/])\d+(?=[._/])")


@dataclass(frozen=True, eq=False)
class Bank:
    """The weights of all experts of a layer.

    Attributes:
        label: what distinguishes it from other readings of the same weights.
        gate: the matrices of the activated branch, (expert, feature, unit).
        up: those of the branch that it is multiplied with; None where there is none.
        down: the matrices of the units, (expert, unit, feature).
        biases: what is added to the three, (expert, 1, unit or feature) or 0.
    """

    label: str
    gate: np.ndarray
    up: np.ndarray | None
    down: np.ndarray
    biases: tuple[np.ndarray | float, np.ndarray | float, np.ndarray | float] = (0.0, 0.0, 0.0)

    def outputs(self, rows: np.ndarray, function: Activation, experts: slice = slice(None)) -> np.ndarray:
        """Return what experts make of rows, (token, feature): an array (expert, token, feature)."""
        gate_bias, up_bias, down_bias = (bias if isinstance(bias, float) else bias[experts] for bias in self.biases)
        gate = rows @ self.gate[experts] + gate_bias
        if self.up is None:
            units = function.apply(gate)
        elif function in GATES:
            bound, added = GATES[function]
            units = function.apply(np.minimum(gate, bound))
            units = units * (np.clip(rows @ self.up[experts] + up_bias, -bound, bound) + added)
        else:
            units = function.apply(gate) * (rows @ self.up[experts] + up_bias)
        return np.asarray(units @ self.down[experts] + down_bias)

    def without_biases(self) -> Iterator[Bank]:
        """Yield the bank without one of its biases, and without all of them."""
        held = [number for number, bias in enumerate(self.biases) if np.any(bias)]
        for left_out in [*({number} for number in held), *([set(held)] if len(held) > 1 else [])]:
            gate, up, down = (0.0 if number in left_out else bias for number, bias in enumerate(self.biases))
            yield replace(self, biases=(gate, up, down))


class Scores(Bank):
    """Experts that return which of them they are, so that their mixture is the weights: the output of a router.

    Args:
        count: the number of experts.
    """

    def __init__(self, count: int) -> None:
        units = np.eye(count)[:, None]
        super().__init__("", units, None, units)

    def outputs(self, rows: np.ndarray, function: Activation, experts: slice = slice(None)) -> np.ndarray:
        """Return a row for each token with 1 at the expert, (expert, token, expert)."""
        return np.asarray(np.repeat(self.down[experts], len(rows), axis=1))


#: gpt-oss's gate, whose branches are bounded and one of them moved by a number, and what ports make of it: both by function.
GATES: Final[Mapping[Activation, tuple[float, float]]] = {
    Activation("the bounded gate of gpt-oss", GELUS[2].apply): (7.0, 1.0),
    Activation("gpt-oss's gate without bounds", GELUS[2].apply): (math.inf, 1.0),
    Activation("gpt-oss's gate without the added 1", GELUS[2].apply): (7.0, 0.0),
    Activation("gpt-oss's gate by SiLU", ACTIVATIONS[0].apply): (7.0, 1.0),
}
FUNCTIONS: Final = (*ACTIVATIONS, *GATES)


class Router(NamedTuple):
    """The scores of experts.

    Attributes:
        matrix: (feature, expert).
        bias: what is added to its products, (expert,).
        preferred: what is added to scores by which experts are chosen, and not to their weights, (expert,).
    """

    matrix: np.ndarray
    bias: np.ndarray
    preferred: np.ndarray

    def logits(self, rows: np.ndarray) -> np.ndarray:
        """Return the scores of experts before the softmax, (token, expert)."""
        return np.asarray(rows @ self.matrix + self.bias)


def routers_of(side: Recording, layer: int | None, stacks: Stacks, width: int) -> Iterator[Router]:
    """Yield how a layer may score experts, of which there is a weight in stacks, by an input with so many features."""
    own = [weight for weight in side.weights if weight.layer == layer]
    counts = {len(stack) for stack in stacks.values()}
    vectors = [weight for weight in own if int(np.prod(weight.shape)) in counts and max(weight.shape) in counts]
    for weight in own:
        for order in ((0, 1), (1, 0)) if len(weight.shape) == 2 else ():
            rows, count = (weight.shape[axis] for axis in order)
            if rows != width or count not in counts:
                continue
            matrix, none = weight.get().astype(np.float64).transpose(order), np.zeros(count)
            fitting = [vector for vector in vectors if max(vector.shape) == count]
            for vector in fitting:
                added = vector.get().astype(np.float64).reshape(count)
                yield from [Router(matrix, added, none)] if vector.module == weight.module else []
                yield Router(matrix, none, added)
            yield Router(matrix, none, none)


def banks_of(stacks: Stacks, width: int, count: int) -> Iterator[Bank]:
    """Yield the readings of a layer's weights as those of experts.

    Args:
        stacks: the weights, see `stacks_of`.
        width: the number of features of the experts' input and output.
        count: the number of experts.
    """
    stacks = {name: stack for name, stack in stacks.items() if len(stack) == count}
    entries = [entry for name, stack in stacks.items() if stack.ndim == 3 for entry in _oriented(name, stack, width)]
    vectors = {name: stack for name, stack in stacks.items() if stack.ndim == 2}
    for (name, down), (first, up) in itertools.product(entries, entries):
        units = down.shape[1]
        if name == first or down.shape[2] != width or up.shape[1] != width:
            continue
        last = _bias(name, width, vectors)
        if up.shape[2] == 2 * units:
            bias = _bias(first, 2 * units, vectors)
            for label, parts in _halves(units):
                gate, other = (up[..., part] for part in parts)
                biases = tuple(bias if isinstance(bias, float) else bias[..., part] for part in parts)
                yield Bank(label, gate, other, down, (biases[0], biases[1], last))
        elif up.shape[2] == units:
            beside = [entry for entry in entries if entry[0] not in (name, first) and entry[1].shape == up.shape]
            bias = _bias(first, units, vectors)
            for second, other in beside:
                yield Bank(
                    f"{_short(first)} activated",
                    up,
                    other,
                    down,
                    (bias, _bias(second, units, vectors), last),
                )
            if not beside:
                yield Bank("", up, None, down, (bias, 0.0, last))


def _halves(units: int) -> Iterator[tuple[str, tuple[slice, slice]]]:
    """Yield how two branches may stand in one matrix: the activated branch and the other one."""
    first, second, even, odd = slice(units), slice(units, None), slice(0, None, 2), slice(1, None, 2)
    yield "the first half activated", (first, second)
    yield "the second half activated", (second, first)
    yield "the even units activated", (even, odd)
    yield "the odd units activated", (odd, even)


def _oriented(name: str, stack: np.ndarray, width: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield matrices with one side of a width as (expert, input, output)."""
    if width in stack.shape[1:]:
        yield name, stack
        yield name, stack.swapaxes(1, 2)


def stacks_of(side: Recording, layer: int | None) -> Stacks:
    """Return the weights of a layer that have one for each expert, stacked, by name without the expert's number."""
    found: dict[str, np.ndarray] = {}
    numbered: dict[str, dict[int, Callable[[], np.ndarray]]] = defaultdict(dict)
    for weight in side.weights:
        if weight.layer != layer:
            continue
        # A kernel of a convolution at each position by itself has a third axis of length 1.
        is_stack = len(weight.shape) == 3 and min(weight.shape[1:]) > 1
        if is_stack or (len(weight.shape) == 2 and "bias" in weight.name.lower()):
            found[weight.name] = weight.get().astype(np.float64)
        for match in NUMBER.finditer(weight.name):
            numbered[f"{weight.name[: match.start()]}N{weight.name[match.end() :]}"][int(match[0])] = weight.get
    for name, members in numbered.items():
        if len(members) > 1 and set(members) == set(range(len(members))):
            values = [members[number]().astype(np.float64) for number in range(len(members))]
            if len({value.shape for value in values}) == 1:
                found[name] = np.stack(values)
    return found


def _bias(name: str, width: int, vectors: Mapping[str, np.ndarray]) -> np.ndarray | float:
    """Return the vectors that are added to a product with matrices of a name, (expert, 1, output); 0 where there are none."""
    near = [other for other, stack in vectors.items() if stack.shape[1] == width and _is_of(other, name)]
    return vectors[near[0]][:, None] if near else 0.0


def _is_of(bias: str, name: str) -> bool:
    """Return whether a bias is called as a matrix is: "up_proj_bias" and "up_proj", or "up.N.bias" and "up.N.weight"."""
    stem = re.sub(r"[._/]?(weight|kernel)$", "", name)
    return re.sub(r"[._/]?bias$", "", bias) == stem


def _short(name: str) -> str:
    """Return the part of a name that distinguishes a branch, such as "gate_proj"."""
    parts = [part for part in re.split(r"[./]", name) if part not in ("N", "weight", "kernel")]
    return parts[-1]


def differing_weights(a: Bank, b: Bank) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Yield what differs between the weights of two banks: a cause, the setting's name, and its values in both."""
    if a.label != b.label and _has_other_branches(a, b):
        yield "gate-swapped", "of the experts' branches", (a.label, b.label)
    elif a is not b:
        yield from _of_matrices(a, b)


def _has_other_branches(a: Bank, b: Bank) -> bool:
    """Return whether b activates units of a's that a does not: a label alone says how the matrices are stored."""
    if a.up is None or b.up is None or a.gate.shape != b.gate.shape:
        return True
    both = np.concatenate([a.gate, a.up], -1)
    first = b.gate[..., :1]
    is_own = np.isclose(first, both).all(1).any(-1)
    return any(is_own & ~np.isclose(a.gate, b.gate).all((1, 2)))


def _of_matrices(a: Bank, b: Bank) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Yield in which matrices two banks differ, and whether they are those of other experts."""
    if _are_permuted(a, b):
        yield "permuted-weight", "the entries of the experts' matrices are in", ("one order", "another")
        return
    for name, mine, its in (("gate", a.gate, b.gate), ("up", a.up, b.up), ("down", a.down, b.down)):
        if mine is None or its is None or mine.shape != its.shape:
            continue
        wrong = [number for number in range(len(mine)) if not np.allclose(mine[number], its[number])]
        whose = {
            number: next((place for place in range(len(mine)) if np.allclose(mine[place], its[number])), None)
            for number in wrong
        }
        others = [number for number in wrong if whose[number] is None]
        if others:
            yield "different-weight", f"the {name} matrices of experts {listed(others)} are", ("a's own", "others")
        moved = [number for number in wrong if whose[number] is not None]
        if moved:
            values = (listed(moved), listed(whose[number] for number in moved))
            yield "swapped-weights", f"the {name} matrices of experts {listed(moved)} are those of", values
    for name, own, other in zip(("gate", "up", "down"), a.biases, b.biases, strict=True):
        if np.array_equal(own, other):
            continue
        if np.any(own) and np.any(other):
            yield "different-weight", f"the experts' {name} biases are", ("a's own", "others")
        else:
            texts = ["added" if np.any(bias) else "missing" for bias in (own, other)]
            yield "missing-bias", f"the experts' {name} biases are", (texts[0], texts[1])


def _are_permuted(a: Bank, b: Bank) -> bool:
    """Return whether the matrices of each expert have the same entries in another order."""
    if a.up is None or b.up is None or a.gate.shape != b.gate.shape:
        return False
    first, second = (
        np.sort(np.concatenate([matrices.reshape(len(matrices), -1) for matrices in bank], 1))
        for bank in ((a.gate, a.up, a.down), (b.gate, b.up, b.down))
    )
    return np.allclose(first, second) and not np.allclose(a.gate, b.gate)
