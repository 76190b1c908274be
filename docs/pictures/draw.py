"""Draw the pictures of the contract and the README as SVG, without outside fonts, scripts or links.

Run `python docs/pictures/draw.py` after a change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Final

from embgrad.display.colours import LEVELS, step

HERE: Final = Path(__file__).parent
README: Final = HERE.parents[1] / "README.md"
GENERATION: Final = HERE.parent / "generation.md"
INK, GREY, GOES, COMES, PALE, PAD = "#1f2933", "#7b8794", "#2b6cb0", "#c05621", "#edf2f7", "#d9dee4"
FONT: Final = "font-family='ui-monospace, Menlo, Consolas, monospace' font-size='14'"


def text(x: float, y: float, words: str, *, colour: str = INK, anchor: str = "middle", weight: str = "normal") -> str:
    """A line of text around, or from, a place."""
    return f"<text x='{x}' y='{y}' fill='{colour}' text-anchor='{anchor}' font-weight='{weight}'>{escape(words)}</text>"


def box(x: float, y: float, width: float, height: float, words: str = "", *, fill: str = PALE, line: str = INK) -> str:
    """A box with a line of text in its middle."""
    drawn = f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='4' fill='{fill}' stroke='{line}'/>"
    return drawn + (text(x + width / 2, y + height / 2 + 5, words) if words else "")


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = GOES) -> str:
    """An arrow: what goes forward, or the gradient that comes back."""
    head = "goes" if colour == GOES else "comes"
    return (
        f"<path d='M{x1},{y1} L{x2},{y2}' stroke='{colour}' stroke-width='1.6' fill='none' marker-end='url(#{head})'/>"
    )


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """The whole file. The title is what is read out."""
    heads = "".join(
        f"<marker id='{name}' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0,0 L8,4 L0,8 z' fill='{colour}'/></marker>"
        for name, colour in (("goes", GOES), ("comes", COMES))
    )
    ground = f"<rect width='{width}' height='{height}' rx='8' fill='#ffffff'/>"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        f"role='img' {FONT}>\n<title>{escape(title)}</title>\n<defs>{heads}</defs>\n{ground}\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def word() -> str:
    """Where the roles lie in a BERT."""
    left, wide, parts = 250, 290, []
    rows = [
        ("ids", ""),
        ("table[ids]", "word"),
        ("+ positions + types, LayerNorm", "embeddings"),
        ("layer 0", "layer.0"),
    ]
    rows += [("…", ""), ("last layer", "layer.-1"), ("pooler, head", "logits, pooled"), ("L of each example", "")]
    for number, (what, role) in enumerate(rows):
        y = 430 - number * 56
        asked = role == "word"
        parts.append(box(left, y, wide, 32, what, fill="#fbe3d4" if asked else PALE, line=COMES if asked else INK))
        if role:
            parts.append(text(left + wide + 24, y + 21, role, anchor="start", weight="bold" if asked else "normal"))
        if number:
            parts.append(arrow(left + 80, y + 54, left + 80, y + 35))
            if number >= 2:
                parts.append(arrow(left + 170, y + 35, left + 170, y + 54, COMES))
    parts.append(text(left + wide + 24, 60, "roles of points and outputs", anchor="start", colour=GREY))
    parts.append(text(left - 20, 386, "activations: e", anchor="end", colour=GOES))
    parts.append(text(left - 20, 404, "values: ∂ΣL/∂e", anchor="end", colour=COMES))
    parts.append(text(left - 20, 450, "whole numbers: no gradient", anchor="end", colour=GREY))
    return picture(
        800, 480, "In a BERT, the point word is the raw output of the table lookup, below positions and types", parts
    )


def sums() -> str:
    """A sum does not depend on who else is in the batch."""
    heads = {40: "alone", 330: "in a batch of 3"}
    parts = [text(x, 36, head, anchor="start", weight="bold") for x, head in heads.items()]
    for x, count in ((40, 1), (330, 3)):
        for example in range(count):
            y = 56 + 46 * example
            parts += [box(x, y, 90, 30, f"L{'₁₂₃'[example]}"), arrow(x + 92, y + 15, x + 132, y + 15, COMES)]
            parts.append(text(x + 140, y + 20, f"∂L{'₁₂₃'[example]}/∂e", anchor="start", colour=COMES))
    parts.append(text(40, 222, "sum of L:   ∂L₁/∂e = the same in both", anchor="start", weight="bold"))
    parts.append(text(40, 246, "mean of L:  ∂L₁/∂e = a third of it in the batch", anchor="start", colour=GREY))
    return picture(
        600,
        270,
        "A sum has the same gradient for an example alone and in a batch; a mean has not",
        parts,
    )


def table() -> str:
    """Occurrences and rows."""
    parts = [text(40, 34, "values: one vector a position", anchor="start", weight="bold")]
    for example, ids in enumerate(((2, 17, 30, 17, 3), (2, 41, 17, 3, 0))):
        for position, one in enumerate(ids):
            hot, pad = one == 17, (example, position) == (1, 4)
            fill = "#fbe3d4" if hot else PAD if pad else PALE
            parts.append(box(40 + 62 * position, 50 + 50 * example, 54, 36, "pad" if pad else str(one), fill=fill))
            if hot:
                parts.append(arrow(67 + 62 * position, 88 + 50 * example, 308 - 14 * position, 196, COMES))
    parts += [text(40, 190, "table(): one vector a row", anchor="start", weight="bold")]
    for number, row in enumerate(("pad", "2", "3", "17", "30", "41")):
        parts.append(box(40 + 72 * number, 200, 64, 36, row, fill={"17": "#fbe3d4", "pad": PAD}.get(row, PALE)))
    parts.append(
        text(40, 264, "row 17 = the sum of its three uses; the other 30,516 are zero, not kept", anchor="start")
    )
    parts.append(text(390, 74, "example 0", anchor="start", colour=GREY))
    parts.append(text(390, 124, "example 1", anchor="start", colour=GREY))
    parts.append(text(40, 288, "per_example(): the same for each line by itself", anchor="start", colour=GREY))
    return picture(760, 306, "The table's gradient sums the gradients of all occurrences of a token", parts)


def padding() -> str:
    """What happens at masked positions."""
    parts, left = [], 150
    for row, (name, cells) in enumerate(
        (
            ("mask", ("1", "1", "1", "0", "0")),
            ("pads=keep", ("g₀", "g₁", "g₂", "g₃", "g₄")),
            ("pads=zero", ("g₀", "g₁", "g₂", "0", "0")),
        )
    ):
        y = 26 + 54 * row
        parts.append(text(left - 16, y + 23, name, anchor="end", weight="bold"))
        for position, cell in enumerate(cells):
            parts.append(box(left + 66 * position, y, 58, 36, cell, fill=PAD if position > 2 else PALE))
    parts.append(text(left + 350, 103, "what the model computes", anchor="start", colour=GREY))
    parts.append(text(left + 350, 157, "set to zero, table() too", anchor="start", colour=GREY))
    parts.append(text(left, 206, "pad_leak = the largest |g₃|, |g₄|, in both", anchor="start", colour=COMES))
    return picture(720, 226, "Padding is kept and reported, or set to zero", parts)


def tied() -> str:
    """The two ways in which a tied table receives gradients."""
    parts = [
        box(40, 110, 130, 60, "table"),
        box(290, 44, 120, 36, "lookup"),
        box(470, 44, 120, 36, "layers"),
        box(470, 194, 120, 36, "head"),
        box(660, 194, 60, 36, "L"),
        arrow(172, 118, 286, 58),
        arrow(412, 62, 466, 62),
        arrow(530, 82, 530, 190),
        arrow(172, 150, 466, 206),
        arrow(592, 212, 656, 212),
        arrow(288, 74, 174, 134, COMES),
        arrow(466, 222, 174, 166, COMES),
        text(206, 56, "the ids' rows", colour=GREY),
        text(300, 230, "every row", colour=GREY),
        text(40, 276, "table_gradients(): total = lookup, which is table(), + head", anchor="start", colour=COMES),
    ]
    return picture(
        760,
        296,
        "A tied table receives gradients in two ways: through the lookup, and through the head that shares it",
        parts,
    )


def quickstart() -> str:
    """The README's sentence, each word in the notebook's colour for the score that the README prints."""
    printed = README.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    scores = [(word, float(score)) for word, score in re.findall(r"^(\S+) +([\d.]+) ", printed, flags=re.MULTILINE)]
    most = max(score for word, score in scores if not word.startswith("["))
    parts, x, advance = [], 24.0, 8.5
    parts.append(text(x, 32, "How do I bake bread?", anchor="start", colour=GREY))
    for word, score in scores:
        width = advance * len(word) + 10
        colours = step("light", "n", min(LEVELS, round(LEVELS * score / most)))
        dashed = " stroke-dasharray='3 2'" if word.startswith("[") else ""
        line = INK if dashed else "none"
        parts.append(
            f"<rect x='{x:g}' y='48' width='{width:g}' height='26' rx='4' fill='{colours.background}' stroke='{line}'{dashed}/>"
        )
        parts.append(
            f"<text x='{x + 5:g}' y='66' fill='{colours.text}' textLength='{advance * len(word):g}'>{escape(word)}</text>"
        )
        x += width + 4
    parts.append(text(24, 100, f"length of the gradient, 0 to {most:g}", anchor="start", colour=GREY))
    return picture(
        round(x + 20),
        118,
        "The sentence of the quick start: the darker a word, the more the similarity depends on it",
        parts,
    )


def trained() -> str:
    """The words of the page's trained model, a line for each method, in the colours of the scores that the page prints."""
    section = GENERATION.read_text(encoding="utf-8").partition("## A model that was trained")[2]
    printed = section.split("```text\n")[1].split("```")[0]
    parts, advance = [text(24, 32, "log p(are) − log p(is), by", anchor="start", colour=GREY)], 8.5
    for line, row in enumerate(re.findall(r"^([a-z× ]+?)  +(\w+ .*)$", printed, flags=re.MULTILINE)):
        method, scores = row[0], re.findall(r"(\w+) (-?[\d.]+)", row[1])
        most, y, x = max(abs(float(score)) for _, score in scores), 48 + 40 * line, 230.0
        parts.append(text(24, y + 18, method, anchor="start", weight="bold"))
        for word, score in scores:
            sign = "n" if method == "saliency" else "p" if float(score) > 0 else "m"
            colours = step("light", sign, round(LEVELS * abs(float(score)) / most))
            width = advance * len(word) + 10
            parts.append(f"<rect x='{x:g}' y='{y}' width='{width:g}' height='26' rx='4' fill='{colours.background}'/>")
            parts.append(f"<text x='{x + 5:g}' y='{y + 18}' fill='{colours.text}'>{escape(word)}</text>")
            x += width + 4
    return picture(
        560, 222, "What makes a trained model write are after The keys to the cabinet, by four methods", parts
    )


PICTURES: Final[dict[str, Callable[[], str]]] = {
    "quickstart": quickstart,
    "word": word,
    "sum": sums,
    "table": table,
    "padding": padding,
    "tied": tied,
    "generation-trained": trained,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(draw(), encoding="utf-8")
