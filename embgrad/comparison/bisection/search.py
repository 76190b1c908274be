"""The search for the point at which two models diverge: over roles forward, then backward, then inside the stretch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.backend.protocol import Weight
from embgrad.common.metrics import figures_of
from embgrad.common.tolerance import HALVES, coarsest, tolerance_for
from embgrad.comparison.bisection.judge import Judge
from embgrad.comparison.bisection.messages import by_weights, module_of
from embgrad.comparison.bisection.narrow import narrowed
from embgrad.comparison.bisection.randomness import run_difference
from embgrad.comparison.bisection.readings import Side
from embgrad.comparison.bisection.records import Pair, Reading, Region, SearchResult, Step
from embgrad.comparison.bisection.suspects import suspects
from embgrad.comparison.weight_pairs import uncounted
from embgrad.errors import ObjectiveError, PointError, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import WORD
from embgrad.model_points.roles import EMBEDDINGS, LAYER, POSITION, TYPE

__all__ = ["OBJECTIVE", "Search"]

#: The name of the last step: the objective's values.
OBJECTIVE: Final = "objective"

#: The roles of lookups, with the names of their tables in a BERT checkpoint.
TABLES: Final = {
    WORD: "embeddings.word_embeddings.weight",
    POSITION: "embeddings.position_embeddings.weight",
    TYPE: "embeddings.token_type_embeddings.weight",
}

#: The second role of the last layer, in addition to the one with its number.
LAST: Final = f"{LAYER}.-1"

#: The number of runs of each model: one for values and gradients, two for its randomness, one inside the stretch.
PASSES: Final = 4


class Search:
    """One search for the point at which two models diverge.

    Args:
        a: the first model.
        b: the second model.
        batch: the batch that both models run on.
        tolerance: the tolerance that the user chose; None for one from the models' dtype and depth.
        report: takes the number of passes done, and the number of all passes.
    """

    def __init__(
        self, a: Side, b: Side, batch: TokenBatch, tolerance: float | None, report: Callable[[int, int], None]
    ) -> None:
        self._a, self._b = a, b
        self._names = _common(a, b)
        self._report = report
        self._done = 0
        self._tolerance = tolerance
        self._real = batch.real

    def run(self) -> SearchResult:
        """Run the search and return its result."""
        read = tuple(self._read(side) for side in (self._a, self._b))
        failures = [side.reader.failure for side in (self._a, self._b)]
        if isinstance(failures[0], ObjectiveError) and failures[1] is not None:
            raise failures[0]
        self._judge = self._new_judge()
        steps = self._steps(read)
        random = self._random(read)
        if random is not None:
            return replace(random, steps=(*steps, *random.steps))
        result = self._forward(steps) or self._failed(steps) or self._backward(steps, read)
        self._tick(2 * PASSES)
        if result is None:
            return SearchResult(self._judge.tolerance, tuple(steps), notes=(*self._unseen(read), *self._notes()))
        marked = self._marked(steps, result)
        inside = [step for step in result.steps if step.name not in self._names]
        return replace(result, steps=(*marked, *inside), notes=(*result.notes, *self._notes()))

    # Readings

    def _read(self, side: Side) -> dict[str, Reading]:
        keys = [side.reader.roles[name] for name in self._names]
        readings = side.reader.gradients(list(dict.fromkeys(keys)))
        self._tick(1)
        return {name: readings[key] for name, key in zip(self._names, keys, strict=True)}

    def _new_judge(self) -> Judge:
        dtypes = [side.reader.dtype for side in (self._a, self._b)]
        halves = all(name in HALVES for name in dtypes)
        coarse = coarsest(dtypes)
        dtype = coarse if halves or coarse not in HALVES else "float32"
        depths = [sum(weight.is_matrix for weight in side.weights) for side in (self._a, self._b) if side.weights]
        tolerance = (
            tolerance_for(dtype, max(depths, default=None)) if self._tolerance is None else float(self._tolerance)
        )
        return Judge(self._real, tolerance, dtype, sharp=self._tolerance is None)

    def _steps(self, read: Sequence[Mapping[str, Reading]]) -> list[Step]:
        steps = []
        for name in self._names:
            first, second = read[0][name], read[1][name]
            forward, backward = self._judge.values(first, second), self._judge.gradients(first, second)
            alone = (first.gradient is None) != (second.gradient is None)
            note = f"no gradient reaches this point in {'a' if first.gradient is None else 'b'}" if alone else ""
            agrees = not alone and all(f is None or f.relative_l2 <= self._judge.tolerance for f in (forward, backward))
            steps.append(Step(name, forward, backward, agrees, note))
        values = [side.reader.objective for side in (self._a, self._b)]
        if values[0] is not None and values[1] is not None and values[0].shape == values[1].shape:
            figures = figures_of(values[0], values[1])
            # If terms cancel in the objective, its rounding error is that of the terms.
            size, size_of_terms = float(np.linalg.norm(values[0])), self._a.reader.size / max(values[0].size, 1) ** 0.5
            if 0 < size < size_of_terms:
                figures = replace(figures, relative_l2=figures.relative_l2 * size / size_of_terms)
            steps.append(Step(OBJECTIVE, figures, None, figures.relative_l2 <= self._judge.tolerance))
        return steps

    def _tick(self, passes: int) -> None:
        self._done = min(self._done + passes, 2 * PASSES)
        self._report(self._done, 2 * PASSES)

    # Results

    def _random(self, read: Sequence[Mapping[str, Reading]]) -> SearchResult | None:
        """Return the point where a model's runs differ from one another, for b if both models' do; None if neither model's do."""
        results: dict[str, SearchResult] = {}
        random: dict[str, str] = {}
        for label, side, readings in (("a", self._a, read[0]), ("b", self._b, read[1])):
            by_key = {side.reader.roles[name]: readings[name] for name in self._names}
            difference = run_difference(side, self._names, by_key, self._judge)
            self._tick(2)
            if difference is None:
                continue
            random[label] = difference.role
            low, high, block = self._stretch(difference.role, (side, difference.other))
            region = narrowed(side, difference.other, difference.judge, low, high, block=block)
            steps = () if region is None else region.steps
            weights = [] if region is None else region.weights[0]
            pairs = suspects(side, side, (weights, weights))
            tolerance = self._judge.tolerance
            results[label] = SearchResult(tolerance, steps, difference.role, "forward", difference.after, region, pairs)
        if not results:
            return None
        return replace(results.get("b") or results["a"], random=random, notes=self._notes())

    def _forward(self, steps: Sequence[Step]) -> SearchResult | None:
        number = self._judge.first([step.forward for step in steps])
        if number is None:
            return None
        name = steps[number].name
        after = next((step.name for step in reversed(steps[:number]) if step.forward is not None), None)
        base = SearchResult(
            self._judge.tolerance, (), name, "forward", after, figures=steps[number].forward, notes=self._rows(name)
        )
        if name.partition("#")[0] in TABLES:
            tables = (self._tables(self._a, name), self._tables(self._b, name))
            module = next((module_of(weight) for weight in tables[0]), None)
            region = Region(module, f"the lookup {name!r}", after, name, tables, ())
            return replace(base, region=region, parameters=suspects(self._a, self._b, tables))
        low, high, block = self._stretch(name, (self._a, self._b))
        narrow = narrowed(self._a, self._b, self._judge, low, high, block=block)
        return self._with_region(base, narrow, low, high, name == OBJECTIVE)

    def _failed(self, steps: Sequence[Step]) -> SearchResult | None:
        """Return the result if one model's objective has no value or no gradient, and the other model's has."""
        sides = ("a", self._a), ("b", self._b)
        failures = [(label, failure) for label, side in sides if (failure := side.reader.failure) is not None]
        if len(failures) != 1:
            return None
        label, failure = failures[0]
        forward = isinstance(failure, ObjectiveError)
        first = OBJECTIVE if forward else self._names[-1]
        after = self._names[-1] if forward else OBJECTIVE
        note = f"{label} alone: {failure.message}"
        base = SearchResult(
            self._judge.tolerance, (), first, "forward" if forward else "backward", after, notes=(note,)
        )
        low, high, block = self._stretch(OBJECTIVE, (self._a, self._b))
        region = narrowed(self._a, self._b, self._judge, low, high, block=block) if forward else None
        return self._with_region(base, region, low, high, True)

    def _backward(self, steps: Sequence[Step], read: Sequence[Mapping[str, Reading]]) -> SearchResult | None:
        """Return the result for the first gradient that differs, in the backward pass from the objective; None if all agree."""
        down = list(reversed(self._names))
        by_name = {step.name: step for step in steps}
        scales = [None, *(read[0][name].largest for name in down)]
        first_differing = self._judge.first([by_name[name].backward for name in down], scales)
        alone = [number for number, name in enumerate(down) if by_name[name].note]
        number = min((index for index in (first_differing, *alone[:1]) if index is not None), default=None)
        if number is None:
            return None
        name = down[number]
        above = next(
            (role for role in reversed(down[:number]) if self._a.points[self._key(0, role)].lookup is None), None
        )
        keys = [None if role is None else Pair(role, self._key(0, role), self._key(1, role)) for role in (name, above)]
        low, high, block = self._stretch(above or OBJECTIVE, (self._a, self._b), below=name)
        region = narrowed(self._a, self._b, self._judge, low, high, block=block, backward=True, ends=(keys[0], keys[1]))
        notes = (by_name[name].note,) if by_name[name].note else ()
        base = SearchResult(
            self._judge.tolerance, (), name, "backward", above or OBJECTIVE, figures=by_name[name].backward, notes=notes
        )
        return self._with_region(base, region, low, high, above is None)

    def _with_region(
        self, base: SearchResult, region: Region | None, low: tuple[float, float], high: tuple[float, float], head: bool
    ) -> SearchResult:
        """Return the result with the narrowed region and its weights; without a region, with the weights of the whole stretch."""
        if region is None:
            weights = (self._a.owned(low[0], high[0]), self._b.owned(low[1], high[1]))
            return by_weights(replace(base, parameters=suspects(self._a, self._b, weights)))
        first = region.at if head and base.direction == "forward" and region.at else base.first
        parameters = suspects(self._a, self._b, region.weights)
        return by_weights(replace(base, first=first, region=region, steps=region.steps, parameters=parameters))

    # Positions of points and tables

    def _key(self, number: int, name: str) -> str:
        return (self._a, self._b)[number].reader.roles[name]

    def _stretch(
        self, name: str, sides: tuple[Side, Side], below: str | None = None
    ) -> tuple[tuple[float, float], tuple[float, float], tuple[str, str]]:
        """Return the times between which a role's tensor is computed, on both sides, and the paths of the enclosing blocks."""
        before = self._names[: self._names.index(name)] if name in self._names else self._names
        lower = below if below is not None else next((role for role in reversed(before) if not _is_lookup(role)), None)
        low, high = [], []
        for side in sides:
            roles = side.reader.roles
            low.append(-1.0 if lower is None or _is_lookup(lower) else float(side.points[roles[lower]].time))
            high.append(float(side.points[roles[name]].time) if name in roles else float("inf"))
        shown = name if name.startswith(f"{LAYER}.") else None
        paths = [self._path(side, shown) for side in sides]
        return (
            (low[0], low[1]),
            (high[0], high[1]),
            (paths[0], paths[1]) if shown else _different_prefixes(paths[0], paths[1]),
        )

    def _path(self, side: Side, name: str | None) -> str:
        """Return the path of a layer; without a name that of the last layer."""
        layers = [role for role in self._names if role.startswith(f"{LAYER}.")]
        key = side.reader.roles[name or layers[-1]] if name or layers else None
        return "" if key is None else side.points[key].path

    def _tables(self, side: Side, name: str) -> list[Weight]:
        """Return the table that a role's lookup reads."""
        source = TABLES[name.partition("#")[0]]
        known = [weight for weight in side.weights if weight.canonical == source]
        lookup = side.points[side.reader.roles[name]].lookup
        if known or lookup is None:
            return known
        fitting = [weight for weight in side.weights if weight.shape == (lookup.rows, lookup.dim)]
        named = [
            weight
            for weight in fitting
            if lookup.path in (weight.name, weight.module, weight.name.removesuffix(".weight"))
        ]
        return (named or fitting)[:1]

    def _rows(self, name: str) -> tuple[str, ...]:
        """Return a note if the two models look up different rows at a role."""
        if name.partition("#")[0] not in TABLES:
            return ()
        rows = []
        for side in (self._a, self._b):
            lookup = side.points[side.reader.roles[name]].lookup
            if lookup is None:
                return ()
            rows.append(lookup.indices if lookup.layout is None else lookup.layout.indices(lookup.indices))
        flat = [row.reshape(-1, row.shape[-1])[0] for row in rows]
        if flat[0].shape == flat[1].shape and not np.array_equal(flat[0], flat[1]):
            shown = (" ".join(map(str, row[:6].tolist())) for row in flat)
            return (f"a looks up the rows {next(shown)} …, b {next(shown)} …",)
        return ()

    def _marked(self, steps: Sequence[Step], result: SearchResult) -> list[Step]:
        return [replace(step, agrees=False) if step.name == result.first else step for step in steps]

    def _unseen(self, read: Sequence[Mapping[str, Reading]]) -> tuple[str, ...]:
        """Return a note about gradients that were not compared because neither model has them."""
        names = [name for name in self._names if all(readings[name].gradient is None for readings in read)]
        if not names:
            return ()
        failure = self._a.reader.failure
        why = "" if failure is None else f": {failure.message}"
        return (f"neither model has a gradient at {quote(names)}, so none was compared there{why}",)

    def _notes(self) -> tuple[str, ...]:
        dtypes = [side.reader.dtype for side in (self._a, self._b)]
        computed = (f"a computes in {dtypes[0]}, b in {dtypes[1]}",) if dtypes[0] != dtypes[1] else ()
        return (*self._depths(), *computed)

    def _depths(self) -> tuple[str, ...]:
        # The last layer has two roles, so that it would count twice.
        counts = [max(0, _layers(side) - 1) for side in (self._a, self._b)]
        same = self._a.reader.backend.name == self._b.reader.backend.name
        relevant = not same or any(role.startswith(f"{LAYER}.") for role in self._names)
        return (f"a has {counts[0]} layers, b {counts[1]}",) if counts[0] != counts[1] and relevant else ()


