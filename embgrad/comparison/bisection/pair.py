"""Which points, and which weights, of two models are each other's: by a checkpoint's names, by their paths, or by their order."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from embgrad.backend.protocol import Weight
from embgrad.checkpoints.load_bert import LAYER_MODULES
from embgrad.comparison.bisection.readings import Reader
from embgrad.forward.points import OUTPUT, Point

__all__ = ["Pair", "Side", "leaf_of", "paired_by_order", "paired_points", "paired_weights", "uncounted"]

#: In a layer of a BERT what holds query, key and value, in Hugging Face's names.
ATTENTION: Final = "attention.self"

#: The modules of a BERT, beside those of its layers, that compute the same in each framework.
OUTER: Final = ("embeddings.LayerNorm", "pooler.dense")

#: gluonnlp's pooler holds its activation, so that what it gives is what others' gives behind it.
APART: Final = ("pooler.dense:output",)

LAYER: Final = re.compile(r"encoder\.layer\.\d+\.(.+)")

#: The numbers that Keras and Gluon count their instances by: they differ from one copy of a model to the next.
COUNTED: Final = re.compile(r"(?<=[A-Za-z])_?\d+(?=$|[._/])")

#: What the frameworks call the same parameter of a module.
LEAVES: Final = {
    "kernel": "weight",
    "gamma": "weight",
    "scale": "weight",
    "embeddings": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


#: When the model itself ends: after all that it calls.
END: Final = float("inf")

#: Spells a path as both models may spell it.
Spelling = Callable[[str], str]


@dataclass(frozen=True)
class Pair:
    """A point of the one model and the point of the other that belongs to it, by their keys."""

    name: str
    a: str
    b: str


class Side:
    """One of two models, with what is known of its parts.

    Attributes:
        reader: reads it.
        weights: its weights.
        canonical: by a module's path what a checkpoint of a BERT calls it.
        order: its examples are those of the other side in this order; None for the same.
    """

    def __init__(
        self, reader: Reader, order: Sequence[int] | None = None, weights: Sequence[Weight] | None = None
    ) -> None:
        self.reader = reader
        self.weights = reader.weights() if weights is None else list(weights)
        self.canonical = _canonical(self.weights)
        self.order = order
        self._callers: dict[str, str] = {}
        # What lies in a module has its path and a mark before its own; in a symbol's scopes the mark is an underscore.
        flat = any(one.module and one.name.startswith(f"{one.module}_") for one in self.weights)
        self._marks = (".", "/", "_") if flat else (".", "/")
        self._ended: dict[str, list[float]] = defaultdict(list)
        for point in reader.points.values():
            if point.side == OUTPUT:
                self._ended[point.path].append(point.time)
        self._ended[""].append(END)

    @property
    def points(self) -> Mapping[str, Point]:
        """What its forward pass reaches, by key."""
        return self.reader.points

    def between(self, low: float, high: float) -> list[Point]:
        """The inputs and outputs of modules that are there after one time, up to another, in order."""
        inside = [one for one in self.points.values() if one.lookup is None and low < one.time <= high]
        return sorted((one for one in inside if not self._is_operation(one)), key=lambda one: one.time)

    def owned(self, low: float, high: float) -> list[Weight]:
        """The weights that come in between two times: those of the modules that end there, as far as they are called."""
        return [one for one in self.weights if any(low < end <= high for end in self._ended.get(self.caller(one), ()))]

    def of_module(self, path: str) -> list[Weight]:
        """The weights that a module has itself, or in parts which are not called."""
        return [one for one in self.weights if self.caller(one) == path]

    def holder(self, path: str) -> str:
        """The module itself; of a scope in a compiled program, such as an operation's, the layer's around it that has weights."""
        scope = path
        while "/" in scope and not self.of_module(scope):
            scope = scope.rpartition("/")[0]
        return scope if "/" in path and self.of_module(scope) else path

    def around(self, path: str) -> str:
        """The path of the innermost module that is called and holds the module with this path; "" for the model itself."""
        fitting = [one for one in self._ended if path.startswith(tuple(one + mark for mark in self._marks))]
        return max(fitting, key=len, default="")

    def known_in(self, path: str) -> list[str]:
        """The modules of a BERT that lie in the module with this path, as a checkpoint calls them."""
        marked = tuple(path + mark for mark in self._marks)
        return [name for own, name in self.canonical.items() if own.startswith(marked)]

    def caller(self, weight: Weight) -> str:
        """The path of the innermost module that is called and holds the weight; "" for the model itself."""
        if weight.name not in self._callers:
            self._callers[weight.name] = self._caller(weight.module)
        return self._callers[weight.name]

    def _caller(self, path: str) -> str:
        if path in self._ended or not path:
            return path
        # A saved model's scopes have more before what its weights are called by.
        scopes = (one for one in self._ended if one.endswith(f"/{path}"))
        return min(scopes, key=len, default=None) or self.around(path)

    def _is_operation(self, point: Point) -> bool:
        """Whether it is an operation's in a compiled program: they are told after all else, so that their time says nothing."""
        around = point.path.rpartition("/")[0]
        return "/" in point.path and around in self._ended and max(self._ended[around]) < point.time


