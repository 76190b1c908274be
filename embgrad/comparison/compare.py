"""Comparison of two embedding gradients: whether they agree, by how much they differ, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, overload

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.backend.registry import backend_for
from embgrad.common.finite import not_finite
from embgrad.common.metrics import figures_of, lengths, position_figures
from embgrad.common.tolerance import check_tolerance, computation_dtype, unit_roundoff
from embgrad.comparison.align import Alignment, aligned
from embgrad.comparison.findings import Finding
from embgrad.comparison.numbers import name_of, numbers_of, usual_tolerance
from embgrad.comparison.result import Comparison, Comparisons
from embgrad.errors import BatchError, EmbgradError, PointError, brief, did_you_mean, quote
from embgrad.results.attribution import Attribution
from embgrad.results.io import Result, load

__all__ = ["compare"]

#: What to do if two gradients differ and no cause explains the difference.
ADVICE = (
    "No known cause explains the difference. embgrad.bisect(model_a, model_b, batch, objective) finds the first point, forward "
    "and then backward, at which the two models diverge."
)
ADVICE_WITH_MODELS = (
    "The numbers alone show no known cause. Pass models=(model_a, model_b) to test other requests and causes inside the models, "
    "or find the first point at which the two models diverge with embgrad.bisect(model_a, model_b, batch, objective)."
)
ADVICE_WITH_BOTH = (
    "Neither the numbers nor other requests to one model show a known cause. Pass both models, models=(model_a, model_b), to "
    "find causes inside them."
)

ADVICE_FOR_ATTRIBUTIONS = (
    "Compare the gradients of the two models, the results of embgrad.gradients: embgrad.compare names the causes of their "
    "difference."
)


@overload
def compare(
    a: Result,
    b: Result,
    *,
    models: tuple[Any, Any] | None = ...,
    tolerance: float | None = ...,
    call: Call | tuple[Call | None, Call | None] | None = ...,
) -> Comparison: ...


@overload
def compare(
    a: Any,
    b: Any,
    *,
    models: tuple[Any, Any] | None = ...,
    tolerance: float | None = ...,
    call: Call | tuple[Call | None, Call | None] | None = ...,
) -> Any: ...


def compare(
    a: Any,
    b: Any,
    *,
    models: tuple[Any, Any] | None = None,
    tolerance: float | None = None,
    call: Call | tuple[Call | None, Call | None] | None = None,
) -> Comparison | Comparisons:
    """Compare the gradients or attributions a and b: whether they agree, by how much they differ, and why. Computed in float64.

    The two are aligned by their ids: another order of examples, another length or side of padding, and additional or different
    tokens are reported in `notes`, and the remaining positions are compared. Then each known cause predicts one side from the
    other. Those that explain the difference become `findings`, with the share of it that they explain; a cause is a finding only
    if this share was measured, or if the results record it. Of attributions the contributions are compared, without causes: those
    are found on the gradients of the two models.

    Args:
        a: the reference: a result of `embgrad.gradients` or `embgrad.attribute`, the path of a saved result, or a mapping of
            names to either.
        b: what is compared with a, in the same forms.
        models: the models that a and b come from, with None for one that is not available. Each is run again with other
            requests, such as other inputs or another objective. With both, causes inside them are found as by `check_port`.
            They are restored afterwards; while an offset of positions is tested, the model holds another table of them.
        tolerance: the relative L2 up to which the gradients agree; by default the rounding error to expect from the dtype and
            the depth of the models that the results record.
        call: a function that calls the models, as in `gradients`; a pair if the two are called in different ways.

    Returns:
        A Comparison, or for mappings Comparisons by name.

    Raises:
        BackendError: no backend takes one of the models.
        BatchError: the two have no text in common.
        PointError: the two were taken at points whose values have different shapes, or the names in the mappings differ.
        FileFormatError: a file was not written by embgrad.
        FileNotFoundError: there is no such file.
        EmbgradError: a or b cannot be compared, or contains numbers that are not finite.
    """
    tolerance = check_tolerance(tolerance)
    models, calls = _models(models), _calls(call)
    first, second = _results_of(a, "a"), _results_of(b, "b")
    if isinstance(first, Result) and isinstance(second, Result):
        return _compared(first, second, models, tolerance, calls)
    if not (isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys()):
        raise PointError(_other_names(first, second))
    return Comparisons(
        {name: _compared(result, second[name], models, tolerance, calls) for name, result in first.items()}
    )


def _compared(
    a: Result,
    b: Result,
    models: tuple[Any, Any],
    tolerance: float | None,
    calls: tuple[Call | None, Call | None],
) -> Comparison:
    values, others = numbers_of(a, b)
    _expect_finite(values, "a", name_of(a))
    _expect_finite(others, "b", name_of(b))
    alignment = _comparable(a, b, values, others)
    by_position = _has_positions(a, values)
    first, second, shared = values.astype(np.float64), others.astype(np.float64), np.arange(len(values))
    if by_position:
        second = alignment.arrange(second)
        first[~alignment.matched] = 0
        shared = np.flatnonzero(alignment.examples() >= 0)
    tolerance, allowed = usual_tolerance(a, b) if tolerance is None else (tolerance, tolerance)
    figures = figures_of(first, second)
    differing = _differing_examples(first, second, allowed, unit_roundoff(computation_dtype(a)))
    agrees = figures.relative_l2 <= tolerance and not differing
    notes = [*alignment.notes, *_known_differences(a, b, alignment)]
    if differing and figures.relative_l2 <= tolerance:
        notes.append(
            f"the examples {quote(differing)} differ, but their {name_of(a)}s are too small to affect the overall "
            "figures"
        )
    findings: tuple[Finding, ...] = ()
    if not agrees and by_position and not isinstance(a, Attribution) and not isinstance(b, Attribution):
        from embgrad.comparison.diagnosis.diagnose import diagnosed  # with all that runs models

        findings, tried = diagnosed(a, b, alignment, models, tolerance, calls)
        notes += tried
    return Comparison(
        agrees=agrees,
        tolerance=tolerance,
        figures=figures,
        examples=tuple(shared.tolist()),
        per_example=tuple(figures_of(first[i], second[i]) for i in shared),
        per_position=position_figures(first, second, alignment.matched) if by_position else None,
        labels=(_label(a), _label(b)),
        notes=tuple(notes),
        findings=findings,
        a=a,
        b=b,
        advice="" if agrees or findings else _advice(a, models),
    )


def _differing_examples(a: np.ndarray, b: np.ndarray, tolerance: float | np.ndarray, roundoff: float) -> list[int]:
    """Return the examples that differ, including those whose gradients are too small to matter in the overall figures.

    The rounding errors of one example average out less than those of all examples; where most of an example's gradient cancels,
    they are as large as those of the other examples.
    """
    length, difference = (lengths(values.reshape(len(a), -1)) for values in (a, b - a))
    allowed = PER_EXAMPLE * tolerance * length
    allowed += CANCELLED * roundoff * float(length.max(initial=0.0)) if np.any(tolerance) else 0.0
    return [int(i) for i in np.flatnonzero(difference > allowed)]


def _advice(a: Result, models: tuple[Any, Any]) -> str:
    if isinstance(a, Attribution):
        return ADVICE_FOR_ATTRIBUTIONS
    missing = sum(model is None for model in models)
    return (ADVICE, ADVICE_WITH_BOTH, ADVICE_WITH_MODELS)[missing]


def _has_positions(result: Result, values: np.ndarray) -> bool:
    return values.ndim >= 3 and values.shape[:2] == result.ids.shape


def _expect_finite(values: np.ndarray, name: str, what: str) -> None:
    wrong = not_finite(values)
    if wrong is not None:
        raise EmbgradError(
            f"{name} holds {wrong.value} at {wrong.index}, and {wrong.count} of its {wrong.size} numbers are not finite: "
            f"expected finite ones, as embgrad.{'attribute' if what == 'attribution' else 'gradients'} returns them"
        )


def _comparable(a: Result, b: Result, values: np.ndarray, others: np.ndarray) -> Alignment:
    alignment = aligned(a, b)
    if _has_positions(a, values) and _has_positions(b, others):
        if values.shape[2:] != others.shape[2:]:
            raise PointError(
                f"a's vectors have the length {values.shape[2:]} and b's {others.shape[2:]}: expected {name_of(a)}s at the same "
                f"point of models of one size; a was taken at {a.provenance.get('point')!r}, b at "
                f"{b.provenance.get('point')!r}"
            )
    elif values.shape != others.shape or not alignment.trivial:
        raise BatchError(
            f"a has shape {values.shape} and b {others.shape}, which are not (example, position, dim) both: expected "
            "equal shapes of the same ids; name the point by a role"
        )
    return alignment


#: The multiple of the tolerance by which a single example may differ.
PER_EXAMPLE = 4.0

#: The number of rounding errors of the largest example's gradient by which any example may differ, however small its gradient.
CANCELLED = 8.0

#: The entries of the provenance that record how a gradient was computed, with their names in notes.
RECORDED = {
    "objective": "objective",
    "method": "method",
    "training": "training mode",
    "compute_dtype": "dtype",
    "point": "point",
    "pads": "pads",
    "split": "split",
    "override": "override",
    "add": "add",
    "edit": "edit",
}


def _known_differences(a: Result, b: Result, alignment: Alignment) -> Iterator[str]:
    """Yield the recorded differences in how the two results were computed."""
    partners = alignment.examples()
    for key, name in RECORDED.items():
        value_a, value_b = a.provenance.get(key), b.provenance.get(key)
        if key == "objective" and isinstance(value_b, Mapping) and not (partners < 0).any():
            value_b = {word: _in_order(value, partners, len(b.ids)) for word, value in value_b.items()}
        if value_a != value_b:
            yield f"{name}: {brief(value_a)} in a, {brief(value_b)} in b"
    if (a.mask is None) != (b.mask is None):
        yield f"{'a' if a.mask is None else 'b'} has no mask"
    if a.types is not None and b.types is not None:
        differ = (alignment.arrange(b.types) != a.types)[alignment.matched]
        if differ.any():
            yield f"the types differ at {int(differ.sum())} positions"
    elif any(types is not None and types.any() for types in (a.types, b.types)):
        yield f"{'a' if a.types is None else 'b'} has no types"
    if a.provenance.get("backend") == b.provenance.get("backend"):
        versions = [result.provenance.get("versions") or {} for result in (a, b)]
        for package in versions[0].keys() & versions[1].keys():
            if versions[0][package] != versions[1][package]:
                yield f"{package}: {versions[0][package]} in a, {versions[1][package]} in b"


def _in_order(argument: Any, partners: np.ndarray, count: int) -> Any:
    """Return an argument of b's objective in the order of a's examples, if it has one entry per example."""
    listed_by_example = isinstance(argument, list) and len(argument) == count
    return [argument[j] for j in partners] if listed_by_example else argument


def _models(models: Any) -> tuple[Any, Any]:
    if models is None:
        return (None, None)
    if not isinstance(models, (tuple, list)) or len(models) != 2:
        raise EmbgradError(
            f"models is {brief(models)}: expected a pair (model_a, model_b), with None for one that is not available"
        )
    for model in models:
        if model is not None:
            backend_for(model)  # raises for an object that is no model, in which no cause could be tested
    return (models[0], models[1])


def _calls(call: Any) -> tuple[Call | None, Call | None]:
    calls = call if isinstance(call, (tuple, list)) else (call, call)
    if len(calls) != 2 or not all(function is None or callable(function) for function in calls):
        raise EmbgradError(
            f"call is {brief(call)}: expected a function that calls the model, as in embgrad.gradients, or a pair of such, with "
            "None for a model that is called as usual"
        )
    return (calls[0], calls[1])


def _results_of(value: Any, name: str) -> Result | dict[str, Result]:
    """Return a result, or results by name, loading those that are given as files."""
    if isinstance(value, Result):
        return value
    if isinstance(value, (str, os.PathLike)):
        return _results_of(load(value), name)
    if isinstance(value, Mapping) and value:
        read = {key: _results_of(entry, f"{name}[{key!r}]") for key, entry in value.items()}
        nested = [key for key, result in read.items() if not isinstance(result, Result)]
        if nested:
            raise EmbgradError(f"{name} holds several results under {quote(nested)}: expected one under each name")
        return {key: result for key, result in read.items() if isinstance(result, Result)}
    raise EmbgradError(
        f"{name} is of type {type(value).__name__}: expected a result of embgrad.gradients or embgrad.attribute, the path of "
        "a saved one, or a mapping of names to either"
    )


def _other_names(a: Any, b: Any) -> str:
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        single = "b" if isinstance(a, Mapping) else "a"
        names = a if isinstance(a, Mapping) else b
        return f"{single} is one result, and the other has several, {quote(names)}: name the one to compare with"
    alone = [name for name in a if name not in b], [name for name in b if name not in a]
    hint = did_you_mean(alone[0][0], alone[1]) if alone[0] and alone[1] else ""
    return f"a alone has {quote(alone[0])}, and b alone {quote(alone[1])}: expected results of the same names.{hint}"


def _label(result: Result) -> str:
    source = result.provenance
    return f"{source.get('backend', '?')} {source.get('model', '?')} at {source.get('point', '?')!r}"
