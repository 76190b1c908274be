"""The narrowing of a stretch of two forward passes to the first pair of points that differ."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from embgrad.backend.protocol import Weight
from embgrad.common.metrics import Figures
from embgrad.comparison.bisection.judge import Judge
from embgrad.comparison.bisection.readings import Side
from embgrad.comparison.bisection.records import LAYER, PIECES, Pair, Reading, Region, Step
from embgrad.comparison.weight_pairs import uncounted
from embgrad.model_points.points import INPUT, Point

__all__ = ["narrowed"]

#: For a module whose input differs: the module whose code computes that input from earlier outputs, and a readable name.
BEFORE: Final = {
    "attention.output.dense": ("attention.self", "the attention itself"),
    "attention.output.LayerNorm": ("attention.output", "the residual around the attention"),
    "output.dense": ("intermediate", "activation"),
    "output.LayerNorm": ("output", "the residual around the feed-forward"),
    "embeddings.LayerNorm": ("embeddings", "the sum of the embeddings"),
    "pooler.dense": ("pooler", "the choice of the first position"),
}

#: For a module whose output's gradient differs: the module whose code also uses that output, and a readable name.
AFTER: Final = {
    "attention.self.query": ("attention.self", "the attention itself"),
    "attention.self.key": ("attention.self", "the attention itself"),
    "attention.self.value": ("attention.self", "the attention itself"),
    "attention.output.dense": ("attention.output", "the residual around the attention"),
    "attention.output.LayerNorm": ("output", "the residual around the feed-forward"),
    "intermediate.dense": ("intermediate", "activation"),
    "output.dense": ("output", "the residual around the feed-forward"),
    "output.LayerNorm": ("attention.output", "the residual around the attention"),
    "embeddings.LayerNorm": ("attention.output", "the residual around the attention"),
}

#: The points that are not comparable across frameworks: gluonnlp's pooler applies the activation itself, others do not.
APART: Final = ("pooler.dense:output",)

#: For the output of a module in a BERT's layer the next module's input, which other code computes from it.
NEXT: Final = {
    "attention.self:output": "attention.output.dense:input",
    "intermediate.dense:output": "output.dense:input",
}

#: A function that maps a path to a spelling that both models may share.
Spelling: TypeAlias = Callable[[str], str]

#: The name of a module's point, which may end with a number.
SIDED: Final = re.compile(r"(.+):(input|output)(#\d+)?")


def narrowed(
    a: Side,
    b: Side,
    judge: Judge,
    low: tuple[float, float],
    high: tuple[float, float],
    *,
    block: tuple[str, str] = ("", ""),
    backward: bool = False,
    ends: tuple[Pair | None, Pair | None] = (None, None),
) -> Region | None:
    """Return the region of a stretch in which two models diverge; None if their points in the stretch cannot be paired.

    Args:
        a: the first model.
        b: the second model.
        judge: decides which pairs differ.
        low: the time after which the stretch begins, in a and in b.
        high: the time at which it ends, in a and in b.
        block: the paths of the enclosing block, see `_paired_points`.
        backward: compare the gradients, in the order of the backward pass, instead of the values.
        ends: for gradients the pair at which the stretch begins, and the pair at which it ends, which agrees.
    """
    pairs = _paired_points(a, b, low, high, block)
    if backward:
        known = {pair.a for pair in pairs}
        pairs = [*(pair for pair in ends if pair is not None and pair.a not in known), *pairs]
        pairs.sort(key=lambda pair: -a.points[pair.a].time)
    if not pairs:
        return None
    figures, scale, missing = _read(a, b, judge, pairs, backward)
    differing = judge.first(figures, [scale] * len(figures))
    first = min((number for number in (differing, *missing) if number is not None), default=None)
    steps = [
        Step(
            pair.name,
            None if backward else figure,
            figure if backward else None,
            number != first and number not in missing and (figure is None or figure.relative_l2 <= judge.tolerance),
            missing.get(number, ""),
        )
        for number, (pair, figure) in enumerate(zip(pairs, figures, strict=True))
    ]
    if first is None:
        return _after_all_points(a, b, pairs, tuple(steps), high)
    weights = _between(a, b, pairs, first, _last_compared(steps, first), low, backward)
    module, piece = _containing_module(a, pairs, first, backward)
    if backward and all(_bert_module(pair.name) is None for pair in pairs[first:]):
        module, piece = _block_code(pairs, block[0] if pairs[first] is ends[0] else module)
    if backward and first > 0 and figures[first - 1] is None and first - 1 not in missing:
        skipped = _containing_module(a, pairs, first - 1, backward)
        module, piece = _either((module, piece), skipped)
    before = _last_compared(steps, first)
    after = None if before is None else pairs[before].name
    return Region(module, piece, after, pairs[first].name, weights, tuple(steps))


def _after_all_points(
    a: Side, b: Side, pairs: Sequence[Pair], steps: tuple[Step, ...], high: tuple[float, float]
) -> Region | None:
    """Return the region after the last of the points, where all points agree."""
    last = _last_compared(steps, len(steps))
    if last is None:
        return None
    times = a.points[pairs[last].a].time, b.points[pairs[last].b].time
    weights = a.owned(times[0], high[0]), b.owned(times[1], high[1])
    return Region(None, None, pairs[last].name, None, weights, steps)


def _last_compared(steps: Sequence[Step], first: int) -> int | None:
    """Return the index of the last compared point before the first that differs."""
    return next((number for number in reversed(range(first)) if steps[number].forward or steps[number].backward), None)


def _read(
    a: Side, b: Side, judge: Judge, pairs: Sequence[Pair], backward: bool
) -> tuple[list[Figures | None], float | None, dict[int, str]]:
    """Return the figures of each pair, the largest gradient at the start of the stretch, and the pairs that lack one gradient."""
    keys = list(dict.fromkeys(pair.a for pair in pairs)), list(dict.fromkeys(pair.b for pair in pairs))
    if not backward:
        readings_a, readings_b = a.reader.values(keys[0]), b.reader.values(keys[1])
        apart = _apart(pairs, readings_a, readings_b)
        return (
            [None if pair.name in apart else judge.values(readings_a[pair.a], readings_b[pair.b]) for pair in pairs],
            None,
            {},
        )
    readings_a, readings_b = a.reader.gradients(keys[0]), b.reader.gradients(keys[1])
    apart = _apart(pairs, readings_a, readings_b)
    present = [(readings_a[pair.a].gradient is not None, readings_b[pair.b].gradient is not None) for pair in pairs]
    missing = {
        number: f"no gradient reaches this point in {'b' if first else 'a'}"
        for number, (first, second) in enumerate(present)
        if first != second
    }
    scale = readings_a[pairs[0].a].largest
    return (
        [None if pair.name in apart else judge.gradients(readings_a[pair.a], readings_b[pair.b]) for pair in pairs],
        scale,
        missing,
    )


def _apart(pairs: Sequence[Pair], a: Mapping[str, Reading], b: Mapping[str, Reading]) -> set[str]:
    """Return the names of the points that are not comparable, since one model's module does more than the other's.

    Such a module of one model returns just what the next module takes, and that of the other does not: Keras's dense layer
    applies the activation itself, and its attention the projection of the output, too.
    """
    named = {pair.name: pair for pair in pairs}
    apart = set[str]()
    for name, pair in named.items():
        layer = LAYER.fullmatch(name)
        following = (
            None if layer is None or layer[1] not in NEXT else named.get(name[: layer.start(1)] + NEXT[layer[1]])
        )
        if following is not None and _equal(a[pair.a], a[following.a]) != _equal(b[pair.b], b[following.b]):
            apart.add(name)
    return apart


def _equal(first: Reading, second: Reading) -> bool:
    """Return whether two points have the same value, in any shape."""
    return first.value.size == second.value.size and np.array_equal(first.value.ravel(), second.value.ravel())


def _between(
    a: Side,
    b: Side,
    pairs: Sequence[Pair],
    first: int,
    before: int | None,
    low: tuple[float, float],
    backward: bool,
) -> tuple[list[Weight], list[Weight]]:
    """Return the weights of both models between the last pair that agrees and the first that differs."""
    last = low if before is None else (a.points[pairs[before].a].time, b.points[pairs[before].b].time)
    return _suspects(a, pairs[first].a, last[0], backward), _suspects(b, pairs[first].b, last[1], backward)


def _suspects(side: Side, key: str, last: float, backward: bool) -> list[Weight]:
    """Return a model's weights between the last point that agrees and the first that differs."""
    point = side.points[key]
    early, late = sorted((last, float(point.time)))
    path = side.holder(point.path) if _is_whole(point.side, backward) else side.around(point.path)
    names = {weight.name: weight for weight in (*side.of_module(path), *side.owned(early, late))}
    return [weight for weight in side.weights if weight.name in names]


