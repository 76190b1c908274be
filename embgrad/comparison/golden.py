"""Golden files: stored results that reveal how a change of a model, framework or version changes gradients or attributions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.files import check_path
from embgrad.common.finite import not_finite
from embgrad.common.metrics import length, lengths
from embgrad.comparison.compare import compare
from embgrad.comparison.numbers import name_of
from embgrad.comparison.result import Comparison, Comparisons
from embgrad.errors import (
    BatchError,
    EmbgradError,
    FileFormatError,
    GoldenError,
    PointError,
    brief,
    did_you_mean,
    quote,
)
from embgrad.results.attribution import Attribution
from embgrad.results.io import Result, expect_results, load, save

__all__ = ["Golden", "golden"]

#: The number of differing results for which the message contains all figures; for the others it contains the verdict alone.
SHOWN: Final = 3

#: The name of a result; None for a single result without a name.
Name = str | None


@dataclass(frozen=True)
class Golden:
    """Results in a file, against which other results are checked. Made by `embgrad.golden`.

    In the comparisons the golden results are `a`, and the checked results are `b`. Either may come from any backend: a file made
    with one framework can check another.

    Attributes:
        path: the file.
    """

    path: Path

    @property
    def exists(self) -> bool:
        """True if the file exists."""
        return self.path.exists()

    def load(self) -> Any:
        """Return the results in the file, see `embgrad.load`.

        Raises:
            FileNotFoundError: there is no file.
            FileFormatError: the file is incomplete, or was not written by embgrad.
        """
        return load(self.path)

    def update(self, results: Result | Mapping[str, Result]) -> None:
        """Make these the golden results. Missing folders are created; the file is replaced as a whole or not at all.

        Args:
            results: a result of `embgrad.gradients` or `embgrad.attribute`, or several by name.

        Raises:
            EmbgradError: `results` cannot be stored in a file, or a number is not finite, so that nothing would agree with it.
            OSError: the file cannot be written.
        """
        for name, result in _named(results).items():
            if wrong := _not_finite(result):
                raise EmbgradError(
                    f"{_prefix(name)}{wrong}: expected finite numbers, since no result can agree with others"
                )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save(results, self.path)

    def check(
        self,
        results: Result | Mapping[str, Result],
        *,
        models: Any = None,
        tolerance: float | None = None,
        call: Call | None = None,
    ) -> Comparison | Comparisons:
        """Check that results are those of the file: names, ids, gradients or contributions, activations and objectives.

        Args:
            results: a result of `embgrad.gradients` or `embgrad.attribute`, or several by name, in the form that was passed to
                `update`.
            models: the model that the results come from, so that other requests to it can be tested if they differ; or a pair as
                in `embgrad.compare`, with the golden results' model first, to find causes inside the models as well.
            tolerance: as in `embgrad.compare`; it applies to the numbers, the activations and the objective.
            call: a function that calls the model, as in `gradients`, if `models` are passed.

        Returns:
            The comparison; for several results comparisons by name.

        Raises:
            GoldenError: there is no file, or the results differ from those of the file; the message says what changed.
            FileFormatError: the file is incomplete, or was not written by embgrad.
            EmbgradError: `results` cannot be stored in a file.
        """
        __tracebackhide__ = True  # pytest then shows the line of the test
        checked = _named(results)
        if not self.exists:
            raise GoldenError(
                f"there is no golden file {self.path}: expected one to check against. {self._advice('write it')}"
            )
        try:
            expected = _named(self.load())
        except FileFormatError as error:
            raise FileFormatError(f"{error.message}. {self._advice('write it anew')}") from None
        changes = list(_other_names(expected, checked))
        comparisons: dict[Name, Comparison] = {}
        pair: Any = models if isinstance(models, (tuple, list)) else (None, models)
        for name in (name for name in expected if name in checked):
            a, b = expected[name], checked[name]
            if name_of(a) != name_of(b):
                was, now = name_of(a, article=True), name_of(b, article=True)
                changes.append(_Change(f"{_prefix(name)}the result is {now}, and the golden file has {was}"))
                continue
            if wrong := _not_finite(a) or _not_finite(b):
                changes.append(_Change(f"{_prefix(name)}{wrong}"))
                continue
            try:
                comparisons[name] = compare(a, b, models=pair, tolerance=tolerance, call=call)
            except (BatchError, PointError) as error:  # the two results cannot be compared
                changes.append(_Change(f"{_prefix(name)}{error.message}"))
            else:
                changes += _changes(name, comparisons[name])
        result = comparisons.get(None) or Comparisons({str(name): entry for name, entry in comparisons.items()})
        if changes:
            message = "\n".join(self._report(changes, expected, checked))
            raise GoldenError(message, result if comparisons else None)
        return result

    def _report(
        self,
        changes: Sequence[_Change],
        expected: Mapping[Name, Result],
        checked: Mapping[Name, Result],
    ) -> Iterator[str]:
        """Yield the lines of the message: first the summary, then what changed, with figures and findings, and what to do."""
        further = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
        yield f"{changes[0].gist}{further}: differs from the golden file {self.path}"
        for number, change in enumerate(changes):
            if number:
                yield f"\n{change.gist}"
            if number < SHOWN:
                yield from change.lines
        yield "\na is the golden file, and b is the result checked against it"
        yield from _made_with(next(iter(expected.values())), next(iter(checked.values())))
        yield self._advice("accept them")

    def _advice(self, what: str) -> str:
        return f"If these results are right, {what}: call embgrad.golden({str(self.path)!r}).update(results)"


def golden(path: str | os.PathLike[str]) -> Golden:
    """Return the golden file at a path; the file need not exist yet.

    `embgrad.golden("g.safetensors").update(results)` writes it, and `.check(results)` raises if other results differ.

    Args:
        path: the path of a safetensors file, as `embgrad.save` writes it.

    Raises:
        EmbgradError: `path` is not a path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise EmbgradError(
            f"path is of type {type(path).__name__}: expected the path of a golden file; the results come after, "
            "embgrad.golden(path).check(results)"
        )
    return Golden(check_path(path))


