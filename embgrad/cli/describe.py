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
    """Return the result without its vectors, as a dictionary for JSON."""
    if isinstance(result, PortReport):
        return result.to_dict()
    if isinstance(result, Attribution):
        return _describe_attribution(result)
    if isinstance(result, TokenAttribution):
        return _describe_tokens(result)
    if isinstance(result, PairAttribution | Influence):
        return _describe_arrays(result)
    if isinstance(result, Search):
        return _describe_search(result)
    if isinstance(result, Substitutions):
        return _describe_substitutions(result)
    return {
        "shape": list(result.shape),
        "dtype": str(result.values.dtype),
        "norm": length(result.values),
        "objective": None if result.objective is None else np.asarray(result.objective).tolist(),
        "pad_leak": result.pad_leak,
        "certificate": None if result.certificate is None else result.certificate.to_dict(),
        "examples": _examples(result) if has_tokens(result) else None,
        "provenance": dict(result.provenance),
    }


def _describe_arrays(result: PairAttribution | Influence) -> dict[str, Any]:
    """Return the arrays of a result by name as nested lists, without those of the sides of pairs."""
    arrays = {name: value for name, value in vars(result).items() if isinstance(value, np.ndarray)}
    return {**{name: array.tolist() for name, array in arrays.items()}, "provenance": dict(provenance_of(result))}


def provenance_of(result: Any) -> Mapping[str, Any]:
    """Return the provenance of a result, of pairs that of their first texts."""
    provenance: Mapping[str, Any] = (result.a if isinstance(result, PairAttribution) else result).provenance
    return provenance


def _describe_attribution(attribution: Attribution) -> dict[str, Any]:
    words = [None] * len(attribution.ids) if attribution.tokens is None else attribution.words()
    return {
        "shape": list(attribution.shape),
        "method": attribution.provenance["method"],
        "objective": attribution.objective.tolist(),
        "baseline_objective": attribution.baseline_objective,
        "delta": attribution.delta,
        "error": attribution.error,
        "examples": [
            {
                "objective": float(attribution.objective[example]),
                "words": None if own is None else [{"word": word.text, "score": word.saliency} for word in own],
                "tokens": [
                    {
                        "token": None if attribution.tokens is None else attribution.tokens[example][position],
                        "id": int(attribution.ids[example, position]),
                        "real": bool(attribution.real[example, position]),
                        "score": float(attribution.scores[example, position]),
                    }
                    for position in range(attribution.ids.shape[1])
                ],
            }
            for example, own in enumerate(words)
        ],
        "provenance": dict(attribution.provenance),
    }


def _describe_tokens(attribution: TokenAttribution) -> dict[str, Any]:
    having = [example for example, outputs in enumerate(attribution.outputs) if (outputs >= 0).any()]
    matrices = {example: attribution.matrix(example) for example in having}
    return {
        "shape": list(attribution.shape),
        "method": attribution.provenance["method"],
        "examples": [
            {
                "example": example,
                "inputs": [{"text": piece.text, "positions": piece.positions} for piece in matrix.inputs],
                "outputs": [
                    {
                        "text": piece.text,
                        "positions": piece.positions,
                        "objective": piece.score,
                        "scores": matrix.scores[row].tolist(),
                    }
                    for row, piece in enumerate(matrix.outputs)
                ],
            }
            for example, matrix in matrices.items()
        ],
        "provenance": dict(attribution.provenance),
    }


def _describe_search(search: Search) -> dict[str, Any]:
    met = {"met_before": search.success_before, "met": search.success}
    texts = {"text_before": search.texts_before, "text": search.texts}
    return {
        "shape": list(search.before.shape),
        "method": search.provenance["method"],
        "goal": search.provenance["goal"],
        "until": search.provenance["until"],
        "figures": search.figures().to_dict(),
        "examples": [
            {
                "objective_before": float(search.objective_before[example]),
                "objective": float(search.objective[example]),
                **{name: None if values is None else bool(values[example]) for name, values in met.items()},
                **{name: None if values is None else values[example] for name, values in texts.items()},
                "changes": [{"kind": change.kind, **change._asdict()} for change in changes],
                "evaluations": int(search.history.evaluations[-1, example]),
                "gradients": int(search.history.gradients[-1, example]),
                "objective_by_step": search.history.objective[:, example].tolist(),
            }
            for example, changes in enumerate(search.changes())
        ],
        "trigger": search.trigger,
        "provenance": dict(search.provenance),
    }


def _describe_substitutions(substitutions: Substitutions) -> dict[str, Any]:
    top = substitutions.ids.shape[2]
    return {
        "shape": list(substitutions.shape),
        "goal": substitutions.goal,
        "examples": [
            {
                "objective": float(objective),
                "positions": [
                    {
                        "position": position,
                        "id": int(substitutions.original[example, position]),
                        "substitutions": [
                            {"id": entry.id, "token": entry.after, "score": entry.score}
                            for entry in substitutions.of_position(example, position, top)
                        ],
                    }
                    for position in np.flatnonzero(substitutions.searched[example]).tolist()
                ],
            }
            for example, objective in enumerate(substitutions.objective)
        ],
        "provenance": dict(substitutions.provenance),
    }


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


def _examples(result: EmbeddingGradients) -> list[dict[str, Any]]:
    norms, dots = result.saliency("norm"), result.saliency("dot")
    per_example = np.shape(result.objective) == (len(result.ids),)
    return [
        {
            "objective": float(result.objective[example]) if per_example else None,
            "norm": length(result.values[example]),
            "tokens": [_token(result, example, position, norms, dots) for position in range(result.ids.shape[1])],
        }
        for example in range(len(result.ids))
    ]


def _token(
    result: EmbeddingGradients, example: int, position: int, norms: np.ndarray, dots: np.ndarray
) -> Mapping[str, Any]:
    return {
        "token": None if result.tokens is None else result.tokens[example][position],
        "id": int(result.ids[example, position]),
        "real": result.mask is None or bool(result.mask[example, position]),
        "norm": float(norms[example, position]),
        "dot": float(dots[example, position]),
    }


def model_of(result: Result) -> str:
    """Return the model's class and its framework, as "BertModel (torch)"; of a check of a port both models."""
    if isinstance(result, PortReport):
        return visible(f"{result.labels[1]} against {result.labels[0]}")
    source = provenance_of(result)
    return visible(f"{str(source.get('model', '?')).rpartition('.')[2]} ({source.get('backend', '?')})")
