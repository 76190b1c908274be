"""The result of `embgrad.substitutions`: for each position the other tokens that would change the objective most."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.options import count_or_none
from embgrad.common.text import visible
from embgrad.results.file_format import write_results
from embgrad.results.pieces import examples_of
from embgrad.results.substitution_display import SHOWN, fragment, lines

__all__ = ["Substitution", "Substitutions"]

#: The most examples in a notebook's cell.
MOST_EXAMPLES: Final = 10


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
class Substitutions:
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
            print("\n".join(lines(self, example, most)))

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: the first examples."""
        more = len(self.ids) - MOST_EXAMPLES
        note = f"the first {MOST_EXAMPLES} of {len(self.ids)} examples; show() prints all" if more > 0 else ""
        return fragment(self, range(min(len(self.ids), MOST_EXAMPLES)), SHOWN, note)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a safetensors file, which `embgrad.load` reads back bit for bit.

        Args:
            path: the file's path; its folder must exist.

        Raises:
            EmbgradError: the provenance cannot be stored as JSON.
            OSError: the file cannot be written.
        """
        write_results({"": self}, path, single=True)

    def __repr__(self) -> str:
        source = self.provenance
        searched = int(self.searched.sum())
        best = [row[0].score for row in self.best(1) if row]
        change = f"; the best change L by {min(best):+.4g} to {max(best):+.4g}, as estimated" if best else ""
        return visible(
            f"Substitutions({' × '.join(map(str, self.shape))}, {searched} positions searched to {self.goal} "
            f"{source['objective']['class']} of {source.get('model')} ({source.get('backend')}){change})"
        )
