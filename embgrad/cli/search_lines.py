"""Searches in the terminal: for each example the texts before and after with changed tokens marked, and the legend."""

from __future__ import annotations

from typing import Any

from embgrad.cli.terminal import Terminal
from embgrad.results.search import Search
from embgrad.results.search_lines import lines_of
from embgrad.results.search_terminal import fragments, legend

__all__ = ["search_lines"]


def search_lines(search: Search, terminal: Terminal) -> list[Any]:
    """Return the lines of text of a search: its title, the lines of each example, and the legend; none with --json."""
    from rich.text import Text

    if terminal.as_json:
        return []
    lines = lines_of(search, range(len(search.before)))
    shown = [Text.assemble(*fragments(line, terminal.coloured)) for line in lines]
    for text in shown:
        text.rstrip()
    return [Text(search.figures().title, style="bold"), *shown, Text(legend(terminal.coloured), style="dim")]
