"""The result of `embgrad.attribute_pairs`: how much each pair of tokens contributes to the similarity of two texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.common.arrays import as_asked
from embgrad.common.metrics import length
from embgrad.common.text import visible
from embgrad.results.attribution import Attribution
from embgrad.results.displayed import DisplayedPairs
from embgrad.results.file_format import Saved
from embgrad.results.table_rows import pair_columns
from embgrad.results.tabular import Columns, Tabular

__all__ = ["PairAttribution"]


@dataclass(frozen=True, eq=False)
class PairAttribution(DisplayedPairs, Tabular, Saved):
    """The contributions of pairs of tokens, one of each text, to the similarity of two texts.

    Attributes:
        scores: the contributions, float64, shape (pair, position of the first text, position of the second); 0 at padding.
        similarity: the similarity of both texts' encodings, float64, shape (pair,).
        explained: what an example's scores should add up to, likewise: the similarity without the part that the baselines'
            encodings have in it, ⟨f(x) - f(r), f(y) - f(s)⟩, for the cosine divided by the lengths of f(x) and f(y). By
            gradients, which have no baseline, the similarity itself, to which those of a linear encoder without a bias add up.
        delta: the error of that sum, likewise: the sum of the scores minus `explained`.
        a: the contributions of the first texts' positions, each with the whole second text, as an `Attribution`, with its
            `words`, `plot` and so on; its `objective` is `similarity`. So is `b` of the second texts.
    """

    scores: np.ndarray
    similarity: np.ndarray
    explained: np.ndarray
    delta: np.ndarray
    a: Attribution
    b: Attribution

    @classmethod
    def from_fields(cls, *, a: Mapping[str, Any], b: Mapping[str, Any], **others: Any) -> PairAttribution:
        """Return the attribution with these arguments, `a` and `b` as those of an `Attribution`."""
        return cls(a=Attribution(**a), b=Attribution(**b), **others)

    @property
    def shape(self) -> tuple[int, ...]:
        """The scores' shape, (pairs, positions of the first texts, positions of the second)."""
        return tuple(self.scores.shape)

    @property
    def method(self) -> str:
        """The name of the method's class."""
        return self.a.method

    def __repr__(self) -> str:
        source = self.a.provenance
        return visible(
            f"PairAttribution({' × '.join(map(str, self.shape))}, {self.method} of the {source['objective']['of']} at "
            f"{source.get('point')!r} of {source.get('model')} ({source.get('backend')}), norm {length(self.scores):.4g}, "
            f"|delta| ≤ {np.abs(self.delta).max():.2g})"
        )

    def _columns(self, by: Any, special: bool) -> Columns:
        return pair_columns(self, by, special)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the scores, for `np.asarray` and all NumPy functions: the array itself, unless a copy is requested."""
        return as_asked(self.scores, dtype, copy)