def _layers(side: Side) -> int:
    """Return the number of roles of layers."""
    return sum(role.startswith(f"{LAYER}.") for role in side.reader.roles)


def _common(a: Side, b: Side) -> list[str]:
    """Return the roles that both models have, in the order of the forward pass.

    Layers, and the roles before them, match if both models have the same number of layers, or if their paths are equal: in a
    model whose layers are all siblings, which of them count as the repeated ones may depend on how they are counted.
    """
    names = [role for role in a.reader.roles if role in b.reader.roles and role != LAST]
    if _layers(a) != _layers(b):
        same = a.reader.backend.name == b.reader.backend.name
        names = [name for name in names if _is_lookup(name) or (same and _path_of(a, name) == _path_of(b, name))]
    if not names:
        raise PointError(
            f"the two models have no role in common: a has {', '.join(a.reader.roles) or 'none'}, b "
            f"{', '.join(b.reader.roles) or 'none'}; expected both to look up the batch's ids"
        )
    groups = (WORD, POSITION, TYPE, EMBEDDINGS, LAYER)

    def order(name: str) -> tuple[int, int]:
        number = name.replace("#", ".").rpartition(".")[2]
        group_index = next(index for index, group in enumerate(groups) if name.startswith(group))
        return group_index, int(number) if number.isdigit() else 0

    return sorted(names, key=order)


def _path_of(side: Side, role: str) -> str:
    """Return the path of the point with a role, without the counters that differ between two copies of a model."""
    return uncounted(side.points[side.reader.roles[role]].path)


def _different_prefixes(a: str, b: str) -> tuple[str, str]:
    """Return what two paths have before their common end: "bert." and "" for `bert.encoder.layer.3` and `encoder.layer.3`."""
    shared = 0
    while shared < min(len(a), len(b)) and a[-1 - shared] == b[-1 - shared]:
        shared += 1
    heads = a[: len(a) - shared], b[: len(b) - shared]
    return heads if all(not head or head.endswith(".") for head in heads) else ("", "")


def _is_lookup(name: str) -> bool:
    return name.partition("#")[0] in TABLES
