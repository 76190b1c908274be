"""Results in the terminal, as lines of coloured text: attributions with their legend, searches and substitutions."""

from __future__ import annotations

from typing import Any

from embgrad.cli.terminal import Terminal
from embgrad.cli.token_colours import legend
from embgrad.errors import EmbgradError
from embgrad.results.attribution import Attribution
from embgrad.results.pieces import lines_of
from embgrad.results.search import Search
from embgrad.results.search_lines import lines_of as search_lines_of
from embgrad.results.search_terminal import fragments
from embgrad.results.search_terminal import legend as search_legend
from embgrad.results.substitution_display import SHOWN
from embgrad.results.substitution_display import lines as lines_of_substitutions
from embgrad.results.substitutions import Substitutions
from embgrad.results.terminal import painted
from embgrad.results.token_attribution import TokenAttribution

__all__ = ["attribution_legend", "attribution_lines", "search_lines", "substitution_lines", "token_lines"]


def attribution_lines(attribution: Attribution, terminal: Terminal, *, words: bool) -> list[Any]:
    """Return one line of text for each example: its words, or its tokens, coloured by score.

    Raises:
        EmbgradError: words are wanted, and the tokens are not known.
    """
    from rich.text import Text

    _expect_tokens(attribution, words)
    if terminal.as_json:
        return []
    lines = lines_of({"": attribution}, range(len(attribution.ids)), "words" if words else "tokens", True, ())
    return [Text.assemble(*painted(line, terminal.coloured)) for (line,) in lines]


def token_lines(attribution: TokenAttribution, terminal: Terminal, *, words: bool) -> list[Any]:
    """Return one line of text for each output: the output, and the inputs before it, coloured by score.

    Raises:
        EmbgradError: words are wanted, and the tokens are not known.
    """
    from rich.text import Text

    _expect_tokens(attribution, words)
    if terminal.as_json:
        return []
    lines = []
    for example in range(len(attribution.outputs)):
        if (attribution.outputs[example] >= 0).any():
            texts = attribution.matrix(example, by="words" if words else "tokens").lines()
            width = max(len(line.label) for line in texts)
            lines += [
                Text.assemble((f"{line.label:>{width}}  ", "bold"), *painted(line, terminal.coloured)) for line in texts
            ]
    return lines


def attribution_legend(attribution: Attribution | TokenAttribution, coloured: bool) -> str:
    """Return the legend of the colours or digits."""
    if not attribution.signed:
        return legend("norm", coloured)
    return (
        "contribution: orange is above zero, blue below"
        if coloured
        else "contribution, -9 to +9; 9 is the example's largest"
    )


def _expect_tokens(attribution: Attribution | TokenAttribution, words: bool) -> None:
    if words and attribution.tokens is None:
        raise EmbgradError("the tokens of this attribution are not known, only their ids: omit --words")


def search_lines(search: Search, terminal: Terminal) -> list[Any]:
    """Return the lines of text of a search: its title, the lines of each example, and the legend; none with --json."""
    from rich.text import Text

    if terminal.as_json:
        return []
    of_examples = search_lines_of(search, range(len(search.before)))
    shown = [Text.assemble(*fragments(line, terminal.coloured)) for line in of_examples]
    for text in shown:
        text.rstrip()
    return [Text(search.figures().title, style="bold"), *shown, Text(search_legend(terminal.coloured), style="dim")]


def substitution_lines(substitutions: Substitutions, terminal: Terminal) -> list[Any]:
    """Return the lines of text of substitutions, those of each example and position; none with --json."""
    examples = () if terminal.as_json else range(len(substitutions.ids))
    return [line for example in examples for line in lines_of_substitutions(substitutions, example, SHOWN)]
