"""Substitutions as text and as HTML: for each position the token in place and its best replacements."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, Final

import numpy as np

from embgrad.common.colours import shade, tint
from embgrad.common.text import visible
from embgrad.common.token_text import token_text

__all__ = ["SHOWN", "fragment", "lines"]

#: How many replacements of a position are shown where the user names no number.
SHOWN: Final = 5

_CELL: Final = "text-align:left;padding:.1em .6em"


def lines(result: Any, example: int, most: int) -> list[str]:
    """Return the lines of an example: a summary, and for each searched position the token and its best replacements."""
    rows = [
        [str(position), _token(result, example, position), "→", *map(_written, found)]
        for position, found in _found(result, example, most)
    ]
    count = max((len(row) for row in rows), default=0)
    widths = [max(len(row[column]) for row in rows if len(row) > column) for column in range(count)]
    body = [
        "  ".join([row[0].rjust(widths[0]), *(cell.ljust(widths[1 + index]) for index, cell in enumerate(row[1:]))])
        for row in rows
    ]
    return [_summary(result, example), *(f"  {line.rstrip()}" for line in body)]


def fragment(result: Any, examples: Iterable[int], most: int, note: str) -> str:
    """Return tables of HTML that do not affect the surrounding page, one for each example, with coloured replacements."""
    parts = ['<div class="embgrad">\n']
    for example in examples:
        found = list(_found(result, example, most))
        largest = max((abs(one.score) for _, row in found for one in row), default=0.0)
        parts.append(
            f'<div style="margin:.5em 0 .1em;font-size:.8em">{escape(_summary(result, example))}</div>\n'
            '<table style="border-collapse:collapse">\n'
        )
        for position, row in found:
            cells = "".join(_html_cell(one, largest) for one in row)
            token = escape(_token(result, example, position))
            parts.append(
                f'<tr><td style="{_CELL};opacity:.75">{position}</td><th style="{_CELL}">{token}</th>{cells}</tr>\n'
            )
        parts.append("</table>\n")
    if note:
        parts.append(f'<div style="opacity:.75">{escape(note)}</div>\n')
    return "".join([*parts, "</div>\n"])


def _html_cell(one: Any, largest: float) -> str:
    scale, level = shade(one.score, largest, signed=True)
    colour = f";background:{tint(scale, level)}" if level else ""
    return f'<td style="{_CELL}{colour}" title="id {one.id}">{escape(_written(one))}</td>'


def _found(result: Any, example: int, most: int) -> list[tuple[int, list[Any]]]:
    """Return the searched positions of an example with their substitutions."""
    positions = np.flatnonzero(result.searched[example]).tolist()
    return [(position, result.of_position(example, position, most)) for position in positions]


def _summary(result: Any, example: int) -> str:
    objective = result.provenance["objective"]["class"]
    return visible(
        f"example {example}: {objective} = {result.objective[example]:.4g}, estimated changes by other tokens, "
        f"to {result.goal}"
    )


def _token(result: Any, example: int, position: int) -> str:
    token = None if result.tokens is None else result.tokens[example][position]
    return f"id {result.original[example, position]}" if token is None else token_text(token)


def _written(one: Any) -> str:
    return f"{f'id {one.id}' if one.after is None else token_text(one.after)} {one.score:+.3g}"
