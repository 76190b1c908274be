"""Differences between the weights of two models, each checked against both models' values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from embgrad.backend.protocol import Weight
from embgrad.backend.registry import backend_for
from embgrad.common.tolerance import HALVES
from embgrad.comparison.weight_pairs import leaf_of, paired_weights
from embgrad.comparison.weights import rounded
from embgrad.engine.weights import weights_of

__all__ = ["Difference", "differing_weights", "is_bias", "module_of", "name_of"]

#: The relative L2 from which two weights differ: more than the rounding error of storing them in single precision.
SAME: Final = 1e-6

#: The cause of a difference without a more specific one.
DIFFERENT: Final = "different-weight"


@dataclass(frozen=True, eq=False)
class Difference:
    """The other model's value of a weight that differs, and why.

    Attributes:
        value: the other model's value, in the model's layout.
        cause: a key of `embgrad.comparison.diagnosis.findings.CAUSES`.
        text: what the other model has, as the object of "has"; the same for weights that differ together.
        is_in_model: whether the text describes the model itself, and not the other model.
    """

    value: np.ndarray = field(repr=False)
    cause: str
    text: str
    is_in_model: bool = False


def differing_weights(model: object, other: object) -> dict[str, Difference] | None:
    """Return the weights that differ in the other model, or that it lacks, by the model's native names.

    Args:
        model: the first model.
        other: the second model.

    Returns:
        The differences; None if the two models have too few names in common.
    """
    weights_of_model, others = weights_of(model), weights_of(other)
    same = backend_for(model).name == backend_for(other).name
    pairs, alone, _ = paired_weights(weights_of_model, others, same=same)
    if len(pairs) * 2 < len(weights_of_model):
        return None
    values = {weight.name: weight.get() for weight in weights_of_model}
    theirs = {first.name: _arranged_as(first, second, same=same) for first, second in pairs}
    differing = {
        weight.name: theirs[weight.name]
        for weight, _ in pairs
        if theirs[weight.name].shape == values[weight.name].shape
        and not _near(theirs[weight.name], values[weight.name])
    }
    weights = {weight.name: weight for weight in weights_of_model}
    differences = {name: _single_difference(weights[name], values[name], value) for name, value in differing.items()}
    differences |= _rounded(weights, values, differing)
    differences |= _swapped(weights_of_model, values, differing)
    return differences | dict(_missing(alone, pairs, values))


def is_bias(weight: Weight) -> bool:
    """Return whether a weight is named a bias."""
    return "bias" in leaf_of(weight)


def name_of(weight: Weight) -> str:
    """Return a weight's readable name."""
    return weight.canonical or weight.name


def module_of(weight: Weight) -> str:
    """Return the name of the module that a weight belongs to."""
    return weight.canonical.rpartition(".")[0] if weight.canonical else weight.module or weight.name.rpartition(".")[0]


def _arranged_as(first: Weight, second: Weight, *, same: bool) -> np.ndarray:
    value = second.get()
    turned = first.transposed != second.transposed if first.canonical else not same and value.shape != first.shape
    value = value.T if turned else value
    return np.ascontiguousarray(value.reshape(first.shape) if value.size == np.prod(first.shape) else value)


def _single_difference(weight: Weight, value: np.ndarray, theirs: np.ndarray) -> Difference:
    """Describe the difference of one weight, regardless of other weights."""
    name = name_of(weight)
    if not (theirs.any() and value.any()):
        return Difference(
            theirs, "missing-bias" if is_bias(weight) else DIFFERENT, f"zeros in {name}", is_in_model=not value.any()
        )
    if value.ndim == 2 and value.shape[0] == value.shape[1] and _near(theirs, value.T):
        return Difference(theirs, "transposed-weight", f"{name} transposed")
    flat, wanted = value.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    number = float(flat @ wanted) / float(flat @ flat)
    if value.size > 1 and number and _near(theirs, number * value):
        return Difference(theirs, DIFFERENT, f"{name} times {number:.6g}")
    return Difference(theirs, DIFFERENT, f"another {name}")


