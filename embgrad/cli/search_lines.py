"""Searches and substitutions in the terminal: texts with changed tokens marked; tokens with their best replacements."""

from __future__ import annotations

from typing import Any

from embgrad.cli.terminal import Terminal
from embgrad.results.search import Search
from embgrad.results.search_lines import lines_of
from embgrad.results.search_terminal import fragments, legend
from embgrad.results.substitution_display import SHOWN, lines
from embgrad.results.substitutions import Substitutions

__all__ = ["search_lines", "substitution_lines"]


def search_lines(search: Search, terminal: Terminal) -> list[Any]:
    """Return the lines of text of a search: its title, the lines of each example, and the legend; none with --json."""
    from rich.text import Text

    if terminal.as_json:
        return []
    of_examples = lines_of(search, range(len(search.before)))
    shown = [Text.assemble(*fragments(line, terminal.coloured)) for line in of_examples]
    for text in shown:
        text.rstrip()
    return [Text(search.figures().title, style="bold"), *shown, Text(legend(terminal.coloured), style="dim")]


def substitution_lines(substitutions: Substitutions, terminal: Terminal) -> list[Any]:
    """Return the lines of text of substitutions, those of each example and position; none with --json."""
    examples = () if terminal.as_json else range(len(substitutions.ids))
    return [line for example in examples for line in lines(substitutions, example, SHOWN)]
