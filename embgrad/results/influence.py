"""The result of `embgrad.tables.influence`: the training examples that move the objectives of test examples most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from embgrad.common.options import count_or_none
from embgrad.common.text import visible
from embgrad.common.token_text import show_token
from embgrad.display.lines import examples_of
from embgrad.errors import BatchError
from embgrad.results.file_format import Saved
from embgrad.results.table_rows import influence_columns, term_columns
from embgrad.results.tabular import TabularByChoice

__all__ = ["Influence"]

#: How many training examples of each kind are shown where the user names no number.
SHOWN: Final = 5

#: The most characters of a training text that a line shows.
WIDTH: Final = 70


@dataclass(frozen=True, eq=False)
class Influence(TabularByChoice, Saved):
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
        proponent_ids: the ids whose rows of the table carry the score of each proponent, the largest terms first, int64, shape
            (test example, top, token), -1 where there are fewer; None where tokens were not kept.
        proponent_terms: their parts of the score, float64, likewise, 0 where there is none. Those of all common ids add up to it.
        opponent_ids: the same of opponents; so is `opponent_terms`.
        names: the tokens of these ids by id; None where no tokenizer names them.
    """

    _TABLES: ClassVar[Mapping[str, Any]] = {"pairs": influence_columns, "tokens": term_columns}

    proponents: np.ndarray = field(repr=False)
    proponent_scores: np.ndarray = field(repr=False)
    opponents: np.ndarray = field(repr=False)
    opponent_scores: np.ndarray = field(repr=False)
    count: int
    provenance: Mapping[str, Any] = field(repr=False)
    proponent_ids: np.ndarray | None = field(default=None, repr=False)
    proponent_terms: np.ndarray | None = field(default=None, repr=False)
    opponent_ids: np.ndarray | None = field(default=None, repr=False)
    opponent_terms: np.ndarray | None = field(default=None, repr=False)
    names: Mapping[int, str] | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of test examples and of training examples."""
        return len(self.proponents), self.count

    def show(self, texts: Sequence[Any] | None = None, examples: Any = None, *, most: int = SHOWN) -> None:
        """Print the first proponents and opponents of test examples, with their scores, and the tokens that carry them.

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
            print("\n".join(self.lines(example, texts, most)))

    def lines(self, example: int, texts: Sequence[Any] | None = None, most: int = SHOWN) -> list[str]:
        """Return what `show` prints of a test example."""
        lines = [f"test example {example}"]
        for kind in ("proponents", "opponents"):
            lines.append(f"  {kind}")
            scores = getattr(self, f"{kind[:-1]}_scores")[example, :most].tolist()
            for rank, (number, score) in enumerate(
                zip(getattr(self, kind)[example, :most].tolist(), scores, strict=True)
            ):
                text = "" if texts is None else visible(str(texts[number]))
                text = text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
                lines.append(f"  {score:+11.4g}  {number:>6}  {text}".rstrip())
                lines += self._tokens(kind[:-1], example, rank)
        return lines

    def _tokens(self, kind: str, example: int, rank: int) -> list[str]:
        """Return a line of the tokens that carry a score, with their terms; none where they were not kept."""
        ids, terms = getattr(self, f"{kind}_ids"), getattr(self, f"{kind}_terms")
        if ids is None:
            return []
        pairs = zip(ids[example, rank].tolist(), terms[example, rank].tolist(), strict=True)
        known = [(show_token((self.names or {}).get(id_, str(id_))), term) for id_, term in pairs if id_ >= 0]
        return [" " * 23 + ", ".join(f"{token} {term:+.2g}" for token, term in known)] if known else []

    def __repr__(self) -> str:
        tests, count = self.shape
        source = self.provenance
        return visible(
            f"Influence({tests} test × {count} training examples, the first {self.proponents.shape[1]} of each kind, by "
            f"{source['objective']['class']} of {source.get('model')} ({source.get('backend')}))"
        )
