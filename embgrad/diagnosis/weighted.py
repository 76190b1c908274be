"""Hypotheses that a weight is not what it should be: transposed, swapped with another, or simply different."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from embgrad.backend import Weight
from embgrad.bisecting.pairing import paired_weights
from embgrad.diagnosis.rerun import Source, Variant
from embgrad.registry import backend_for
from embgrad.weights import weights_of

__all__ = ["Beside", "DifferentWeights", "MisplacedWeights"]

#: The relative L2 from which two weights are not the same: beyond what writing them in half precision would leave.
SAME: Final = 1e-6

#: How many differing weights are tried one by one.
MOST_SINGLY: Final = 12

#: How many guesses are made where the other model is not at hand.
MOST_GUESSES: Final = 200


#: By a model's native name of a weight the other model's value, how it came about, and what to call it.
Differing = Mapping[str, tuple[np.ndarray, str, str]]


class Beside:
    """The weights of the source's model, beside those of the target's where that is at hand."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @cached_property
    def differing(self) -> Differing | None:
        """Those that the target's model has otherwise; None where it is not at hand, or has no weights in common."""
        case = self._source.case
        return None if case.other is None else differing_weights(case.model, case.other)


class DifferentWeights:
    """What differs between the weights of the two models, by name."""

    cause: ClassVar[str] = "different-weight"

    def variants(self, source: Source, beside: Beside) -> Iterator[Variant]:
        """The target's weights in the source's model: all that differ, and where they are few each module's."""
        table = (source.case.source.vocab, source.case.source.values.shape[-1])
        differing = {
            name: (given, "different-table" if given.shape == table else relation, called)
            for name, (given, relation, called) in (beside.differing or {}).items()
        }
        if not differing:
            return
        groups: dict[str, dict[str, tuple[np.ndarray, str, str]]] = {}
        for name, found in differing.items():
            groups.setdefault(found[2], {})[name] = found
        if 1 < len(groups) <= MOST_SINGLY:
            for one in groups.values():
                yield _substituting(one, source)
        yield _substituting(differing, source)


class MisplacedWeights:
    """A square weight transposed, or two modules side by side with each other's weights: guessed without the other model."""

    cause: ClassVar[str] = "transposed-weight"

    def variants(self, source: Source, beside: Beside) -> Iterator[Variant]:
        """Each square weight transposed, and each two modules of one parent swapped."""
        if beside.differing is not None:
            return  # the two models' weights were compared, which says more
        weights = weights_of(source.case.model)
        guesses = [*self._transposed(weights, source), *self._swapped(weights, source)]
        yield from guesses[:MOST_GUESSES]

    def _transposed(self, weights: Sequence[Weight], source: Source) -> Iterator[Variant]:
        for weight in weights:
            if len(weight.shape) == 2 and weight.shape[0] == weight.shape[1] and weight.shape[0] > 1:
                text = f"that {source.target} has {_name(weight)} transposed"
                yield Variant((self.cause,), text, weights={weight.name: np.ascontiguousarray(weight.get().T)})

    @staticmethod
    def _swapped(weights: Sequence[Weight], source: Source) -> Iterator[Variant]:
        owned: dict[str, list[Weight]] = {}
        for weight in weights:
            owned.setdefault(_module(weight), []).append(weight)
        names = list(owned)
        for number, one in enumerate(names):
            for other in names[number + 1 :]:
                shapes = [[weight.shape for weight in owned[name]] for name in (one, other)]
                if one.rpartition(".")[0] != other.rpartition(".")[0] or shapes[0] != shapes[1]:
                    continue
                pairs = list(zip(owned[one], owned[other], strict=True))
                values = {first.name: second.get() for first, second in pairs}
                values |= {second.name: first.get() for first, second in pairs}
                text = f"that {source.target} has {one} and {other} swapped"
                yield Variant(("swapped-weights",), text, weights=values)


def differing_weights(model: object, other: object) -> Differing | None:
    """By the model's native names those weights that the other model has otherwise.

    Returns:
        The other's value, turned as the model has it; how it came about ("transposed-weight", "swapped-weights" or
        "different-weight"); and what to call it. None where the two have no names in common.
    """
    own = weights_of(model)
    others = _by_common_name(model, other, own)
    if others is None:
        return None
    values = {weight.name: weight.get() for weight in own}
    sizes = {name: _size(value) for name, value in values.items()}
    found = {}
    for weight in own:
        if weight.name not in others:
            continue
        given, value = others[weight.name], values[weight.name]
        if given.shape != value.shape or _near(given, value):
            continue
        relation, name = _relation(weight, given, values, sizes, own)
        found[weight.name] = (given, relation, name)
    return found


def _by_common_name(model: object, other: object, own: Sequence[Weight]) -> dict[str, np.ndarray] | None:
    """The other model's weights by the model's native names, turned as the model has them; None where few belong together."""
    same = backend_for(model).name == backend_for(other).name
    pairs, _, _ = paired_weights(own, weights_of(other), same=same)
    if len(pairs) * 2 < len(own):
        return None
    return {one.name: _laid_as(one, two, same=same) for one, two in pairs}


def _laid_as(one: Weight, other: Weight, *, same: bool) -> np.ndarray:
    value = other.get()
    turned = one.transposed != other.transposed if one.canonical else not same and value.shape != one.shape
    value = value.T if turned else value
    return np.ascontiguousarray(value.reshape(one.shape) if value.size == np.prod(one.shape) else value)


def _relation(
    weight: Weight,
    given: np.ndarray,
    values: Mapping[str, np.ndarray],
    sizes: Mapping[str, float],
    own: Sequence[Weight],
) -> tuple[str, str]:
    value, name, size = values[weight.name], _name(weight), _size(given)
    if value.ndim == 2 and value.shape[0] == value.shape[1] and _near(given, value.T):
        return "transposed-weight", f"{name} transposed"
    for other in own:
        if other.name == weight.name or other.shape != weight.shape:
            continue
        # Of weights that are the same the lengths are too, which takes no pass over both for each pair.
        alike = abs(size - sizes[other.name]) <= 2 * SAME * sizes[other.name]
        if alike and _near(given, values[other.name]):
            first, second = sorted((_module(weight), _module(other)))
            return "swapped-weights", f"{first} and {second} swapped"
    return "different-weight", f"another {name}"


def _substituting(differing: Differing, source: Source) -> Variant:
    relations = list(dict.fromkeys(relation for _, relation, _ in differing.values()))
    names = list(dict.fromkeys(name for _, _, name in differing.values()))
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    cause = relations[0] if len(relations) == 1 else "different-weight"
    return Variant(
        (cause,),
        f"that {source.target}'s model has {shown}",
        weights={name: given for name, (given, _, _) in differing.items()},
    )


def _near(one: np.ndarray, other: np.ndarray) -> bool:
    one, other = one.astype(np.float64), other.astype(np.float64)
    return float(np.linalg.norm(one - other)) <= SAME * float(np.linalg.norm(other))


def _size(value: np.ndarray) -> float:
    return float(np.linalg.norm(value.astype(np.float64)))


def _name(weight: Weight) -> str:
    return weight.canonical or weight.name


def _module(weight: Weight) -> str:
    """The name of the module that a weight belongs to."""
    return weight.canonical.rpartition(".")[0] if weight.canonical else weight.module or weight.name.rpartition(".")[0]
