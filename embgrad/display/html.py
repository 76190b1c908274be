"""HTML: elements whose texts are escaped here alone, the frame of all pages, the frame of a notebook's cell, and coloured lines.

Nothing has scripts or loads anything. What is made for notebooks has its style on each element, and keeps the notebook's colour
of text, dark or light.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, Final

from embgrad.common.text import printable, visible
from embgrad.display.colours import LEVELS, shade, tint
from embgrad.display.lines import Line, Piece
from embgrad.version import __version__

__all__ = ["MOST_TEXT", "Html", "cell", "colour", "join", "line_html", "page", "prose", "tag"]

#: The largest number of characters in a text, such as a name, other than the user's running text; tokens are cut earlier.
MOST_TEXT: Final = 10_000

#: The elements that have no content.
VOID: Final = {"br", "input", "meta"}

#: The styles of a sentence beside coloured text, of the user's text, and of a special token.
SMALL: Final = "font-size:.8em;margin:.5em 0 .1em"
FAINT: Final = "opacity:.75"
PROSE: Final = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.8"
SPECIAL: Final = "font-size:.8em;border:1px dashed;padding:0 .2em;opacity:.75"


class Html(str):
    """Markup, which only this module makes of texts."""


def _text(value: object) -> str:
    """Return a text for markup in one line, with invisible characters spelled out; a very long one is cut."""
    text = str(value)
    shown = visible(text) if len(text) <= MOST_TEXT else f"{visible(text[:MOST_TEXT])}… ({len(text)} characters)"
    return escape(shown)


def prose(text: str) -> Html:
    """Return a text of the user, of any length, with its white space, for an element that keeps it."""
    return Html(escape(printable(text)).replace("\r", "&#13;"))


def join(content: Any) -> Html:
    """Return content as markup: `Html` as it is, other texts and numbers escaped, the items of iterables one after another."""
    if isinstance(content, Html):
        return content
    if isinstance(content, Iterable) and not isinstance(content, str):
        return Html("".join(map(join, content)))
    return Html("" if content is None else _text(content))


def tag(name: str, /, *content: Any, **attributes: Any) -> Html:
    """Return an element.

    Args:
        attributes: its attributes; "_" stands for "-", at the end for nothing. True writes the name alone; None and False write
            nothing.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_text(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{written}>" if name in VOID else f"<{name}{written}>{join(content)}</{name}>")


def page(title: str, *body: Any, style: str = "", inline: bool = True) -> str:
    """Return a page that is one file, in UTF-8, and loads nothing.

    Args:
        title: its title.
        body: its content.
        style: its style sheet, after that of all pages.
        inline: whether elements have styles of their own; otherwise only the style sheet is in force.
    """
    import base64  # few pages are made
    import hashlib
    from importlib import resources

    sheet = resources.files("embgrad.display").joinpath("page.css").read_text(encoding="utf-8")
    # The browser hashes the style after normalising line ends to "\n".
    whole = f"\n{sheet}{style}\n".replace("\r\n", "\n")
    digest = base64.b64encode(hashlib.sha256(whole.encode()).digest()).decode()
    policy = "'unsafe-inline'" if inline else f"'sha256-{digest}'"
    head = [
        tag("meta", charset="utf-8"),
        Html(
            '<meta http-equiv="Content-Security-Policy" '
            f"content=\"default-src 'none'; style-src {policy}; base-uri 'none'; form-action 'none'\">"
        ),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"embgrad {__version__}"),
        tag("title", title),
        tag("style", Html(whole)),
    ]
    heads = Html("\n".join(head))
    return f"<!DOCTYPE html>\n{tag('html', tag('head', heads), tag('body', body), lang='en')}\n"


def cell(*content: Any, heading: str = "", summary: str = "", notes: Sequence[str] = ()) -> Html:
    """Return content for a notebook's cell, which does not affect what is around it.

    Args:
        heading: what is shown, in bold letters; "" for nothing.
        summary: more of it, after the heading.
    """
    head = (
        tag("div", tag("strong", heading), f" {summary}" if summary else "", style="margin:.3em 0") if heading else ""
    )
    end = [tag("div", note, style=f"font-size:.85em;{FAINT};margin:.3em 0") for note in notes]
    return tag("div", head, content, end, class_="embgrad")


def colour(text: Any, scale: str, level: int, more: str = "", name: str = "span", **attributes: Any) -> Html:
    """Return a text on the colour of a step of a scale, see `colours.shade`, with more style."""
    background = f"background:{tint(scale, level)}" if level else ""
    style = ";".join(filter(None, (more, "border-radius:3px", background)))
    return tag(name, text, style=style, **attributes)


def line_html(line: Line, numbered: bool) -> Html:
    """Return a line with its label, its summary and the scale of its colours."""
    number = f"example {line.example}: " if numbered else ""
    label = [tag("strong", line.label), " "] if line.label else ""
    return tag(
        "div",
        tag("div", label, tag("span", number, line.summary, style=FAINT), " ", _legend(line), style=SMALL),
        text_html(line),
        style="margin:0 0 .6em",
    )


def text_html(line: Line, style: str = "") -> Html:
    """Return the pieces of a line in their colours."""
    return tag("div", _pieces(line), dir="auto", style=f"{style}{PROSE}")


def _legend(line: Line) -> Any:
    if not line.largest:
        return "all scores are zero or not finite"
    end = f"{line.largest:.4g}"
    ends = [("m", f"−{end}"), ("p", f"+{end}")] if line.signed else [("n", end)]
    return [
        (" " if index else "", colour(text, scale, LEVELS, "padding:0 .3em"))
        for index, (scale, text) in enumerate(ends)
    ]


def _pieces(line: Line) -> Iterator[Any]:
    for index, piece in enumerate(line.pieces):
        if index:
            yield prose(piece.before)
        yield _piece(piece, line)


def _piece(piece: Piece, line: Line) -> Html:
    text = prose(piece.text)
    if not piece.positions and not piece.special:
        return text
    scale, level = shade(piece.score, line.largest, line.signed)
    special = SPECIAL if piece.special else ""
    if piece.mark:
        plain = "color:inherit" if piece.mark == "deleted" else "color:inherit;text-decoration:none"
        element = "ins" if piece.mark == "added" else "del"
        return colour(text, scale, level, ";".join(filter(None, (plain, special))), element, title=piece.title)
    title = piece.title or _title(piece, line.signed) if piece.positions else None
    return colour([text, piece.note], scale, level, special, title=title)


def _title(piece: Piece, signed: bool) -> str:
    positions = ", ".join(map(str, piece.positions[:20])) + (", …" if len(piece.positions) > 20 else "")
    score = f"{piece.score:+.4g}" if signed else f"{piece.score:.4g}"
    return f"{score}, position{'s' if len(piece.positions) > 1 else ''} {positions}"
