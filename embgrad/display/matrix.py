"""Matrices of output tokens as HTML without scripts: outputs to step through, inputs in colours, a table of all scores.

Radio buttons choose the output. They stand before the texts, so that the rules of a style sheet colour what follows the chosen
one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from embgrad.display.colours import LEVELS, shade, tint
from embgrad.display.html import Html, page, prose, tag
from embgrad.display.lines import Line, Piece, TokenMatrix, piece_name

__all__ = ["matrices_html", "matrices_page"]

#: The most cells of a table; a page of one with so many takes some MB.
MOST_CELLS: Final = 50_000

#: The most letters of a token in the margin of the table, and the most inputs that are named under the text.
MOST_LETTERS, MOST_NAMED = 24, 5

#: The rules of all fragments; "#id" stands for the fragment's own id.
_RULES: Final = """
#id{line-height:1.5;text-align:start}
#id .e{position:relative;margin:0 0 1.6em}
#id .e>input{position:fixed;top:50%;left:0;opacity:0;pointer-events:none}
#id .h{font-size:.8em;opacity:.75}
#id .o,#id .i{white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.9;margin:.25em 0}
#id .k{display:block;font-size:.75em;opacity:.75;margin-top:.6em;text-transform:uppercase;letter-spacing:.06em}
#id label{cursor:pointer}
#id .o label{display:inline-block;max-width:100%;line-height:1.4}
#id .o label{border-radius:4px;padding:.1em .25em;border:1px solid rgba(128,128,128,.4)}
#id .o label:hover,#id .m th label:hover{background:rgba(128,128,128,.25)}
#id .i span{border-radius:3px;padding:.05em 0}
#id .i .s{font-size:.8em;border:1px dashed;padding:0 .2em;opacity:.75}
#id .n{font-size:.85em;min-height:3em;margin:.3em 0}
#id .n>*{display:none}
#id .n i{font-style:normal;border-radius:3px;padding:0 .3em;margin-right:.35em;white-space:pre-wrap}
#id summary{cursor:pointer;font-size:.8em;opacity:.75}
#id .m>div{overflow:auto;max-height:40em;margin-top:.4em}
#id table{border-collapse:separate;border-spacing:1px;font-size:11px;line-height:1.1;width:auto;margin:0;border:0}
#id th,#id td{padding:0;border:0;font-weight:normal;background:none}
#id tbody th{text-align:right;padding:0 .5em;white-space:nowrap}
#id thead th{vertical-align:bottom;text-align:left}
#id thead span{writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap;padding:.4em 0}
#id td{width:16px;min-width:16px;height:16px;text-align:center;box-sizing:border-box}
#id td[title]{border:1px solid rgba(128,128,128,.3)}
#id td[title]:hover{outline:2px solid}
#id .d{border-left:3px double rgba(128,128,128,.8)!important}
""".strip()


def matrices_page(matrices: Sequence[TokenMatrix]) -> str:
    """Return the matrices as a page of HTML, for a file in UTF-8."""
    return page(" · ".join(dict.fromkeys(matrix.summary for matrix in matrices)), matrices_html(matrices, "embgrad"))


def matrices_html(matrices: Sequence[TokenMatrix], name: str, note: str = "") -> Html:
    """Return the matrices as HTML that does not affect the surrounding page.

    Args:
        name: its id, a name that nothing else on the page has.
        note: a sentence at the end.
    """
    steps = [(scale, level) for scale in "npm" for level in range(1, LEVELS + 1)]
    colours = "".join(f"--{scale}{level}:{tint(scale, level)};" for scale, level in steps)
    # Cells of the table, which hold no text, have the full colours.
    cells = "\n".join(
        f"#{name} .{scale}{level}{{background:var(--{scale}{level})}}"
        f"#{name} td.{scale}{level}{{background:{tint(scale, level, 1.0)}}}"
        for scale, level in steps
    )
    rules = Html(f"\n#{name}{{{colours}}}\n{_RULES.replace('#id', f'#{name}')}\n{cells}\n")
    examples = [_example(matrix, f"{name}-{number}", len(matrices) > 1) for number, matrix in enumerate(matrices)]
    return tag("div", tag("style", rules), examples, tag("div", note, class_="h") if note else "", id=name)


def _example(matrix: TokenMatrix, name: str, numbered: bool) -> Html:
    """Return one example: its rules, buttons, outputs, inputs, figures of the chosen output, and the table."""
    lines = matrix.lines()
    buttons = [
        tag("input", type="radio", name=name, id=f"{name}-{row}", checked=not row) for row in range(len(matrix.outputs))
    ]
    outputs = [
        (
            prose(output.before) if row else "",
            tag(
                "label",
                piece_name(output) if output.text.isspace() else prose(output.text),
                for_=f"{name}-{row}",
                title=_objective(matrix, output),
            ),
        )
        for row, output in enumerate(matrix.outputs)
    ]
    return tag(
        "div",
        tag("style", Html("\n" + "".join(_rules(matrix, lines, name)))),
        tag("div", f"example {matrix.example}: " if numbered else "", matrix.summary, class_="h"),
        buttons,
        tag(
            "div",
            tag("b", f"{matrix.names[0]}: click one, or use the arrow keys", class_="k"),
            outputs,
            class_="o",
            dir="auto",
        ),
        _texts(matrix),
        tag("div", [_figures(matrix, row, line) for row, line in enumerate(lines)], class_="n", role="status"),
        _table(matrix, name),
        class_="e",
        id=name,
    )


def _rules(matrix: TokenMatrix, lines: Sequence[Line], name: str) -> Iterator[str]:
    """Yield the rules that show what belongs to the chosen output; a colour of the text has one rule for all of its inputs."""
    for row, line in enumerate(lines):
        chosen = f"#{name}-{row}:checked~"
        nth = f":nth-child({row + 1})"
        yield (
            f"{chosen}.o label:nth-of-type({row + 1}),{chosen}.m tbody>{nth}>th{{outline:2px solid}}\n"
            f"#{name}-{row}:focus-visible~.o label:nth-of-type({row + 1}){{outline-width:3px}}\n"
            f"{chosen}.n>{nth}{{display:block}}\n"
        )
        groups: dict[str, list[int]] = defaultdict(list)
        for column, score in enumerate(matrix.scores[row].tolist()):
            scale, level = shade(score, line.largest, matrix.signed)
            if not matrix.earlier[row, column]:
                groups["opacity:.35"].append(column)
            elif level:
                groups[f"background:var(--{scale}{level})"].append(column)
        for style, columns in groups.items():
            yield f"{chosen}.i :is({','.join(f'.c{column}' for column in columns)}){{{style}}}\n"


def _texts(matrix: TokenMatrix) -> Iterator[Html]:
    column = 0
    name = matrix.names[1]
    titles = [name] if len(matrix.texts) == 1 else [f"{name} of the encoder", f"{name} of the decoder"]
    for title, pieces in zip(titles, matrix.texts, strict=True):
        content: list[Html] = [tag("b", title, class_="k")]
        for index, piece in enumerate(pieces):
            content.append(prose(piece.before) if index else Html())
            text = prose(piece.text)
            if piece.positions:
                text = tag("span", text, class_=f"c{column}{' s' if piece.special else ''}", title=_positions(piece))
                column += 1
            content.append(text)
        yield tag("div", content, class_="i", dir="auto")


def _figures(matrix: TokenMatrix, row: int, line: Line) -> Html:
    """Return the figures of one output: L, the score of full colour, and the inputs that contribute most."""
    output, scores = matrix.outputs[row], matrix.scores[row]
    finite = [column for column in range(len(scores)) if matrix.earlier[row, column] and math.isfinite(scores[column])]
    largest = sorted(finite, key=lambda column: -abs(scores[column]))[:MOST_NAMED]
    named: list[Any] = []
    for column in (column for column in largest if scores[column]):
        scale, level = shade(float(scores[column]), line.largest, matrix.signed)
        text = f"{_cut(matrix.inputs[column])} {_figure(matrix, scores[column])}"
        named.append((" " if named else "", tag("i", text, class_=f"{scale}{level}")))
    rest = int(matrix.earlier[row].sum()) - len(finite)
    missing = f" {rest} {'score is' if rest == 1 else 'scores are'} not finite." if rest else ""
    most = ["Largest: ", named] if named else "All scores are zero or not finite."
    full = f"; full colour is {line.largest:.4g}" if line.largest else ""
    return tag("div", tag("b", _cut(output)), f": {_objective(matrix, output)}{full}.{missing}", tag("br"), most)


def _table(matrix: TokenMatrix, name: str) -> Html:
    rows, columns = matrix.scores.shape
    size = f"{rows:,} {matrix.names[0]} × {columns:,} {matrix.names[1]}"
    if rows * columns > MOST_CELLS:
        return tag("div", f"the matrix, {size}, is left out for its size; matrix() returns it", class_="h")
    ends = f", full colour is {matrix.largest:.4g}" if matrix.largest else ""
    texts = [_cut(piece) for piece in matrix.inputs]
    divided = {matrix.split: "d"} if len(matrix.texts) > 1 else {}
    heads = [tag("th", tag("span", text), scope="col", class_=divided.get(at)) for at, text in enumerate(texts)]
    body = []
    for row, output in enumerate(matrix.outputs):
        text = _cut(output)
        cells = [tag("th", tag("label", text, for_=f"{name}-{row}"), scope="row")]
        for column, score in enumerate(matrix.scores[row].tolist()):
            if not matrix.earlier[row, column]:
                cells.append(tag("td", class_=divided.get(column)))
                continue
            scale, level = shade(score, matrix.largest, matrix.signed)
            classes = " ".join(filter(None, (f"{scale}{level}" if level else "", divided.get(column, ""))))
            title = f"{_figure(matrix, score)}: {texts[column]} → {text}"
            cells.append(tag("td", "" if math.isfinite(score) else "?", class_=classes or None, title=title))
        body.append(tag("tr", cells))
    table = tag("table", tag("thead", tag("tr", tag("td"), heads)), tag("tbody", body))
    return tag("details", tag("summary", f"matrix: {size}{ends}"), tag("div", table), class_="m", open=True)


def _objective(matrix: TokenMatrix, output: Piece) -> str:
    several = f" together, {len(output.positions)} tokens" if len(output.positions) > 1 else ""
    return f"{matrix.value} = {output.score:.4g}{several}, {_positions(output)}"


def _positions(piece: Piece) -> str:
    first, last, count = piece.positions[0], piece.positions[-1], len(piece.positions)
    if count < last - first + 1:
        return f"{count} positions from {first} to {last}"
    return f"position {first}" if first == last else f"positions {first} to {last}"


def _figure(matrix: TokenMatrix, score: Any) -> str:
    return f"{score:+.4g}" if matrix.signed else f"{score:.4g}"


def _cut(piece: Piece) -> str:
    text = piece_name(piece)
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