def paired_points(
    a: Side, b: Side, low: tuple[float, float], high: tuple[float, float], block: tuple[str, str]
) -> list[Pair]:
    """The points in a stretch of both forward passes that are each other's, in a's order.

    In one framework the modules' paths say which they are, or, where those are counted on from one model to the next, their
    order; over the frameworks a BERT's modules go by the checkpoint's names.

    Args:
        a: the one model.
        b: the other.
        low: the time after which the stretch begins, in a and in b.
        high: the time with which it ends.
        block: the paths of what the stretch lies in, such as a layer's, which need not be called the same.
    """
    both = set(a.canonical.values()) & set(b.canonical.values())
    same = a.reader.backend.name == b.reader.backend.name
    ways: tuple[Spelling, ...] = (str, uncounted) if same or not both else (_nameless,)
    inside = [side.between(low[i], high[i]) for i, side in enumerate((a, b))]
    best: list[Pair] = []
    for way in ways:
        own, others = (
            _labelled(side, inside[i], block[i], both, () if same else APART, way) for i, side in enumerate((a, b))
        )
        found = [Pair(_name(a, key, both), key, others[label]) for label, key in own.items() if label in others]
        best = found if len(found) > len(best) else best
    return best


def uncounted(path: str) -> str:
    """A name without the numbers by which Keras and Gluon tell their instances apart."""
    return COUNTED.sub("", path)


def _nameless(path: str) -> str:
    return ""


def _labelled(
    side: Side, points: Iterable[Point], block: str, both: Collection[str], apart: Collection[str], way: Spelling
) -> dict[str, str]:
    """By what both models call it the key of each point; of several with one name the first has the number 0, and so on."""
    seen: Counter[str] = Counter()
    found: dict[str, str] = {}
    for point in points:
        canonical = side.canonical.get(point.path)
        inside = bool(block) and point.path.startswith(block)
        plain = way(point.path.removeprefix(block) if inside else point.path)
        name = canonical if canonical in both else plain
        label = f"{name}:{point.side}"
        if (canonical in both or way is not _nameless) and label not in apart:
            found[f"{label}#{seen[label]}"] = point.key
            seen[label] += 1
    return found


def _name(side: Side, key: str, both: Collection[str]) -> str:
    """A point's name for people: a checkpoint's, or the model's own without the number of its only occurrence."""
    point = side.points[key]
    canonical = side.canonical.get(point.path)
    return f"{canonical}:{point.side}" if canonical in both else key.removesuffix("#0")


def _canonical(weights: Sequence[Weight]) -> dict[str, str]:
    """By a module's path the name of the module of a BERT that it is."""
    held: dict[str, set[str]] = defaultdict(set)
    for one in weights:
        if one.canonical is not None:
            held[one.module].add(one.canonical.rpartition(".")[0])
    found = {path: next(iter(names)) for path, names in held.items() if len(names) == 1}
    known = {path: name for path, name in found.items() if _is_known(name)}
    return {**known, **_attentions(held)}


def _is_known(name: str) -> bool:
    layer = LAYER.fullmatch(name)
    return name in OUTER or (layer is not None and layer[1] in LAYER_MODULES)


