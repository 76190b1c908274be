"""Matching of the points of two models, by a checkpoint's names, by their paths, or by their order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from embgrad.backend.protocol import Weight
from embgrad.checkpoints.load_bert import LAYER_MODULES
from embgrad.comparison.bisection.readings import Reader
from embgrad.comparison.bisection.records import LAYER, Pair
from embgrad.comparison.weight_pairs import uncounted
from embgrad.forward.points import OUTPUT, Point

__all__ = ["Side", "paired_points"]

#: The module in a BERT's layer that contains query, key and value, by Hugging Face's name.
ATTENTION: Final = "attention.self"

#: The modules of a BERT outside its layers that compute the same in each framework.
OUTER: Final = ("embeddings.LayerNorm", "pooler.dense")

#: The points that are not comparable across frameworks: gluonnlp's pooler applies the activation itself, others do not.
APART: Final = ("pooler.dense:output",)

#: The time at which the model itself ends: after every module that it calls.
END: Final = float("inf")

#: A function that maps a path to a spelling that both models may share.
Spelling = Callable[[str], str]


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
        return [name for inner, name in self.canonical.items() if inner.startswith(marked)]

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
    ways: tuple[Spelling, ...] = (str, uncounted) if same or not both else (_no_name,)
    inside = [side.between(low[i], high[i]) for i, side in enumerate((a, b))]
    best: list[Pair] = []
    for way in ways:
        by_label, others_by_label = (
            _labelled(side, inside[i], block[i], both, () if same else APART, way) for i, side in enumerate((a, b))
        )
        pairs = [
            Pair(_name(a, key, both), key, others_by_label[label])
            for label, key in by_label.items()
            if label in others_by_label
        ]
        best = pairs if len(pairs) > len(best) else best
    return best


def _no_name(path: str) -> str:
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
        if (canonical in both or way is not _no_name) and label not in excluded:
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
    names_of: dict[str, set[str]] = defaultdict(set)
    for weight in weights:
        if weight.canonical is not None:
            names_of[weight.module].add(weight.canonical.rpartition(".")[0])
    unique = {path: next(iter(names)) for path, names in names_of.items() if len(names) == 1}
    known = {path: name for path, name in unique.items() if _is_known(name)}
    return {**known, **_attentions(names_of)}


def _is_known(name: str) -> bool:
    layer = LAYER.fullmatch(name)
    return name in OUTER or (layer is not None and layer[1] in LAYER_MODULES)


def _attentions(names_of: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the modules that contain query, key and value: one module with all three weights, or the parent of three modules."""
    around: dict[str, set[str]] = defaultdict(set)
    for path, names in names_of.items():
        for name in names:
            module, _, leaf = name.rpartition(".")
            if module.endswith(ATTENTION) and leaf in ("query", "key", "value"):
                around[module].add(path if len(names) > 1 else path.rpartition(".")[0])
    return {next(iter(paths)): module for module, paths in around.items() if len(paths) == 1}
