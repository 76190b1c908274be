"""Lines of searches: the texts before and after, with their changed tokens marked, and L by step, alike in every output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.text import visible
from embgrad.display.colours import LEVELS
from embgrad.display.html import FAINT, Html, cell, colour, page, prose, tag, text_html
from embgrad.display.lines import Line, Piece, examples_of, first_of
from embgrad.display.pictures import objective_by_step
from embgrad.display.terminal import changes_legend, paint, print_parts
from embgrad.inputs.batch import TokenBatch
from embgrad.results.pieces import pieces_of
from embgrad.results.search_changes import Change, names_of

__all__ = ["DisplayedSearch", "count_of", "search_parts"]

#: The most letters of an argument of the objective in a title; the labels of a dataset, or a vector, have more.
MOST_LETTERS: Final = 24

#: The width and height of the picture of L by step in its own units, and its margin.
WIDTH, HEIGHT, MARGIN = 150.0, 34.0, 4.0


class SearchLine(NamedTuple):
    """One example of a search.

    Attributes:
        outcome: whether the stopping rule is met, in words; "" where there is none.
        summary: L before and after, and what it took, in words.
    """

    example: int
    before: Line
    after: Line
    outcome: str
    summary: str


class DisplayedSearch:
    """A base class of searches that can be displayed."""

    before: Any
    history: Any
    provenance: Mapping[str, Any]

    @property
    def _task(self) -> str:
        return _task_of(self.provenance, whole=False)

    @property
    def _title(self) -> str:
        search: Any = self
        title = _task_of(self.provenance, whole=True)
        if search.trigger is not None:
            names = names_of(search.batch)
            title += f"; trigger: {' '.join(names.get(number, str(number)) for number in search.trigger.tolist())}"
        return visible(title)

    def _lines(self, examples: Any) -> list[SearchLine]:
        return _lines_of(self, examples_of(examples, len(self.before)))

    def table(self, examples: Any = None) -> str:
        """Return a row for each example: L before and after, changed tokens, evaluations, gradients, and whether the rule is met.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all.

        Raises:
            EmbgradError: there is no such example.
        """
        search: Any = self
        rows = [["example", "L before", "L", "changed", "evaluations", "gradients", "met"]]
        for line in self._lines(examples):
            example, history = line.example, search.history
            numbers = (search.changed[example], history.evaluations[-1, example], history.gradients[-1, example])
            values = (search.objective_before[example], search.objective[example])
            outcome = {"": "–", "met": "yes", "not met": "no", "met before": "before"}[line.outcome]
            rows.append([str(example), *(f"{value:.4g}" for value in values), *map(str, numbers), outcome])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)

    def show(self, examples: Any = None) -> None:
        """Print the texts before and after in the terminal: changed tokens in colours, or where there are none in brackets.

        A token that was replaced or deleted is blue, or in `[-…-]`; one that was put in is orange, or in `{+…+}`. Colours need
        the package Rich and a terminal of 256 colours, and respect the variable `NO_COLOR`. The arguments and errors are those of
        `table`.
        """
        indices = examples_of(examples, len(self.before))
        print_parts(lambda coloured: search_parts(self, indices, coloured))

    def to_html(self, examples: Any = None) -> str:
        """Return a page of HTML: the texts before and after, L by step as a line, and the figures of `figures`.

        A token that was replaced or deleted is blue, one that was put in orange; a pointer on it shows both. The dashed line is
        the L at which the search of an example stops. The page needs nothing else, has no scripts, and escapes the texts;
        write it to a file in UTF-8. The arguments and errors are those of `table`.
        """
        search: Any = self
        return page(self._title, tag("h1", self._title), search.figures()._table_html(), self._html(examples))

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: the first examples."""
        shown, note = first_of(self.before.real.sum(1), "to_html() returns all")
        return cell(self._html(slice(shown)), heading=self._title, notes=[note] * bool(note))

    def _html(self, examples: Any) -> list[Html]:
        legend = [_legend(-1, "replaced or deleted"), " ", _legend(1, "put in")]
        return [
            tag("div", legend, style="font-size:.8em;margin-top:.6em"),
            *(_example_html(self, line) for line in self._lines(examples)),
        ]

    def plot(self, examples: Any = None, *, ax: Any = None) -> Any:
        """Draw L of the best text by step with Matplotlib, a line for each example.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all.
            ax: the axes to draw on; None makes a new figure with `matplotlib.pyplot.subplots`. It is not shown: end with
                `plt.show()` outside of notebooks.

        Returns:
            The `matplotlib.axes.Axes`.

        Raises:
            EmbgradError: Matplotlib is not installed (`pip install 'embgrad[plot]'`), or there is no such example.
        """
        indices = examples_of(examples, len(self.before))
        bounds = {bound for example in indices if (bound := _find_bound(self, example)) is not None}
        return objective_by_step({index: self.history.objective[:, index] for index in indices}, bounds, ax)


