"""Searches as HTML without scripts: the texts before and after with changed tokens in colours, and L by step as a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from embgrad.common.colours import LEVELS, tint
from embgrad.common.text import printable
from embgrad.results.search_changes import Change
from embgrad.results.search_lines import Marked, SearchLine

__all__ = ["document", "fragment"]

#: The width and height of the picture of L by step in its own units, and its margin.
WIDTH, HEIGHT, MARGIN = 150.0, 34.0, 4.0

#: The scales of the colours of tokens that were removed, and of those that were put in: blue and orange.
SCALES: Final = ("m", "p")


def document(title: str, lines: Sequence[SearchLine], figures: str) -> str:
    """Return a page of HTML, for a file in UTF-8."""
    return (
        '<!doctype html>\n<html>\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(printable(title))}</title>\n<style>:root{{color-scheme:light dark}}body{{font:16px/1.5 system-ui,"
        f"sans-serif;max-width:60em;margin:2em auto;padding:0 1em}}</style>\n</head>\n<body>\n{fragment(title, lines, figures)}"
        "</body>\n</html>\n"
    )


def fragment(title: str, lines: Sequence[SearchLine], figures: str = "", note: str = "") -> str:
    """Return the examples as HTML that does not affect the surrounding page.

    Args:
        title: what was searched.
        lines: the examples.
        figures: HTML of the figures, before the examples.
        note: a sentence at the end.
    """
    head = f"<div><b>{escape(printable(title))}</b></div>\n"
    parts = [f'<div>\n{head}{figures}<div style="font-size:.8em;margin-top:.6em">{_legend()}</div>\n']
    for line in lines:
        parts.extend(_example(line))
    if note:
        parts.append(f'<div style="opacity:.75">{escape(note)}</div>\n')
    return "".join([*parts, "</div>\n"])


def _legend() -> str:
    return " ".join(
        f'<span style="{_style(side)};padding:0 .3em">{text}</span>'
        for side, text in enumerate(("replaced or deleted", "put in"))
    )


def _style(side: int) -> str:
    return f"border-radius:3px;background:{tint(SCALES[side], LEVELS)}"


def _example(line: SearchLine) -> Iterator[str]:
    outcome = f"; <b>{escape(line.outcome)}</b>" if line.outcome else ""
    yield (
        f'<div style="margin:1em 0">\n<div style="font-size:.8em;display:flex;flex-wrap:wrap;gap:0 1em;align-items:center">'
        f'<span style="opacity:.75;flex:1 1 16em;min-width:0">example {line.example}: {escape(line.summary)}{outcome}</span>'
        f"{_course(line)}</div>\n"
    )
    for side, (name, tokens) in enumerate((("before", line.before), ("after", line.after))):
        yield (
            '<div style="display:flex;gap:.6em;line-height:1.8">'
            f'<span style="flex:none;width:3.2em;font-size:.8em;line-height:2.25;opacity:.75">{name}</span>'
            '<div dir="auto" style="flex:1;min-width:0;white-space:pre-wrap;overflow-wrap:anywhere">'
            f"{''.join(_tokens(tokens, side))}</div></div>\n"
        )
    if line.text is not None:
        yield (
            '<details style="font-size:.8em"><summary style="cursor:pointer;opacity:.75">the text that was found</summary>'
            f'<code dir="auto" style="display:block;white-space:pre-wrap;overflow-wrap:anywhere">{_escaped(line.text)}</code>'
            "</details>\n"
        )
    yield "</div>\n"


def _tokens(tokens: Sequence[Marked], side: int) -> Iterator[str]:
    for index, (piece, change) in enumerate(tokens):
        yield escape(piece.before) if index else ""
        styles = [_style(side)] if change is not None else []
        if piece.special:
            styles.append("font-size:.8em;border:1px dashed;border-radius:3px;padding:0 .2em;opacity:.75")
        if change is None:
            yield f'<span style="{styles[0]}">{_escaped(piece.text)}</span>' if styles else _escaped(piece.text)
        else:
            tag = "ins" if side else "del"
            decoration = "text-decoration:none;" if side or change.kind == "substituted" else ""
            yield (
                f'<{tag} title="{escape(_described(change))}" style="{decoration}color:inherit;{";".join(styles)}">'
                f"{_escaped(piece.text)}</{tag}>"
            )


def _described(change: Change) -> str:
    """Return a change in words."""
    if change.kind == "inserted":
        return printable(f"inserted at position {change.position}")
    if change.kind == "deleted":
        return printable(f"deleted from position {change.position_before}")
    return printable(f"position {change.position}: {change.before} → {change.after}")


def _escaped(text: str) -> str:
    return escape(printable(text)).replace("\r", "&#13;")


def _course(line: SearchLine) -> str:
    """Return L by step as a line in SVG, with the L of the stopping rule as a dashed one; "" where there are no steps."""
    values = [float(value) for value in line.objective]
    drawn = [value for value in (*values, *([] if line.until is None else [line.until])) if math.isfinite(value)]
    if len(values) < 2 or not drawn:
        return ""
    low, high = min(drawn), max(drawn)
    step = (WIDTH - 2 * MARGIN) / (len(values) - 1)

    def height(value: float) -> float:
        share = (
            (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        )  # halves: their difference is finite
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share

    points = [(MARGIN + step * number, height(value)) for number, value in enumerate(values) if math.isfinite(value)]
    until = (
        ""
        if line.until is None
        else (
            f'<path d="M0 {height(line.until):.1f}H{WIDTH:g}" stroke="currentColor" stroke-dasharray="3 3" opacity=".6"/>'
        )
    )
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    end = f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="2.5" fill="currentColor"/>' if points else ""
    steps = f"{len(values) - 1} step{'s' if len(values) > 2 else ''}"
    name = f"L by step: {values[0]:.4g} at first, {values[-1]:.4g} after {steps}"
    return (
        f'<svg role="img" aria-label="{name}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" height="{HEIGHT:g}" '
        f'style="max-width:100%;flex:none"><title>{name}</title>{until}<polyline points="{path}" fill="none" '
        f'stroke="currentColor" stroke-width="1.5"/>{end}</svg>'
    )