class _Change(NamedTuple):
    """One difference from the golden file.

    Attributes:
        gist: a summary in one line.
        lines: the details, with figures.
    """

    gist: str
    lines: Sequence[str] = ()


def _changes(name: Name, comparison: Comparison) -> list[_Change]:
    """Return a list with one entry that describes every change at a point; empty if nothing changed."""
    descriptions = _descriptions(comparison)
    if not descriptions:
        return []
    # Where the gradients agree, their figures add nothing, but the notes of the alignment may.
    shown = [f"note: {note}" for note in comparison.notes] if comparison.agrees else repr(comparison).splitlines()
    return [_Change(f"{_prefix(name)}{descriptions[0]}", [*descriptions[1:], *shown])]


def _descriptions(comparison: Comparison) -> list[str]:
    """Return what changed beyond the tolerance: gradients or contributions, the value at the point, and the objectives."""
    a, b, tolerance = comparison.a, comparison.b, comparison.tolerance
    what = name_of(a)
    if other := _other_ids(a, b):
        return [other]
    figures, value, objective = comparison.figures, _value_change(a, b, tolerance), _objective_change(a, b, tolerance)
    descriptions = [line for line in (value, objective) if line]
    if not comparison.agrees:
        descriptions.insert(0, f"the {what} moved, relative L2 {figures.relative_l2:.2e}, tolerance {tolerance:.1e}")
    if not descriptions:
        return []
    if comparison.agrees:
        return [*descriptions, f"the {what} did not, within the tolerance"]
    if value:
        return [*descriptions, "the forward pass already differs at this point"]
    if isinstance(a, Attribution):
        return descriptions
    if objective:
        return [*descriptions, "the forward pass agrees up to this point and differs after it"]
    return [*descriptions, "nothing in the forward pass moved, within the tolerance"]


def _not_finite(result: Result) -> str:
    wrong = not_finite(result.scores if isinstance(result, Attribution) else result.values)
    return "" if wrong is None else f"the {name_of(result)} holds {wrong.value} at {wrong.index}"


def _other_ids(a: Result, b: Result) -> str:
    if a.ids.shape != b.ids.shape:
        return f"the ids differ: shape {b.ids.shape} where the golden file has {a.ids.shape}"
    if np.array_equal(a.ids, b.ids):
        return ""
    index = tuple(int(i) for i in np.argwhere(a.ids != b.ids)[0])
    where = ", ".join(f"{axis} {i}" for axis, i in zip(("example", "position"), index, strict=False))
    return f"the ids differ, first at {where}: {b.ids[index]} where the golden file has {a.ids[index]}"


