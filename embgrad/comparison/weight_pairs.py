"""Matching of the weights of two models, by a checkpoint's names, by their paths, or by their order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from embgrad.backend.protocol import Weight

__all__ = ["leaf_of", "paired_by_order", "paired_weights", "uncounted"]

#: The counters that Keras and Gluon append to the names of instances; they differ between two copies of a model.
COUNTED: Final = re.compile(r"(?<=[A-Za-z])_?\d+(?=$|[._/])")

#: The frameworks' names of a module's parameters, with PyTorch's name.
LEAVES: Final = {
    "kernel": "weight",
    "gamma": "weight",
    "scale": "weight",
    "embeddings": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def uncounted(path: str) -> str:
    """Return a name without the counters that Keras and Gluon append to the names of instances."""
    return COUNTED.sub("", path)


def paired_weights(
    a: Sequence[Weight], b: Sequence[Weight], *, same: bool
) -> tuple[list[tuple[Weight, Weight]], list[Weight], list[Weight]]:
    """Return the weights of two models that match by name, those of a without a partner, and those of b without a partner.

    Args:
        a: all weights of the first model, or those of a stretch.
        b: all weights of the second model, or those of a stretch.
        same: whether both models use one framework, so that equal names are comparable.
    """
    pairs: list[tuple[Weight, Weight]] = []
    left, others = list(a), list(b)
    names = [{weight.name for weight in side} for side in (a, b)]
    left, others = _matched(left, others, _by_checkpoint, pairs)
    if same and (names[0] <= names[1] or names[1] <= names[0]):  # one model may lack some weights, such as a bias
        left, others = _matched(left, others, _by_name, pairs)
    elif same:
        left, others = _matched(left, others, _by_uncounted_name(a, b), pairs)
    return pairs, left, others


def paired_by_order(
    a: Sequence[Weight], b: Sequence[Weight]
) -> tuple[list[tuple[Weight, Weight]], list[Weight], list[Weight]]:
    """Return the weights of two matching stretches that match by type of parameter and by order, and those without a partner."""
    pairs: list[tuple[Weight, Weight]] = []
    left, others = _matched(a, b, _by_leaf, pairs)
    # Of any shape, for example heads with different numbers of classes.
    left, others = _matched(left, others, _by_name, pairs, of_any_shape=True)
    return pairs, left, others


def _matched(
    a: Sequence[Weight],
    b: Sequence[Weight],
    label: Callable[[Weight], str | None],
    pairs: list[tuple[Weight, Weight]],
    *,
    of_any_shape: bool = False,
) -> tuple[list[Weight], list[Weight]]:
    """Append the weights with equal labels, in order, to the pairs; return the remaining weights."""
    waiting: dict[str, list[Weight]] = defaultdict(list)
    for weight in b:
        if (name := label(weight)) is not None:
            waiting[name].append(weight)
    left: list[Weight] = []
    taken: set[int] = set()
    for weight in a:
        name = label(weight)
        fitting = waiting[name] if name is not None and name in waiting else []
        other = next((candidate for candidate in fitting if of_any_shape or _fits(weight, candidate)), None)
        if other is None:
            left.append(weight)
        else:
            fitting.remove(other)
            taken.add(id(other))
            pairs.append((weight, other))
    return left, [weight for weight in b if id(weight) not in taken]


def _by_checkpoint(weight: Weight) -> str | None:
    return weight.canonical


def _by_name(weight: Weight) -> str | None:
    return weight.name


def _by_uncounted_name(a: Sequence[Weight], b: Sequence[Weight]) -> Callable[[Weight], str | None]:
    """Return a function that labels a weight by its name without counters and by its module's index among those of that name.

    So a module that lacks a parameter, such as a bias, is not matched with the parameter of the next module.
    """
    labels: dict[int, str] = {}
    for side in (a, b):
        seen: dict[str, list[str]] = defaultdict(list)
        for weight in side:
            module = re.split(r"[^./]*$", weight.name)[0]
            modules = seen[uncounted(module)]
            if module not in modules:
                modules.append(module)
            labels[id(weight)] = f"{uncounted(weight.name)} of {modules.index(module)}"
    return lambda weight: labels[id(weight)]


def leaf_of(weight: Weight) -> str:
    """Return the type of a parameter by PyTorch's name, such as "weight" or "bias"."""
    last = re.split(r"[./]", re.sub(r"(:\d+)?(#\d+)?$", "", weight.name))[-1]
    return LEAVES.get(last, last)


def _by_leaf(weight: Weight) -> str | None:
    """Return the type of a parameter; of several of one type in a stretch, the order decides."""
    return leaf_of(weight)


def _fits(first: Weight, second: Weight) -> bool:
    if first.canonical is not None and first.canonical == second.canonical:
        return True
    shapes = [tuple(size for size in weight.shape if size != 1) for weight in (first, second)]
    return shapes[0] in (shapes[1], shapes[1][::-1])
