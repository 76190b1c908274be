"""The texts before and after a search as they are shown: in pieces, of which those that changed are marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.text import visible
from embgrad.inputs.batch import TokenBatch
from embgrad.results.pieces import Piece, pieces_of
from embgrad.results.search_changes import Change, names_of

__all__ = ["Marked", "SearchLine", "count_of", "lines_of", "task_of"]

#: The most letters of an argument of the objective in a title; the labels of a dataset, or a vector, have more.
MOST_LETTERS: Final = 24


class Marked(NamedTuple):
    """A token as it is shown.

    Attributes:
        piece: the token.
        change: the change that it is part of; None where it stayed.
    """

    piece: Piece
    change: Change | None


@dataclass(frozen=True)
class SearchLine:
    """One example of a search.

    Attributes:
        example: the index of the example.
        before: the tokens before.
        after: the tokens that were found.
        objective: L of the best text by step, float64, shape (step + 1,).
        until: L at which the search of the example stops; None where there is no rule.
        outcome: whether the stopping rule is met, in words; "" where there is none.
        summary: L before and after, and what it took, in words.
        text: the text that was found, to be copied; None where it is not known.
    """

    example: int
    before: tuple[Marked, ...]
    after: tuple[Marked, ...]
    objective: np.ndarray
    until: float | None
    outcome: str
    summary: str
    text: str | None


def lines_of(search: Any, examples: Sequence[int]) -> list[SearchLine]:
    """Return the lines of examples of a `Search`."""
    names, changes = names_of(search.before, search.batch), search.changes()
    sides = [_pieces(batch, names) for batch in (search.before, search.batch)]
    lines = []
    for example in examples:
        by_place: tuple[dict[int, Change], dict[int, Change]] = ({}, {})
        for change in changes[example]:
            for places, position in zip(by_place, (change.position_before, change.position), strict=True):
                if position is not None:
                    places[position] = change
        before, after = (
            tuple(Marked(piece, places.get(piece.positions[0])) for piece in side[example])
            for side, places in zip(sides, by_place, strict=True)
        )
        until = search.provenance.get("until")
        lines.append(
            SearchLine(
                example=example,
                before=before,
                after=after,
                objective=search.history.objective[:, example],
                until=None if until is None else float(np.broadcast_to(until, len(search.before))[example]),
                outcome=_outcome(search, example),
                summary=_summary(search, example),
                text=None if search.texts is None else search.texts[example],
            )
        )
    return lines


def task_of(provenance: Mapping[str, Any], *, whole: bool) -> str:
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


def _pieces(batch: TokenBatch, names: Mapping[int, str]) -> list[list[Piece]]:
    tokens = batch.tokens
    if tokens is None and names:
        tokens = tuple(tuple(names.get(id_, str(id_)) for id_ in row) for row in batch.ids.tolist())
    side = SimpleNamespace(
        ids=batch.ids, real=batch.real, tokens=tokens, parts=batch.parts, scores=np.zeros(batch.shape)
    )
    return pieces_of(side, "tokens", True)


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