def _block_code(pairs: Sequence[Pair], module: str | None) -> tuple[str | None, str | None]:
    """Return the module and its readable name if all modules of a block agree and the gradient of the block's input differs.

    The difference then lies in the code beside these modules; in a BERT that is the first residual.
    """
    known = (named for pair in pairs if (named := _bert_module(pair.name)) is not None)
    name = next((name for name, _ in known), "")
    layer = LAYER.fullmatch(name)
    if layer is None:
        return module or None, None
    within, piece = AFTER["output.LayerNorm"]
    return name.removesuffix(layer[1]) + within, piece


def _either(one: tuple[str | None, str | None], other: tuple[str | None, str | None]) -> tuple[str | None, str | None]:
    """Return the module around two, and the names of both: a point between them could not be compared."""
    both = zip(*((module or "").split(".") for module, _ in (one, other)), strict=False)
    shared = [first for first, second in itertools.takewhile(lambda names: names[0] == names[1], both)]
    pieces = dict.fromkeys(piece for _, piece in (one, other) if piece is not None)
    return ".".join(shared) or None, " or ".join(pieces) or None


def _is_whole(side: str | None, backward: bool) -> bool:
    """Return whether a differing point is the far end of its module, so that this module contains the difference."""
    return (side == INPUT) == backward