def _value_change(a: Result, b: Result, tolerance: float) -> str:
    if isinstance(a, Attribution) or isinstance(b, Attribution):
        return ""
    if a.activations.shape != b.activations.shape:
        return (
            f"the value at the point has the shape {b.activations.shape}, and {a.activations.shape} in the golden file"
        )
    distance = _relative(a.activations, b.activations)
    return "" if distance <= tolerance else f"the value at the point moved, relative L2 {distance:.2e}"


def _objective_change(a: Result, b: Result, tolerance: float) -> str:
    if a.objective is None or b.objective is None:  # a captured gradient: the user computed the loss
        return ""
    if a.objective.shape != b.objective.shape:
        return f"the objective has the shape {b.objective.shape}, and {a.objective.shape} in the golden file"
    excess = np.nan_to_num(_difference(a.objective, b.objective) - tolerance * _scale(a), nan=np.inf)
    if (excess <= 0).all():
        return ""
    most = int(excess.argmax())
    before, now = (float(np.ravel(result.objective)[most]) for result in (a, b))
    where = f", most at example {most}" if a.objective.ndim else ""
    return f"the objective moved{where}, from {before:.6g} to {now:.6g}"


def _scale(a: Result) -> np.ndarray:
    """Return, for each objective value, the magnitude against which a difference counts as small.

    It is the largest value, since values near zero are differences of large numbers, plus, to first order, the change of the
    value if each activation changes by its own magnitude with random signs; of an attribution its scores stand for that change.
    """
    size = np.abs(a.objective).max(initial=0.0, where=np.isfinite(a.objective))
    if isinstance(a, Attribution):
        return np.asarray(size + lengths(a.scores))
    pulls = a.values * np.where(np.isfinite(a.activations), a.activations, 0).astype(np.float64)
    pull = lengths(pulls.reshape(len(pulls), -1))
    return np.asarray(size + (pull if pull.shape == a.objective.shape else length(pull)))


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return |b − a| in float64: 0 where both are the same infinity, and NaN only where one is NaN."""
    wide, other = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(wide == other, 0.0, np.abs(other - wide))


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    """Return the relative L2 of b against a, over the entries that are finite in a."""
    difference, size = length(_difference(a, b)), length(np.where(np.isfinite(a), a, 0))
    return difference / size if size else float("inf") if difference else 0.0


def _other_names(expected: Mapping[Name, Result], checked: Mapping[Name, Result]) -> Iterator[_Change]:
    for side, other, what in (
        (expected, checked, "several results were checked against one"),
        (checked, expected, "one result was checked against several"),
    ):
        if None in side and None not in other:
            yield _Change(f"{what}, {quote(other)}")
            return
    missing = [name for name in expected if name not in checked]
    new = [name for name in checked if name not in expected]
    if missing:
        near = did_you_mean(str(missing[0]), map(str, new))
        yield _Change(f"{quote(missing)} is missing", [near.strip()] if near else [])
    if new:
        near = did_you_mean(str(new[0]), map(str, missing or expected))
        yield _Change(f"{quote(new)} is new", [near.strip()] if near else [])


def _made_with(a: Result, b: Result) -> Iterator[str]:
    """Yield a line with the versions that differ from those in the golden file."""
    before, now = _versions(a), _versions(b)
    changed = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
    if changed:
        described = [
            ", ".join(f"{name} {versions[name]}" for name in sorted(changed) if name in versions)
            for versions in (before, now)
        ]
        golden_versions, versions = (text or "none of these" for text in described)
        yield f"the golden file was made with {golden_versions}, and these results with {versions}"


def _versions(result: Result) -> dict[str, str]:
    source = result.provenance
    own = {name: str(source[name]) for name in ("embgrad", "python", "numpy") if name in source}
    return {**own, **(source.get("versions") or {})}


def _named(results: Any) -> Mapping[Name, Result]:
    if isinstance(results, Result):
        return {None: results}
    named: dict[Name, Result] = {}
    named.update(expect_results(results))
    return named


def _prefix(name: Name) -> str:
    return "" if name is None else f"at {brief(name)} "
