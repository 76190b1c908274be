"""The results and comparisons that a page shows, from what the user passes: by label and by point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from embgrad.comparison.compare import compare
from embgrad.comparison.result import Comparison
from embgrad.errors import EmbgradError, PointError, quote
from embgrad.model_points.points import WORD
from embgrad.results.attribution import Attribution, Attributions
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.port_report import PortReport
from embgrad.results.search import Search
from embgrad.results.token_attribution import TokenAttribution

__all__ = [
    "Result",
    "Shown",
    "are_attributions",
    "comparable",
    "comparisons_by_point",
    "flat",
    "of_own_page",
    "points_of",
    "results_by_label",
]

Result = EmbeddingGradients | Attribution

#: A result that a page may show, by itself if of output tokens, a search or a check of a port.
Shown = Result | TokenAttribution | Search | PortReport

#: The calls that return results with a page of their own, by these results' classes.
SOURCES: Final = {TokenAttribution: "attribute_tokens", Search: "search", PortReport: "check_port"}

#: Results by point.
Results = Mapping[str, Result]


def of_own_page(results: Any) -> TokenAttribution | Search | PortReport | None:
    """Return the attribution of output tokens, the search or the check of a port, where that is the only result."""
    entries = [results]
    while any(isinstance(entry, Mapping) for entry in entries):
        entries = [item for entry in entries for item in (entry.values() if isinstance(entry, Mapping) else (entry,))]
    found = [entry for entry in entries if isinstance(entry, TokenAttribution | Search | PortReport)]
    if found and len(entries) > 1:
        source = SOURCES[type(found[0])]
        raise EmbgradError(
            f"results holds {len(entries)} results, and one of embgrad.{source} among them, which has a page by itself: "
            "write each alone"
        )
    return found[0] if found else None


def are_attributions(results: Mapping[str, Results]) -> bool:
    """Return whether the results are attributions, not gradients."""
    classes = {isinstance(result, Attribution) for by_point in results.values() for result in by_point.values()}
    if len(classes) > 1:
        raise EmbgradError("results holds gradients and attributions: expected one of the two, and a page for each")
    return classes == {True}


def results_by_label(results: Any) -> dict[str, dict[str, Result]]:
    """Return the results by label and point."""
    if isinstance(results, Result):
        results = {str(results.provenance.get("backend", "result")): results}
    if not isinstance(results, Mapping) or not results:
        raise EmbgradError(
            f"results is {_type_text(results)}: expected a result of embgrad.gradients or embgrad.attribute, or a "
            "mapping of labels to results"
        )
    results = flat(results)
    # Bare results are shown side by side, whatever the names of their points.
    all_bare = all(isinstance(entry, Result) for entry in results.values())
    name = next((_point(entry) for entry in results.values() if isinstance(entry, Result)), WORD)
    by_label = {}
    for label, entry in results.items():
        if isinstance(entry, Result):
            entry = {name if all_bare else _point(entry): entry}
        if (
            not isinstance(entry, Mapping)
            or not entry
            or not all(isinstance(result, Result) for result in entry.values())
        ):
            raise EmbgradError(
                f"results[{label!r}] is {_type_text(entry)}: expected a result of embgrad.gradients or embgrad.attribute, or a "
                "mapping of points to results"
            )
        by_label[str(label)] = {str(point): result for point, result in entry.items()}
    return by_label


def flat(results: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the results with each `Attributions`, of several methods at one point, replaced by its entries."""
    flat: dict[Any, Any] = {}
    for label, entry in results.items():
        if isinstance(entry, Attributions):
            flat |= {name if len(results) == 1 else f"{label}, {name}": single for name, single in entry.items()}
        else:
            flat[label] = entry
    return flat


def _point(result: Result) -> str:
    return str(result.provenance.get("point", WORD))


def points_of(results: Mapping[str, Results]) -> list[str]:
    """Return the points that all results have, with the point of the sentences first."""
    common = [point for point in next(iter(results.values())) if all(point in points for points in results.values())]
    if not common:
        held = "; ".join(f"{label} holds {quote(by_point)}" for label, by_point in results.items())
        raise PointError(f"the results have no point in common: {held}; expected results at the same points")
    return sorted(common, key=lambda point: point != WORD)


def comparisons_by_point(results: Mapping[str, Results], points: Sequence[str]) -> dict[str, dict[str, Comparison]]:
    """Return the comparisons with the first result by label and point, in its order, of what should be equal."""
    first, *others = results
    order = [point for point in results[first] if point in points]
    return {
        label: {point: compare(results[first][point], results[label][point]) for point in order}
        for label in others
        if all(comparable(results[first][point], results[label][point]) for point in order)
    }


def comparable(first: Any, second: Any) -> bool:
    """Return whether two results should be equal: attributions by different methods need not be."""
    methods = [result.provenance["method"] for result in (first, second) if isinstance(result, Attribution)]
    return len(methods) < 2 or methods[0] == methods[1]


def _type_text(value: object) -> str:
    if isinstance(value, Mapping) and value:
        return f"a mapping with values of type {quote(sorted({type(item).__name__ for item in value.values()}))}"
    return f"of type {type(value).__name__}" + (", empty" if isinstance(value, Mapping) else "")
