"""Matching of the points and the weights of two models, by a checkpoint's names, by their paths, or by their order."""

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

#: The module in a BERT's layer that contains query, key and value, by Hugging Face's name.
ATTENTION: Final = "attention.self"

#: The modules of a BERT outside its layers that compute the same in each framework.
OUTER: Final = ("embeddings.LayerNorm", "pooler.dense")

#: The points that are not comparable across frameworks: gluonnlp's pooler applies the activation itself, others do not.
APART: Final = ("pooler.dense:output",)

LAYER: Final = re.compile(r"encoder\.layer\.\d+\.(.+)")

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


#: The time at which the model itself ends: after every module that it calls.
END: Final = float("inf")

#: A function that maps a path to a spelling that both models may share.
Spelling = Callable[[str], str]


@dataclass(frozen=True)
class Pair:
    """The keys of a point of one model and of the matching point of the other."""

    name: str
    a: str
    b: str


class Side:
    """One of two models that are compared, with its weights and module paths.

    Attributes:
        reader: reads the model's values and gradients.
        weights: the model's weights.
        canonical: the name in a BERT checkpoint, by module path.
        order: the indices of the other side's examples, in the order of this side's; None for the same order.
    """

    def __init__(
        self, reader: Reader, order: Sequence[int] | None = None, weights: Sequence[Weight] | None = None
    ) -> None:
        self.reader = reader
        self.weights = reader.weights() if weights is None else list(weights)
        self.canonical = _canonical(self.weights)
        self.order = order
        self._callers: dict[str, str] = {}
        # A path inside a module begins with that module's path and a mark; in a symbol's scopes the mark is an underscore.
        flat = any(weight.module and weight.name.startswith(f"{weight.module}_") for weight in self.weights)
        self._marks = (".", "/", "_") if flat else (".", "/")
        self._ended: dict[str, list[float]] = defaultdict(list)
        for point in reader.points.values():
            if point.side == OUTPUT:
                self._ended[point.path].append(point.time)
        self._ended[""].append(END)

    @property
    def points(self) -> Mapping[str, Point]:
        """The points that the forward pass reaches, by key."""
        return self.reader.points

    def between(self, low: float, high: float) -> list[Point]:
        """Return the inputs and outputs of modules that are computed after one time and up to another, in order."""
        inside = [point for point in self.points.values() if point.lookup is None and low < point.time <= high]
        return sorted((point for point in inside if not self._is_operation(point)), key=lambda point: point.time)

    def owned(self, low: float, high: float) -> list[Weight]:
        """Return the weights of those modules that end between two times."""
        return [
            weight
            for weight in self.weights
            if any(low < end <= high for end in self._ended.get(self.caller(weight), ()))
        ]

    def of_module(self, path: str) -> list[Weight]:
        """Return the weights of a module itself, and of its submodules that are not called."""
        return [weight for weight in self.weights if self.caller(weight) == path]

    def holder(self, path: str) -> str:
        """Return the path itself; for a scope in a compiled program, such as an operation's, the enclosing layer with weights."""
        scope = path
        while "/" in scope and not self.of_module(scope):
            scope = scope.rpartition("/")[0]
        return scope if "/" in path and self.of_module(scope) else path

    def around(self, path: str) -> str:
        """Return the path of the innermost called module that contains the module with this path; "" for the model itself."""
        fitting = [outer for outer in self._ended if path.startswith(tuple(outer + mark for mark in self._marks))]
        return max(fitting, key=len, default="")

    def known_in(self, path: str) -> list[str]:
        """Return the checkpoint names of the BERT modules that lie in the module with this path."""
        marked = tuple(path + mark for mark in self._marks)
        return [name for own, name in self.canonical.items() if own.startswith(marked)]

    def caller(self, weight: Weight) -> str:
        """Return the path of the innermost called module that contains the weight; "" for the model itself."""
        if weight.name not in self._callers:
            self._callers[weight.name] = self._caller(weight.module)
        return self._callers[weight.name]

    def _caller(self, path: str) -> str:
        if path in self._ended or not path:
            return path
        # A saved model's scopes have a prefix before the path that its weights' names contain.
        scopes = (scope for scope in self._ended if scope.endswith(f"/{path}"))
        return min(scopes, key=len, default=None) or self.around(path)

    def _is_operation(self, point: Point) -> bool:
        """Return whether the point belongs to an operation in a compiled program, whose recorded time has no meaning."""
        around = point.path.rpartition("/")[0]
        return "/" in point.path and around in self._ended and max(self._ended[around]) < point.time


def paired_points(
    a: Side, b: Side, low: tuple[float, float], high: tuple[float, float], block: tuple[str, str]
) -> list[Pair]:
    """Return the matching points in a stretch of both forward passes, in a's order.

    In one framework they match by the modules' paths, or by their order if the paths contain counters that differ between models.
    Across frameworks the modules of a BERT match by their names in a checkpoint.

    Args:
        a: the first model.
        b: the second model.
        low: the time after which the stretch begins, in a and in b.
        high: the time at which it ends, in a and in b.
        block: the paths of the block that contains the stretch, such as a layer's; the two may differ.
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
        pairs = [Pair(_name(a, key, both), key, others[label]) for label, key in own.items() if label in others]
        best = pairs if len(pairs) > len(best) else best
    return best


def uncounted(path: str) -> str:
    """Return a name without the counters that Keras and Gluon append to the names of instances."""
    return COUNTED.sub("", path)


def _nameless(path: str) -> str:
    return ""


def _labelled(
    side: Side, points: Iterable[Point], block: str, both: Collection[str], excluded: Collection[str], way: Spelling
) -> dict[str, str]:
    """Return the key of each point by a label that both models share; points with the same name are numbered from 0."""
    seen: Counter[str] = Counter()
    keys: dict[str, str] = {}
    for point in points:
        canonical = side.canonical.get(point.path)
        inside = bool(block) and point.path.startswith(block)
        plain = way(point.path.removeprefix(block) if inside else point.path)
        name = canonical if canonical in both else plain
        label = f"{name}:{point.side}"
        if (canonical in both or way is not _nameless) and label not in excluded:
            keys[f"{label}#{seen[label]}"] = point.key
            seen[label] += 1
    return keys


def _name(side: Side, key: str, both: Collection[str]) -> str:
    """Return a readable name of a point: the checkpoint's, or the model's own, without the number 0 of a first occurrence."""
    point = side.points[key]
    canonical = side.canonical.get(point.path)
    return f"{canonical}:{point.side}" if canonical in both else key.removesuffix("#0")


def _canonical(weights: Sequence[Weight]) -> dict[str, str]:
    """Return the name of a BERT's module, by module path."""
    held: dict[str, set[str]] = defaultdict(set)
    for weight in weights:
        if weight.canonical is not None:
            held[weight.module].add(weight.canonical.rpartition(".")[0])
    unique = {path: next(iter(names)) for path, names in held.items() if len(names) == 1}
    known = {path: name for path, name in unique.items() if _is_known(name)}
    return {**known, **_attentions(held)}


def _is_known(name: str) -> bool:
    layer = LAYER.fullmatch(name)
    return name in OUTER or (layer is not None and layer[1] in LAYER_MODULES)


def _attentions(held: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the modules that contain query, key and value: one module with all three weights, or the parent of three modules."""
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
    left, others = _matched(
        left, others, _by_name, pairs, of_any_shape=True
    )  # for example heads with different numbers of classes
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
