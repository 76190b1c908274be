"""The result of `embgrad.attribute`: how much each position contributes to each example's objective."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.common.arrays import as_asked
from embgrad.common.metrics import length
from embgrad.common.text import visible
from embgrad.errors import EmbgradError, did_you_mean
from embgrad.results.file_format import write_results
from embgrad.results.words import Word, words_of_examples

__all__ = ["Attribution", "Attributions"]


@dataclass(frozen=True, eq=False)
class Attribution:
    """The contributions of positions to each example's objective L, by one method.

    Attributes:
        values: the contributions of single dimensions, shape (example, position, dim), in the model's dtype, float32 or float64;
            None where the method has none, such as `Occlusion`.
        scores: the contributions of positions, float64, shape (example, position): the sum of `values` over dim, for `Saliency`
            and `SmoothGrad` of it their L2 norm.
        objective: L of each example, float64, shape (example,).
        baseline_objective: L of each example at the baseline, likewise; None where the method has no single baseline.
        delta: the error of completeness, likewise: the sum of an example's contributions minus what they should add up to,
            `objective - baseline_objective`; None where a method does not promise that.
        ids: the batch's ids, int64, shape (example, position).
        mask: 1 at real positions, int64, likewise; None where none was given.
        types: segment numbers, likewise.
        tokens: the tokens' texts, one tuple for each example; None where they are not known.
        words_of: for each position the number of its word, -1 for none; None where the tokenizer returned none.
        provenance: the versions, the model, the objective, the point, the method with its arguments, and more, as
            JSON-compatible values.
    """

    values: np.ndarray | None
    scores: np.ndarray
    objective: np.ndarray
    baseline_objective: np.ndarray | None
    delta: np.ndarray | None
    ids: np.ndarray
    mask: np.ndarray | None
    types: np.ndarray | None
    tokens: tuple[tuple[str, ...], ...] | None
    words_of: np.ndarray | None
    provenance: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The scores' shape, (examples, positions)."""
        return tuple(self.scores.shape)

    @property
    def method(self) -> str:
        """The name of the method's class."""
        return str(self.provenance["method"]["class"])

    @property
    def real(self) -> np.ndarray:
        """A bool array, shape (example, position): true at real positions, everywhere without a mask."""
        return np.ones(self.ids.shape, bool) if self.mask is None else self.mask.astype(bool)

    def __repr__(self) -> str:
        source = self.provenance
        delta = "" if self.delta is None else f", |delta| ≤ {np.abs(self.delta).max():.2g}"
        return visible(
            f"Attribution({' × '.join(map(str, self.shape))}, {self.method} at {source.get('point')!r} of "
            f"{source.get('model')} ({source.get('backend')}), norm {length(self.scores):.4g}{delta})"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the scores, for `np.asarray` and all NumPy functions: the array itself, unless a copy is requested."""
        return as_asked(self.scores, dtype, copy)

    def words(self) -> list[list[Word]]:
        """Return the words of each example with their scores; sub-word tokens are merged, padding is skipped.

        A word's score is the sum of its tokens' scores, for `Saliency` and `SmoothGrad` of it the root of their sum of squares.
        Each special token is a word. Tokens are grouped as in `EmbeddingGradients.words`.

        Raises:
            EmbgradError: the tokens are not known.
        """
        if self.tokens is None:
            raise EmbgradError(
                "the tokens of this attribution are not known: build the batch with embgrad.encode(texts, tokenizer), or pass "
                "tokens=... to embgrad.TokenBatch"
            )
        method = self.provenance["method"]
        merge = length if method.get("of", method)["class"] == "Saliency" else np.sum
        return words_of_examples(self.tokens, self.words_of, self.real, self.scores, merge)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the attribution to a safetensors file, which `embgrad.load` reads back bit for bit.

        Args:
            path: the file's path; its folder must exist.

        Raises:
            EmbgradError: the provenance cannot be stored as JSON.
            OSError: the file cannot be written.
        """
        write_results({"": self}, path, single=True)


class Attributions(Mapping[str, Attribution]):
    """Attributions of one batch by several methods, by name."""

    def __init__(self, attributions: Mapping[str, Attribution]) -> None:
        self._attributions = dict(attributions)

    def __getitem__(self, name: str) -> Attribution:
        if name not in self._attributions:
            raise KeyError(f"no attribution {name!r}.{did_you_mean(str(name), self._attributions)}")
        return self._attributions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributions)

    def __len__(self) -> int:
        return len(self._attributions)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the attributions to a safetensors file, which `embgrad.load` reads back, see `Attribution.save`."""
        write_results(self, path, single=False)

    def __repr__(self) -> str:
        return "\n".join(f"{visible(name)}: {attribution!r}" for name, attribution in self.items())