def _containing_module(a: Side, pairs: Sequence[Pair], first: int, backward: bool) -> tuple[str | None, str | None]:
    """Return the module that contains the difference, and its readable name."""
    at = a.points[pairs[first].a]
    whole = _is_whole(at.side, backward)
    match = SIDED.fullmatch(pairs[first].name)
    known = next((named for pair in pairs[first:] if (named := _bert_module(pair.name)) is not None), None)
    piece, around = None, None
    if known is not None:
        name, side = known
        layer = LAYER.fullmatch(name)
        inner = name if layer is None else layer[1]
        if _is_whole(side, backward):
            piece = PIECES.get(inner)
        elif (BEFORE, AFTER)[backward].get(inner) is not None:
            within, piece = (BEFORE, AFTER)[backward][inner]
            around = name.removesuffix(inner) + within
    if whole:
        holder = a.holder(at.path)
        if _bert_module(pairs[first].name) is None and not all(
            inner_name.startswith(f"{around}.") for inner_name in a.known_in(at.path)
        ):
            piece = None  # for example a whole encoder, which has no name in `PIECES`
        return (match[1] if match and holder == at.path else holder) or None, piece
    parent = a.around(at.path)
    return around or a.canonical.get(parent, parent) or None, piece


def _bert_module(name: str) -> tuple[str, str] | None:
    """Return the module of a BERT and the side that a point named after a checkpoint refers to; None for other points."""
    match = SIDED.fullmatch(name)
    if match is None:
        return None
    layer = LAYER.fullmatch(match[1])
    inner = layer[1] if layer is not None else match[1]
    return (match[1], match[2]) if inner in PIECES else None


def _paired_points(
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
