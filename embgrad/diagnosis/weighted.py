"""Hypotheses that a weight is not what it should be: transposed, swapped with another, or simply different."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

import numpy as np

from embgrad.diagnosis.rerun import Source, Variant
from embgrad.weights import Weight, weights_of

__all__ = ["WEIGHTED", "DifferentWeights", "MisplacedWeights"]

#: The relative L2 from which two weights are not the same: beyond what writing them in half precision would leave.
SAME: Final = 1e-6

#: How many differing weights are tried one by one.
MOST_SINGLY: Final = 12

#: How many guesses are made where the other model is not at hand.
MOST_GUESSES: Final = 200


class DifferentWeights:
    """What differs between the weights of the two models, by name."""

    cause: ClassVar[str] = "different-weight"

    def variants(self, source: Source) -> Iterator[Variant]:
        """The target's weights in the source's model: all that differ, and where they are few each module's."""
        if source.case.other is None:
            return
        differing = differing_weights(source.case.model, source.case.other)
        if not differing:
            return
        for name, (given, _, called) in differing.items():
            if given.shape == (source.case.source.vocab, source.case.source.values.shape[-1]):
                differing[name] = (given, "different-table", called)
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

    def variants(self, source: Source) -> Iterator[Variant]:
        """Each square weight transposed, and each two modules of one parent swapped."""
        if source.case.other is not None and differing_weights(source.case.model, source.case.other) is not None:
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


WEIGHTED: Final = (DifferentWeights(), MisplacedWeights())


def differing_weights(model: object, other: object) -> dict[str, tuple[np.ndarray, str, str]] | None:
    """By the model's native names those weights that the other model has otherwise.

    Returns:
        The other's value, turned as the model has it; how it came about ("transposed-weight", "swapped-weights" or
        "different-weight"); and what to call it. None where the two have no names in common.
    """
    own, others = weights_of(model), _by_common_name(model, other)
    if others is None:
        return None
    values = {weight.name: weight.get() for weight in own}
    found = {}
    for weight in own:
        if weight.name not in others:
            continue
        given, value = others[weight.name], values[weight.name]
        if given.shape != value.shape or _near(given, value):
            continue
        relation, name = _relation(weight, given, values, own)
        found[weight.name] = (given, relation, name)
    return found


def _by_common_name(model: object, other: object) -> dict[str, np.ndarray] | None:
    """The other model's weights by the model's native names: by the checkpoint's names, or where the two have the same ones."""
    own, others = weights_of(model), weights_of(other)
    canonical = {weight.canonical: weight for weight in others if weight.canonical}
    if canonical and any(weight.canonical in canonical for weight in own):
        pairs = [(weight, canonical[weight.canonical]) for weight in own if weight.canonical in canonical]
        return {one.name: two.get().T if one.transposed != two.transposed else two.get() for one, two in pairs}
    named = {weight.name: weight for weight in others}
    common = [weight.name for weight in own if weight.name in named and named[weight.name].shape == weight.shape]
    if len(common) * 2 < len(own):
        return None
    return {name: named[name].get() for name in common}


def _relation(
    weight: Weight, given: np.ndarray, values: Mapping[str, np.ndarray], own: Sequence[Weight]
) -> tuple[str, str]:
    value, name = values[weight.name], _name(weight)
    if value.ndim == 2 and value.shape[0] == value.shape[1] and _near(given, value.T):
        return "transposed-weight", f"{name} transposed"
    for other in own:
        if other.name != weight.name and other.shape == weight.shape and _near(given, values[other.name]):
            first, second = sorted((_module(weight), _module(other)))
            return "swapped-weights", f"{first} and {second} swapped"
    return "different-weight", f"another {name}"


def _substituting(differing: Mapping[str, tuple[np.ndarray, str, str]], source: Source) -> Variant:
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


def _name(weight: Weight) -> str:
    return weight.canonical or weight.name


def _module(weight: Weight) -> str:
    """The name of the module that a weight belongs to."""
    return weight.canonical.rpartition(".")[0] if weight.canonical else weight.module or weight.name.rpartition(".")[0]