def _rounded(
    weights: Mapping[str, Weight], values: Mapping[str, np.ndarray], differing: Mapping[str, np.ndarray]
) -> dict[str, Difference]:
    """Return the weights that are the other model's rounded to half precision."""
    for dtype, is_in_model in itertools.product(HALVES, (False, True)):
        sides = {
            name: (theirs, values[name]) if is_in_model else (values[name], theirs)
            for name, theirs in differing.items()
        }
        names = [name for name, (exact, coarse) in sides.items() if _near(coarse, rounded(exact, dtype))]
        if names:
            what = name_of(weights[names[0]]) if len(names) == 1 else f"{len(names)} of its weights"
            return {
                name: Difference(differing[name], "half-weights", f"{what} rounded to {dtype}", is_in_model)
                for name in names
            }
    return {}


def _swapped(
    all_weights: Sequence[Weight], values: Mapping[str, np.ndarray], differing: Mapping[str, np.ndarray]
) -> dict[str, Difference]:
    """Return the weights that are swapped: both differ, and each has the other's value."""
    moved = [weight for weight in all_weights if weight.name in differing]
    sizes = {weight.name: (_size(values[weight.name]), _size(differing[weight.name])) for weight in moved}
    partner: dict[str, Weight] = {}

    def holds(first: Weight, second: Weight) -> bool:
        """Return whether the first weight now has the other's value; comparing lengths first avoids most of the full passes."""
        other_size, size = sizes[second.name][0], sizes[first.name][1]
        return abs(size - other_size) <= 2 * SAME * other_size and _near(differing[first.name], values[second.name])

    for first, second in itertools.combinations(moved, 2):
        free = not {first.name, second.name} & partner.keys()
        if free and first.shape == second.shape and holds(first, second) and holds(second, first):
            partner |= {first.name: second, second.name: first}
    return {
        weight.name: Difference(
            differing[weight.name], "swapped-weights", _swap_text(weight, partner, all_weights, values, differing)
        )
        for weight in moved
        if weight.name in partner
    }


def _swap_text(
    swapped: Weight,
    partner: Mapping[str, Weight],
    all_weights: Sequence[Weight],
    values: Mapping[str, np.ndarray],
    differing: Mapping[str, np.ndarray],
) -> str:
    """Name two modules as swapped if all that differs between them is swapped, otherwise two weights."""
    names = sorted((name_of(swapped), name_of(partner[swapped.name])))
    modules = sorted((module_of(swapped), module_of(partner[swapped.name])))
    sides = [{leaf_of(weight): weight for weight in all_weights if module_of(weight) == module} for module in modules]
    whole = modules[0] != modules[1] and sides[0].keys() == sides[1].keys()
    for leaf in sides[0] if whole else ():
        first, second = sides[0][leaf], sides[1][leaf]
        moved = first.name in partner and partner[first.name].name == second.name
        still = not {first.name, second.name} & differing.keys() and _near(values[first.name], values[second.name])
        whole = whole and (moved or (still and first.shape == second.shape))
    return "{} and {} swapped".format(*(modules if whole else names))


def _missing(
    alone: Sequence[Weight], pairs: Sequence[tuple[Weight, Weight]], values: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, Difference]]:
    """Yield the parameters that the other model lacks in a module that it has: a bias counts as zeros, a gain as ones."""
    shared = {module_of(weight) for weight, _ in pairs}
    for weight in alone:
        if module_of(weight) not in shared or len([size for size in weight.shape if size != 1]) > 1:
            continue
        neutral = np.zeros if is_bias(weight) else np.ones
        value = neutral(weight.shape, values[weight.name].dtype)
        if not _near(value, values[weight.name]):
            cause = "missing-bias" if is_bias(weight) else DIFFERENT
            yield weight.name, Difference(value, cause, f"no {name_of(weight)}")


def with_table(differences: Mapping[str, Difference], tables: Sequence[str]) -> dict[str, Difference]:
    """Return the same differences, with a cause of their own for the tables in which the ids are looked up."""
    return {
        name: replace(difference, cause="different-table")
        if name in tables and difference.cause == DIFFERENT
        else difference
        for name, difference in differences.items()
    }


def _near(first: np.ndarray, second: np.ndarray) -> bool:
    if first.shape != second.shape:
        return False
    first, second = first.astype(np.float64), second.astype(np.float64)
    return float(np.linalg.norm(first - second)) <= SAME * float(np.linalg.norm(second))


def _size(value: np.ndarray) -> float:
    return float(np.linalg.norm(value.astype(np.float64)))
