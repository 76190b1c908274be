"""Descriptions of results: a printed summary, and a dictionary for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.cli.terminal import Terminal
from embgrad.common.metrics import length
from embgrad.common.text import visible
from embgrad.common.token_text import token_text
from embgrad.results.attribution import Attribution
from embgrad.results.gradient_display import has_tokens
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.influence import Influence
from embgrad.results.pair_attribution import PairAttribution
from embgrad.results.port_report import PortReport
from embgrad.results.search import Search
from embgrad.results.substitutions import Substitutions
from embgrad.results.tabular import Columns, TabularByChoice, columns_of_tokens
from embgrad.results.token_attribution import TokenAttribution

__all__ = ["Result", "Results", "describe", "model_of", "name_results", "print_summary"]

Result = (
    EmbeddingGradients
    | Attribution
    | TokenAttribution
    | PairAttribution
    | Search
    | Substitutions
    | PortReport
    | Influence
)

#: The names of results that are of no point, by their classes.
NAMES: Final = {Search: "search", Substitutions: "substitutions", Influence: "influence", PairAttribution: "pairs"}

#: The figures of results for JSON, where they have them.
FIGURES: Final = (
    *("shape", "objective_before", "objective", "baseline_objective", "delta", "error", "outputs", "pad_leak"),
    *("success_before", "success", "trigger"),
)

#: One result, or several results by the names of their points, or of their methods.
Results = Result | Mapping[str, Result]


def name_results(results: Results) -> dict[str, Result]:
    """Return the results by the names of their points, or of their methods."""
    if isinstance(results, PortReport):
        return {"port": results}
    if isinstance(results, Result):
        name = NAMES.get(type(results), "result")
        point = None if isinstance(results, PairAttribution | Influence) else results.provenance.get("point")
        return {name if point is None else str(point): results}
    return dict(results)


def describe(result: Result) -> dict[str, Any]:
    """Return the result without its vectors, as a dictionary for JSON: its figures, and its tables column by column."""
    if isinstance(result, PortReport):
        return result.to_dict()
    provenance = dict(provenance_of(result))
    if isinstance(result, PairAttribution | Influence):  # their arrays, without those of the sides of pairs
        arrays = {name: value for name, value in vars(result).items() if isinstance(value, np.ndarray)}
        return {**arrays, "provenance": provenance}
    figures = {name: getattr(result, name) for name in FIGURES if hasattr(result, name)}
    if isinstance(result, EmbeddingGradients):
        certificate = None if result.certificate is None else result.certificate.to_dict()
        figures |= {"dtype": str(result.values.dtype), "norm": length(result.values), "certificate": certificate}
    if isinstance(result, Search):
        figures |= {"figures": result.figures().to_dict(), "history": vars(result.history)}
    return {**figures, "tables": _tables_of(result), "provenance": provenance}


def _tables_of(result: Any) -> dict[str, Columns]:
    """Return the tables of a result by what their rows stand for, with the columns of `to_pandas`."""
    if isinstance(result, TabularByChoice):
        return {by: result._columns_by(by) for by in result._TABLES}
    if not isinstance(result, EmbeddingGradients):
        return {"tokens": columns_of_tokens(result, "tokens", True)}
    if not has_tokens(result):
        return {}
    norms, dots = (dict(columns_of_tokens(result, "tokens", True, kind=kind)) for kind in ("norm", "dot"))
    return {"tokens": {**norms, "norm": norms.pop("score"), "dot": dots["score"]}}


def provenance_of(result: Any) -> Mapping[str, Any]:
    """Return the provenance of a result, of pairs that of their first texts."""
    provenance: Mapping[str, Any] = (result.a if isinstance(result, PairAttribution) else result).provenance
    return provenance


def print_summary(results: Results, terminal: Terminal) -> None:
    """Print a summary of gradients: one line for each point, and a table of the examples of the first point."""
    by_name: dict[str, Any] = name_results(results)
    for name, result in by_name.items():
        terminal.say(f"at {visible(name)}: {_headline(result)}", style="bold")
        for line in _lines(result):
            terminal.say(line, indent=2)
    first = next(iter(by_name.values()))
    if np.ndim(first.objective) == 1:
        terminal.say()
        _table(first, terminal)


def _headline(result: EmbeddingGradients) -> str:
    shape = " × ".join(map(str, result.shape))
    return f"{shape} {result.values.dtype}, norm {length(result.values):.6g}, {model_of(result)}"


def _lines(result: EmbeddingGradients) -> list[str]:
    lines = [f"objective: {_objective(result)}"]
    if result.mask is not None and (result.mask == 0).any():
        count = int((result.mask == 0).sum())
        lines.append(f"padding: {count} position{'s' * (count > 1)}, largest gradient there {result.pad_leak:.2g}")
    if result.certificate is not None:
        lines.append(f"checked: {result.certificate!r}")
    return lines


def _objective(result: EmbeddingGradients) -> str:
    described = dict(result.provenance.get("objective") or {})
    name = described.pop("class", "?")
    spelled = f"{name}({', '.join(f'{key}={value!r}' for key, value in described.items())})"
    total = "" if result.objective is None else f", total {float(np.sum(result.objective)):.6g}"
    return visible(spelled) + total


def _table(result: EmbeddingGradients, terminal: Terminal) -> None:
    from rich.table import Table

    table = Table("example", box=None, padding=(0, 2, 0, 0))
    for heading in ("objective", "norm"):
        table.add_column(heading, justify="right")
    table.add_column("tokens", overflow="fold")
    per_example = len(result.values) == len(result.objective)
    for number, value in enumerate(result.objective):
        norm = f"{length(result.values[number]):.4g}" if per_example else ""
        tokens = "" if result.tokens is None else " ".join(map(token_text, _real(result, number)))
        table.add_row(str(number), f"{value:.6g}", norm, terminal.text(tokens))
    terminal.say(table)


def _real(result: EmbeddingGradients, example: int) -> list[str]:
    assert result.tokens is not None
    positions = range(len(result.tokens[example])) if result.mask is None else np.flatnonzero(result.mask[example])
    return [result.tokens[example][position] for position in positions]


def model_of(result: Result) -> str:
    """Return the model's class and its framework, as "BertModel (torch)"; of a check of a port both models."""
    if isinstance(result, PortReport):
        return visible(f"{result.labels[1]} against {result.labels[0]}")
    source = provenance_of(result)
    return visible(f"{str(source.get('model', '?')).rpartition('.')[2]} ({source.get('backend', '?')})")