def search_parts(search: Any, examples: Sequence[int], coloured: bool) -> Iterator[tuple[str, str]]:
    """Yield a `Search` in the terminal, as texts with their styles in Rich's words."""
    yield f"{search.figures().title}\n", "bold"
    for line in _lines_of(search, examples):
        outcome = f"; {line.outcome}" if line.outcome else ""
        yield f"example {line.example}: {line.summary}{outcome}\n", "dim"
        for name, side in (("before", line.before), ("after ", line.after)):
            yield f"{name}  ", "dim"
            yield from paint(side, coloured)
            yield "\n", ""
    yield f"{changes_legend(coloured)}\n", "dim"


def _lines_of(search: Any, examples: Sequence[int]) -> list[SearchLine]:
    """Return the lines of examples of a `Search`."""
    names, changes = names_of(search.before, search.batch), search.changes()
    sides = [_pieces(batch, names, examples) for batch in (search.before, search.batch)]
    lines = []
    for example, *texts in zip(examples, *sides, strict=True):
        before = {change.position_before: change for change in changes[example]}
        after = {change.position: change for change in changes[example]}
        old, new = (
            Line("", "", example, tuple(_mark(piece, places, score) for piece in pieces), True)
            for pieces, places, score in zip(texts, (before, after), (-1.0, 1.0), strict=True)
        )
        lines.append(SearchLine(example, old, new, _outcome(search, example), _summary(search, example)))
    return lines


def _mark(piece: Piece, changes: Mapping[int | None, Change], score: float) -> Piece:
    """Return a token of one of the two texts, with the change that it is part of."""
    change = changes.get(piece.positions[0])
    if change is None:
        return piece._replace(positions=())
    mark = {"inserted": "added", "deleted": "deleted"}.get(change.kind, "added" if score > 0 else "replaced")
    title = {
        "inserted": f"inserted at position {change.position}",
        "deleted": f"deleted from position {change.position_before}",
        "substituted": f"position {change.position}: {change.before} → {change.after}",
    }[change.kind]
    return piece._replace(score=score, mark=mark, title=title)


def _task_of(provenance: Mapping[str, Any], *, whole: bool) -> str:
    """Return the method and the goal in words, such as "GCG, maximize Logit"; if `whole` with arguments and the stopping rule."""
    method, objective = (dict(provenance.get(name) or {}) for name in ("method", "objective"))
    name = f"{provenance.get('goal', 'search')} {objective.pop('class', '?')}"
    if not whole:
        return f"{method.get('class', '?')}, {name}"
    shown = {key: repr(value) for key, value in objective.items() if value is not None}
    arguments = ", ".join(f"{key}={text if len(text) <= MOST_LETTERS else '…'}" for key, text in shown.items())
    until = provenance.get("until")
    stops = (
        "" if until is None else f" until {until:.4g}" if np.ndim(until) == 0 else " until a number for each example"
    )
    return f"{method.get('class', '?')}, {name}({arguments}){stops}"


