"""HTML fragments of results and comparisons for notebooks, which do not affect the surrounding page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from embgrad.common.colours import tint
from embgrad.comparison.result import Comparison, Comparisons
from embgrad.errors import EmbgradError
from embgrad.report.environment import environment
from embgrad.report.plot import plot
from embgrad.report.provenance import origin
from embgrad.report.sentences import sentences
from embgrad.report.verdicts import Line, examples_of, verdict
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.rendering import register_renderer

__all__ = ["of_comparison", "of_comparisons", "of_result"]

#: The limits on the tokens, positions and examples in a notebook's cell.
MOST_CELLS, MOST_POSITIONS, MOST_EXAMPLES = 800, 100, 10

#: The colours of lines in a plot, for dark and light backgrounds.
COLOURS: Final = ("#2f8fc9", "#d8730f", "#1f9c78", "#c0609f", "#8a8a1c", "#808080")


def of_result(result: EmbeddingGradients) -> str | None:
    """Return the first sentences, coloured, or None where Jinja2 is not installed, so that notebooks show plain text."""
    first_sentences = sentences({"result": result}, {}, most_cells=MOST_CELLS, most_positions=MOST_POSITIONS)
    provenance = origin("result", result, ())
    endings = [note for example in first_sentences.examples for note in example.notes if note.startswith("the first")]
    return _rendered(
        heading=f"EmbeddingGradients {dict(provenance.lines)['gradient']}",
        summary=f"at {result.provenance.get('point', '?')}; {provenance.brief}",
        examples=first_sentences.examples,
        endings=[*dict.fromkeys(endings), *first_sentences.notes],
    )


def of_comparison(comparison: Comparison) -> str | None:
    """Return the verdict, its causes and the figures, or None where Jinja2 is not installed."""
    lines = list(examples_of(comparison))
    figures = comparison.figures
    whole = Line("all", comparison.agrees, figures.relative_l2, figures.largest, figures.cosine)
    more = len(lines) - MOST_EXAMPLES
    return _rendered_verdict(
        {str(comparison.a.provenance.get("point", "?")): comparison},
        head="",
        lines=[whole, *lines[:MOST_EXAMPLES]],
        endings=[f"{more} more examples not listed"] if more > 0 else [],
    )


def of_comparisons(comparisons: Mapping[str, Comparison]) -> str | None:
    """Return the verdict, its causes, the figures at each point and their plot, or None where Jinja2 is not installed."""
    if not comparisons:
        return _rendered(heading="Comparisons", summary="of no points")
    lines = verdict("b", "a", comparisons, None).points
    bounds = sorted({comparison.tolerance for comparison in comparisons.values()})
    return _rendered_verdict(comparisons, head="point", lines=lines, plot=plot({"b": lines}, bounds), colours=COLOURS)


def _rendered_verdict(comparisons: Mapping[str, Comparison], **values: Any) -> str | None:
    outcome = verdict("b", "a", comparisons, None)
    return _rendered(
        heading=f"{'✓' if outcome.agrees else '✗'} {outcome.text}",
        summary=f"(tolerance {outcome.tolerance})",
        texts=[*outcome.findings, *([outcome.advice] if outcome.advice else [])],
        **{
            **values,
            "endings": [
                *values.get("endings", ()),
                *outcome.notes,
                f"a is {outcome.sides[0]}; b is {outcome.sides[1]}.",
            ],
        },
    )


def _rendered(**values: Any) -> str | None:
    defaults = {"texts": (), "lines": (), "head": "", "examples": (), "endings": (), "plot": None, "colours": COLOURS}
    try:
        template = environment().get_template("fragment.html")
    except EmbgradError:
        return None
    return str(template.render(**{**defaults, "tint": tint, **values}))


register_renderer(EmbeddingGradients, of_result)
register_renderer(Comparison, of_comparison)
register_renderer(Comparisons, of_comparisons)
