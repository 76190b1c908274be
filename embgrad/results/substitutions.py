"""The result of `embgrad.substitutions`: for each position the other tokens that would change the objective most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from embgrad.common.options import count_or_none
from embgrad.common.text import visible
from embgrad.common.token_text import token_text
from embgrad.display.colours import shade
from embgrad.display.html import FAINT, SMALL, Html, cell, colour, tag
from embgrad.display.lines import examples_of, first_of
from embgrad.results.file_format import Saved
from embgrad.results.table_rows import substitution_columns
from embgrad.results.tabular import TabularByChoice

__all__ = ["Substitution", "Substitutions", "lines_of"]

#: How many replacements of a position are shown where the user names no number.
SHOWN: Final = 5

_CELL: Final = "text-align:left;padding:.1em .6em"


class Substitution(NamedTuple):
    """A token of a text and another that may replace it.

    Attributes:
        position: the position of the token.
        before: the token in place; None where it is not known.
        id: the id of the other token.
        after: the other token; None where it is not known.
        score: the estimated change of L.
    """

    position: int
    before: str | None
    id: int
    after: str | None
    score: float


@dataclass(frozen=True, eq=False)
class Substitutions(TabularByChoice, Saved):
    """The ids that would change each example's objective L most, for each position, by the first-order estimate.

    A position that was not searched, such as padding, has no ids. Where there is no id, and after a position's last, `ids` is -1
    and `scores` the worst: -inf where the goal is to maximise, inf where it is to minimise.

    Attributes:
        ids: the ids, best first, int64, shape (example, position, top).
        scores: the estimated changes of L, (table[id] - e) · ∂L/∂e, float64, likewise.
        objective: L of each example, float64, shape (example,).
        original: the ids in place, int64, shape (example, position).
        mask: 1 at real positions, int64, likewise; None where none was given.
        tokens: the tokens in place, one tuple for each example; None where they are not known.
        names: the tokens of `ids` by id, as the tokenizer writes them; None where no tokenizer is known.
        provenance: the versions, the model, the objective, the goal, and more, as JSON-compatible values.
    """

    _TABLES: ClassVar[Mapping[str, Any]] = {"tokens": substitution_columns}

    ids: np.ndarray
    scores: np.ndarray
    objective: np.ndarray
    original: np.ndarray
    mask: np.ndarray | None
    tokens: tuple[tuple[str, ...], ...] | None
    names: Mapping[int, str] | None
    provenance: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `ids`, (examples, positions, top)."""
        return tuple(self.ids.shape)

    @property
    def searched(self) -> np.ndarray:
        """The positions that have ids, bool, shape (example, position)."""
        return np.asarray(self.ids[..., 0] >= 0)

    @property
    def goal(self) -> str:
        """The goal: "maximize" for the ids that raise L most, "minimize" for those that lower it most."""
        return str(self.provenance["goal"])

    def best(self, count: int = 10) -> list[list[Substitution]]:
        """Return for each example the best substitutions of all its positions, best first.

        Args:
            count: how many; fewer where there are no more.

        Raises:
            BatchError: `count` is not a whole number of at least 1.
        """
        count = count_or_none(count, "count") or self.ids[0].size
        sign = 1 if self.goal == "maximize" else -1
        chosen = []
        for example, scores in enumerate(self.scores):
            order = np.argsort(-sign * scores, axis=None, kind="stable")[:count]
            places = np.stack(np.unravel_index(order, scores.shape), 1)
            chosen.append(
                [self._substitution(example, *place) for place in places.tolist() if self._has(example, place)]
            )
        return chosen

    def _has(self, example: int, place: list[int]) -> bool:
        return bool(self.ids[example, place[0], place[1]] >= 0)

    def _substitution(self, example: int, position: int, rank: int) -> Substitution:
        id_ = int(self.ids[example, position, rank])
        return Substitution(
            position,
            None if self.tokens is None else self.tokens[example][position],
            id_,
            None if self.names is None else self.names.get(id_),
            float(self.scores[example, position, rank]),
        )

    def of_position(self, example: int, position: int, count: int) -> list[Substitution]:
        """Return the first substitutions at a position, best first, at most `count`."""
        ranks = np.flatnonzero(self.ids[example, position, :count] >= 0).tolist()
        return [self._substitution(example, position, rank) for rank in ranks]

    def show(self, examples: Any = None, *, most: int = SHOWN) -> None:
        """Print for each position the token and its best replacements with the estimated changes of L.

        Args:
            examples: the index of an example, or a list or slice of indices; None for all.
            most: how many replacements of a position.

        Raises:
            BatchError: `most` is not a whole number of at least 1.
            EmbgradError: there is no such example.
        """
        most = count_or_none(most, "most") or self.shape[2]
        for example in examples_of(examples, len(self.ids)):
            print("\n".join(lines_of(self, example, most)))

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: the first examples."""
        shown, note = first_of(self.searched.sum(1), "show() prints all")
        return cell([_table_html(self, example) for example in range(shown)], notes=[note] * bool(note))

    def __repr__(self) -> str:
        source = self.provenance
        searched = int(self.searched.sum())
        best = [row[0].score for row in self.best(1) if row]
        change = f"; the best change L by {min(best):+.4g} to {max(best):+.4g}, as estimated" if best else ""
        return visible(
            f"Substitutions({' × '.join(map(str, self.shape))}, {searched} positions searched to {self.goal} "
            f"{source['objective']['class']} of {source.get('model')} ({source.get('backend')}){change})"
        )


def _describe(substitution: Substitution) -> str:
    name = f"id {substitution.id}" if substitution.after is None else token_text(substitution.after)
    return f"{name} {substitution.score:+.3g}"


def _rows(result: Substitutions, example: int, most: int) -> list[tuple[int, str, list[Substitution]]]:
    """Return the searched positions of an example, each with its token and its best substitutions, at most `most`."""
    rows = []
    for position in np.flatnonzero(result.searched[example]).tolist():
        token = None if result.tokens is None else result.tokens[example][position]
        name = f"id {result.original[example, position]}" if token is None else token_text(token)
        rows.append((position, name, result.of_position(example, position, most)))
    return rows


def lines_of(result: Substitutions, example: int, most: int = SHOWN) -> list[str]:
    """Return the lines of an example that `show` prints: a summary, and each searched position with its replacements."""
    rows = [
        [str(position), name, "→", *map(_describe, found)] for position, name, found in _rows(result, example, most)
    ]
    count = max((len(row) for row in rows), default=0)
    widths = [max(len(row[column]) for row in rows if len(row) > column) for column in range(count)]
    body = ["  ".join([row[0].rjust(widths[0]), *map(str.ljust, row[1:], widths[1:])]) for row in rows]
    return [_summary(result, example), *(f"  {line.rstrip()}" for line in body)]


def _summary(result: Substitutions, example: int) -> str:
    objective = result.provenance["objective"]["class"]
    return visible(
        f"example {example}: {objective} = {result.objective[example]:.4g}, estimated changes by other tokens, "
        f"to {result.goal}"
    )


def _table_html(result: Substitutions, example: int) -> Html:
    """Return the summary of an example and a row of coloured replacements for each searched position."""
    rows = _rows(result, example, SHOWN)
    largest = max((abs(each.score) for *_, found in rows for each in found), default=0.0)
    body = [
        tag(
            "tr",
            tag("td", position, style=f"{_CELL};{FAINT}"),
            tag("th", name, style=_CELL),
            [
                colour(_describe(each), *shade(each.score, largest, True), _CELL, "td", title=f"id {each.id}")
                for each in found
            ],
        )
        for position, name, found in rows
    ]
    return tag(
        "div", tag("div", _summary(result, example), style=SMALL), tag("table", body, style="border-collapse:collapse")
    )