def count_of(number: int, what: str) -> str:
    """Return a number and what it counts, such as "1 gradient" and "2 gradients"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _pieces(batch: TokenBatch, names: Mapping[int, str], examples: Sequence[int]) -> list[list[Piece]]:
    tokens = batch.tokens
    if tokens is None and names:
        tokens = tuple(tuple(names.get(id_, str(id_)) for id_ in row) for row in batch.ids.tolist())
    scores = np.zeros(batch.shape)
    side = SimpleNamespace(ids=batch.ids, real=batch.real, tokens=tokens, parts=batch.parts, scores=scores)
    return pieces_of(side, "tokens", examples, True)


def _outcome(search: Any, example: int) -> str:
    if search.success is None:
        return ""
    if search.success_before is not None and search.success_before[example]:
        return "met before"
    return "met" if search.success[example] else "not met"


def _summary(search: Any, example: int) -> str:
    history = search.history
    return visible(
        f"L = {search.objective_before[example]:.4g} → {search.objective[example]:.4g}, "
        f"{count_of(int(search.changed[example]), 'token')} changed, "
        f"{count_of(int(history.evaluations[-1, example]), 'evaluation')}, "
        f"{count_of(int(history.gradients[-1, example]), 'gradient')}"
    )


def _find_bound(search: Any, example: int) -> float | None:
    """Return L at which the search of an example stops; None where there is no rule."""
    until = search.provenance.get("until")
    return None if until is None else float(np.broadcast_to(until, len(search.before))[example])


def _legend(score: int, text: str) -> Html:
    return colour(text, "p" if score > 0 else "m", LEVELS, "padding:0 .3em")


def _example_html(search: Any, line: SearchLine) -> Html:
    outcome = ["; ", tag("strong", line.outcome)] if line.outcome else ""
    summary = tag(
        "span", f"example {line.example}: {line.summary}", outcome, style=f"{FAINT};flex:1 1 16em;min-width:0"
    )
    picture = _course(search.history.objective[:, line.example].tolist(), _find_bound(search, line.example))
    head = tag("div", summary, picture, style="font-size:.8em;display:flex;flex-wrap:wrap;gap:0 1em;align-items:center")
    texts = [
        tag(
            "div",
            tag("span", name, style=f"flex:none;width:4em;font-size:.8em;line-height:2.25;{FAINT}"),
            text_html(side, "flex:1;min-width:0;"),
            style="display:flex;gap:.6em",
        )
        for name, side in (("before", line.before), ("after", line.after))
    ]
    return tag("div", head, texts, _found_html(search, line.example), style="margin:1em 0")


def _found_html(search: Any, example: int) -> Any:
    if search.texts is None:
        return None
    code = tag(
        "code",
        prose(search.texts[example]),
        dir="auto",
        style="display:block;white-space:pre-wrap;overflow-wrap:anywhere",
    )
    summary = tag("summary", "the text that was found", style=f"cursor:pointer;{FAINT}")
    return tag("details", summary, code, style="font-size:.8em")


def _course(values: Sequence[float], until: float | None) -> Any:
    """Return L by step as a line in SVG, with the L of the stopping rule as a dashed one; None where there are no steps."""
    drawn = [value for value in (*values, *([] if until is None else [until])) if math.isfinite(value)]
    if len(values) < 2 or not drawn:
        return None
    low, high = min(drawn), max(drawn)
    step = (WIDTH - 2 * MARGIN) / (len(values) - 1)

    def height(value: float) -> float:
        # The difference of halves is finite.
        share = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share

    points = [(MARGIN + step * number, height(value)) for number, value in enumerate(values) if math.isfinite(value)]
    dashes = {"stroke": "currentColor", "stroke_dasharray": "3 3", "opacity": ".6"}
    bound = None if until is None else tag("path", d=f"M0 {height(until):.1f}H{WIDTH:g}", **dashes)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    line = tag("polyline", points=path, fill="none", stroke="currentColor", stroke_width="1.5")
    end = [tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="2.5", fill="currentColor") for x, y in points[-1:]]
    steps = f"{len(values) - 1} step{'s' if len(values) > 2 else ''}"
    name = f"L by step: {values[0]:.4g} at first, {values[-1]:.4g} after {steps}"
    return tag(
        "svg",
        tag("title", name),
        bound,
        line,
        end,
        role="img",
        aria_label=name,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        width=f"{WIDTH:g}",
        height=f"{HEIGHT:g}",
        style="max-width:100%;flex:none",
    )