def _attentions(held: Mapping[str, set[str]]) -> dict[str, str]:
    """What holds query, key and value: one module with the weights of all three, or the module around three."""
    around: dict[str, set[str]] = defaultdict(set)
    for path, names in held.items():
        for name in names:
            module, _, part = name.rpartition(".")
            if module.endswith(ATTENTION) and part in ("query", "key", "value"):
                around[module].add(path if len(names) > 1 else path.rpartition(".")[0])
    return {next(iter(paths)): module for module, paths in around.items() if len(paths) == 1}


# Weights


def paired_weights(
    a: Sequence[Weight], b: Sequence[Weight], *, same: bool
) -> tuple[list[tuple[Weight, Weight]], list[Weight], list[Weight]]:
    """The weights of two models that are each other's by their names; those of a that have no partner, and those of b.

    Args:
        a: all of the one model's, or those of a stretch.
        b: the other model's, likewise.
        same: whether both are of one framework, so that equal names say something.
    """
    pairs: list[tuple[Weight, Weight]] = []
    left, others = list(a), list(b)
    names = [{one.name for one in side} for side in (a, b)]
    left, others = _matched(left, others, _by_checkpoint, pairs)
    if same and (names[0] <= names[1] or names[1] <= names[0]):  # a side may lack some, such as a bias
        left, others = _matched(left, others, _by_name, pairs)
    elif same:
        left, others = _matched(left, others, _by_uncounted_name(a, b), pairs)
    return pairs, left, others


def paired_by_order(
    a: Sequence[Weight], b: Sequence[Weight]
) -> tuple[list[tuple[Weight, Weight]], list[Weight], list[Weight]]:
    """Likewise of two stretches that are each other's, by what sort of parameter each weight is, and by their order."""
    pairs: list[tuple[Weight, Weight]] = []
    left, others = _matched(a, b, _by_leaf, pairs)
    left, others = _matched(left, others, _by_name, pairs, of_any_shape=True)  # a head of other classes, say
    return pairs, left, others


def _matched(
    a: Sequence[Weight],
    b: Sequence[Weight],
    label: Callable[[Weight], str | None],
    pairs: list[tuple[Weight, Weight]],
    *,
    of_any_shape: bool = False,
) -> tuple[list[Weight], list[Weight]]:
    """Takes those with the same label, in order, into the pairs; gives what is left."""
    waiting: dict[str, list[Weight]] = defaultdict(list)
    for one in b:
        if (name := label(one)) is not None:
            waiting[name].append(one)
    left: list[Weight] = []
    taken: set[int] = set()
    for one in a:
        name = label(one)
        fitting = waiting[name] if name is not None and name in waiting else []
        other = next((two for two in fitting if of_any_shape or _fits(one, two)), None)
        if other is None:
            left.append(one)
        else:
            fitting.remove(other)
            taken.add(id(other))
            pairs.append((one, other))
    return left, [one for one in b if id(one) not in taken]


def _by_checkpoint(weight: Weight) -> str | None:
    return weight.canonical


def _by_name(weight: Weight) -> str | None:
    return weight.name


def _by_uncounted_name(a: Sequence[Weight], b: Sequence[Weight]) -> Callable[[Weight], str | None]:
    """Label each weight by its module's name without the count, by which of the modules of that name it is, and by its own name.

    So a module that lacks a parameter, such as a bias, does not get the next module's.
    """
    labels: dict[int, str] = {}
    for side in (a, b):
        seen: dict[str, list[str]] = defaultdict(list)
        for one in side:
            module = re.split(r"[^./]*$", one.name)[0]
            modules = seen[uncounted(module)]
            if module not in modules:
                modules.append(module)
            labels[id(one)] = f"{uncounted(one.name)} of {modules.index(module)}"
    return lambda weight: labels[id(weight)]


def leaf_of(weight: Weight) -> str:
    """Return what sort of parameter a weight is, as PyTorch calls it: "weight", "bias"."""
    last = re.split(r"[./]", re.sub(r"(:\d+)?(#\d+)?$", "", weight.name))[-1]
    return LEAVES.get(last, last)


def _by_leaf(weight: Weight) -> str | None:
    """What sort of parameter it is; the order tells which of several in a stretch."""
    return leaf_of(weight)


def _fits(one: Weight, other: Weight) -> bool:
    if one.canonical is not None and one.canonical == other.canonical:
        return True
    shapes = [tuple(size for size in weight.shape if size != 1) for weight in (one, other)]
    return shapes[0] in (shapes[1], shapes[1][::-1])
