"""Results in the terminal, as coloured text with its legend: gradients, attributions, searches, substitutions, ports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from embgrad.cli.terminal import Terminal
from embgrad.display.lines import Line
from embgrad.display.terminal import paint, scores_legend
from embgrad.errors import EmbgradError
from embgrad.results.attribution import Attribution
from embgrad.results.gradient_display import gradient_lines
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.influence import Influence
from embgrad.results.pair_attribution import PairAttribution
from embgrad.results.pieces import lines_of
from embgrad.results.port_display import parts
from embgrad.results.port_report import PortReport
from embgrad.results.search import Search
from embgrad.results.search_display import search_parts
from embgrad.results.substitutions import Substitutions
from embgrad.results.substitutions import lines_of as lines_of_substitutions
from embgrad.results.token_attribution import TokenAttribution

__all__ = ["legend_of", "lines_of_several", "port_lines", "result_lines", "search_text", "text_lines"]

#: What the scores of gradients and of attributions by saliency show, by the kind of saliency.
GRADIENTS: Final = {"norm": "length of the gradient", "dot": "gradient · embedding"}


def result_lines(
    result: Any, terminal: Terminal, *, words: bool = False, kind: str = "norm", by: str | None = None
) -> list[Any]:
    """Return a result as lines, of Rich's text where it is coloured; none with --json.

    Gradients and attributions have a line for each example, attributions of output tokens one for each output. A search is one
    text: its title, its examples and a legend. Substitutions have a line for each position.

    Args:
        kind: the kind of saliency of gradients, "norm" or "dot".
        by: the unit of attributions of output tokens, see `TokenAttribution.matrix`; None for what `words` says.
    """
    if words and result.tokens is None and not isinstance(result, EmbeddingGradients):
        raise EmbgradError("the tokens of this attribution are not known, only their ids: omit --words")
    if terminal.as_json:
        return []
    unit, coloured, examples = "words" if words else "tokens", terminal.coloured, range(len(result.ids))
    if isinstance(result, Substitutions):
        return [line for example in examples for line in lines_of_substitutions(result, example)]
    if isinstance(result, EmbeddingGradients):
        return text_lines(gradient_lines(result, kind, unit, examples), coloured)
    if isinstance(result, Attribution):
        return text_lines([line for (line,) in lines_of({"": result}, examples, unit, True, ())], coloured)
    having = [example for example, outputs in enumerate(result.outputs) if (outputs >= 0).any()]
    return [
        text
        for example in having
        for text in text_lines(result.matrix(example, by=by or unit).lines(), coloured, labels=True)
    ]


def lines_of_several(result: PairAttribution | Influence, coloured: bool) -> list[Any]:
    """Return the lines of pairs of texts, one for each token of the first, or of the training examples of an influence."""
    if isinstance(result, Influence):
        return [line for example in range(len(result.proponents)) for line in result.lines(example)]
    matrices = [result.matrix(pair) for pair in range(len(result.scores))]
    return [text for matrix in matrices for text in text_lines(matrix.lines(), coloured, labels=True)]


def search_text(search: Search, terminal: Terminal) -> Any:
    """Return a search as Rich's text: its title, its examples and the legend."""
    from rich.text import Text

    text = Text.assemble(*search_parts(search, range(len(search.before)), terminal.coloured))
    text.rstrip()
    return text


def port_lines(report: PortReport) -> list[Any]:
    """Return the lines of the check of a port as Rich's texts, in their colours."""
    from rich.text import Text

    return [Text(text.removesuffix("\n"), style=style) for text, style in parts(report)]


def legend_of(result: EmbeddingGradients | Attribution | TokenAttribution, coloured: bool, kind: str = "norm") -> str:
    """Return the legend of the colours or digits."""
    if isinstance(result, EmbeddingGradients):
        return scores_legend(GRADIENTS[kind], kind == "dot", coloured)
    return scores_legend("contribution" if result.signed else GRADIENTS["norm"], result.signed, coloured)


def text_lines(lines: Sequence[Line], coloured: bool, labels: bool = False) -> list[Any]:
    """Return lines as Rich's texts, with their labels before them or without."""
    from rich.text import Text

    width = max((len(line.label) for line in lines), default=0)
    heads = [[(f"{line.label:>{width}}  ", "bold")] if labels else [] for line in lines]
    return [Text.assemble(*head, *paint(line, coloured)) for head, line in zip(heads, lines, strict=True)]
