"""Scores as LaTeX: text in coloured boxes of the package xcolor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from embgrad.common.text import printable
from embgrad.display.colours import shade, step
from embgrad.display.lines import Line, Piece

__all__ = ["latex"]

#: The characters that LaTeX reads as commands, and those that its fonts or ligatures replace.
SPECIAL: Final = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "-": "{-}",
    "'": r"\textquotesingle{}",
    '"': r"\char34{}",
    ",": "{,}",
    "!": "{!}",
    "?": "{?}",
}


def latex(examples: Sequence[Sequence[Line]]) -> str:
    """Return the examples as LaTeX, a paragraph for each line, for a document with \\usepackage{xcolor}."""
    paragraphs = [_paragraph(line) for lines in examples for line in lines]
    return "% \\usepackage{xcolor}\n" + "\n".join(paragraphs)


def _paragraph(line: Line) -> str:
    label = f"\\textbf{{{escape(line.label)}}} " if line.label else ""
    body = "".join(_boxes(line))
    return f"{{\\noindent\\setlength{{\\fboxsep}}{{1pt}}\\raggedright\n{label}{body}\\par}}\n"


def escape(text: str) -> str:
    """Return the text so that LaTeX prints it; characters beyond ASCII are left to the document's fonts."""
    return "".join(SPECIAL.get(character, character) for character in printable(text))


def _boxes(line: Line) -> Iterator[str]:
    for index, piece in enumerate(line.pieces):
        yield escape(piece.before) if index else ""
        yield _box(piece, line)


def _box(piece: Piece, line: Line) -> str:
    """Return a piece's words in boxes of its colour, with white space outside of them, so that lines can break there."""
    scale, level = shade(piece.score, line.largest, line.signed) if piece.positions else ("", 0)
    if not level:
        return "".join(_space(part) if part.isspace() else escape(part) for part in _parts(piece.text + piece.note))
    colours = step("light", scale, level)
    start = f"\\colorbox[HTML]{{{colours.background[1:].upper()}}}{{\\strut "
    if colours.text == "#ffffff":
        start += "\\color{white}"
    if piece.text.isspace():
        return f"{start}\\textvisiblespace{{}}}}{_space(piece.text)}"
    return "".join(_space(part) if part.isspace() else f"{start}{escape(part)}}}" for part in _parts(piece.text))


def _parts(text: str) -> list[str]:
    """Return the words of a text and the white space between them."""
    return [part for part in re.split(r"(\s+)", text) if part]


def _space(white: str) -> str:
    """Return white space for LaTeX: a new line where it has a line end, else a space."""
    return "\\leavevmode\\\\\\relax\n" if "\n" in white or "\r" in white else " "
