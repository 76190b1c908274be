"""The result of `embgrad.tables.influence`: the training examples that move the objectives of test examples most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from embgrad.common.options import count_or_none
from embgrad.common.text import visible
from embgrad.display.lines import examples_of
from embgrad.errors import BatchError
from embgrad.results.table_rows import influence_columns
from embgrad.results.tabular import TabularByChoice

__all__ = ["Influence"]

#: How many training examples of each kind are shown where the user names no number.
SHOWN: Final = 5

#: The most characters of a training text that a line shows.
WIDTH: Final = 70


@dataclass(frozen=True, eq=False)
class Influence(TabularByChoice):
    """The training examples whose gradient steps change the objectives L of test examples most.

    A step of gradient descent on a training example at a checkpoint, with the learning rate of the checkpoint, lowers L of a test
    example by its part of the score, up to terms of second order, as far as the step changes rows of the table. Steps on
    proponents lower a loss, and those on opponents raise it.

    Attributes:
        proponents: the indices of the training examples with the highest scores, the highest first, int64, shape
            (test example, top).
        proponent_scores: their scores, float64, likewise.
        opponents: those with the lowest scores, the lowest first.
        opponent_scores: their scores.
        count: the number of training examples.
        provenance: the versions, the model, the objective, the learning rates, and more, as JSON-compatible values.
    """

    _TABLES: ClassVar[Mapping[str, Any]] = {"pairs": influence_columns}

    proponents: np.ndarray = field(repr=False)
    proponent_scores: np.ndarray = field(repr=False)
    opponents: np.ndarray = field(repr=False)
    opponent_scores: np.ndarray = field(repr=False)
    count: int
    provenance: Mapping[str, Any] = field(repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of test examples and of training examples."""
        return len(self.proponents), self.count

    def show(self, texts: Sequence[Any] | None = None, examples: Any = None, *, most: int = SHOWN) -> None:
        """Print the first proponents and opponents of test examples, with their scores.

        Args:
            texts: the training texts, of which the beginnings are printed; None for their indices alone.
            examples: the index of a test example, or a list or slice of indices; None for all.
            most: how many of each.

        Raises:
            BatchError: `most` is not a whole number of at least 1, or `texts` are not as many as the training examples.
            EmbgradError: there is no such example.
        """
        most = count_or_none(most, "most") or self.count
        if texts is not None and len(texts) != self.count:
            raise BatchError(
                f"texts has {len(texts)} entries, and {self.count} examples were trained on: pass all of these"
            )
        for example in examples_of(examples, len(self.proponents)):
            print("\n".join(self._lines(example, texts, most)))

    def _lines(self, example: int, texts: Sequence[Any] | None, most: int) -> list[str]:
        lines = [f"test example {example}"]
        for kind in ("proponents", "opponents"):
            lines.append(f"  {kind}")
            scores = getattr(self, f"{kind[:-1]}_scores")[example, :most].tolist()
            for number, score in zip(getattr(self, kind)[example, :most].tolist(), scores, strict=True):
                text = "" if texts is None else visible(str(texts[number]))
                text = text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
                lines.append(f"  {score:+11.4g}  {number:>6}  {text}".rstrip())
        return lines

    def __repr__(self) -> str:
        tests, count = self.shape
        source = self.provenance
        return visible(
            f"Influence({tests} test × {count} training examples, the first {self.proponents.shape[1]} of each kind, by "
            f"{source['objective']['class']} of {source.get('model')} ({source.get('backend')}))"
        )
