"""Scores as HTML: text with coloured backgrounds, without scripts, and with nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from embgrad.common.colours import LEVELS, shade, tint
from embgrad.common.text import printable
from embgrad.results.pieces import Line, Piece

__all__ = ["document", "fragment"]


def document(examples: Sequence[Sequence[Line]], title: str) -> str:
    """Return the examples as a page of HTML, for a file in UTF-8."""
    return (
        f'<!doctype html>\n<html>\n<head>\n<meta charset="utf-8">\n<title>{escape(printable(title))}</title>\n'
        "<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;"
        f"padding:0 1em}}</style>\n</head>\n<body>\n{fragment(examples)}</body>\n</html>\n"
    )


def fragment(examples: Sequence[Sequence[Line]], note: str = "") -> str:
    """Return the examples as HTML that does not affect the surrounding page.

    Args:
        examples: for each example its lines.
        note: a sentence at the end.
    """
    parts = ["<div>\n"]
    for lines in examples:
        parts.append('<div style="margin:0 0 1.2em">\n')
        parts.extend(_line(line, len(examples) > 1) for line in lines)
        parts.append("</div>\n")
    if note:
        parts.append(f'<div style="opacity:.75">{escape(note)}</div>\n')
    return "".join([*parts, "</div>\n"])


def _line(line: Line, numbered: bool) -> str:
    label = f"<b>{escape(line.label)}</b> " if line.label else ""
    number = f"example {line.example}: " if numbered else ""
    return (
        f'<div style="margin:.5em 0 .1em;font-size:.8em">{label}<span style="opacity:.75">{number}{escape(line.summary)}</span> '
        f"{_legend(line)}</div>\n"
        f'<div dir="auto" style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.8">{"".join(_spans(line))}</div>\n'
    )


def _legend(line: Line) -> str:
    if not line.largest:
        return "all scores are zero or not finite"
    ends = (
        [("m", f"−{line.largest:.4g}"), ("p", f"+{line.largest:.4g}")]
        if line.signed
        else [("n", f"{line.largest:.4g}")]
    )
    return " ".join(
        f'<span style="background:{tint(scale, LEVELS)};border-radius:3px;padding:0 .3em">{text}</span>'
        for scale, text in ends
    )


def _spans(line: Line) -> Iterator[str]:
    for index, piece in enumerate(line.pieces):
        yield escape(piece.before) if index else ""
        yield _span(piece, line)


def _span(piece: Piece, line: Line) -> str:
    text = escape(printable(piece.text)).replace("\r", "&#13;")
    if not piece.positions:
        return text
    scale, level = shade(piece.score, line.largest, line.signed)
    styles = ["border-radius:3px", f"background:{tint(scale, level)}" if level else ""]
    if piece.special:
        styles.append("font-size:.8em;border:1px dashed;padding:0 .2em;opacity:.75")
    positions = ", ".join(map(str, piece.positions[:20])) + (", …" if len(piece.positions) > 20 else "")
    title = f"{piece.score:+.4g}" if line.signed else f"{piece.score:.4g}"
    title += f", position{'s' if len(piece.positions) > 1 else ''} {positions}"
    return f'<span title="{title}" style="{";".join(filter(None, styles))}">{text}{piece.note}</span>'
