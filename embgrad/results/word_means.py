"""The mean score of each word over many texts, with counts and confidence intervals, from sums that are added up by batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.options import count_or_none
from embgrad.common.text import visible
from embgrad.errors import EmbgradError, brief
from embgrad.results.tabular import Columns, frame, text_column

__all__ = ["WordMean", "WordMeans", "word_means"]

#: How many words of either end are shown.
SHOWN: Final = 5


class WordMean(NamedTuple):
    """The mean score of a word.

    Attributes:
        word: the word.
        occurrences: how often it occurs.
        mean: the mean of its scores.
        low: the lower end of the confidence interval of the mean; NaN where the word occurs once.
        high: the upper end, likewise.
    """

    word: str
    occurrences: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class WordMeans:
    """The mean scores of words over a corpus, the highest first; an iterable of `WordMean`.

    An interval is mean ± t · s / √count, with s the standard deviation of the word's scores (count − 1 in the denominator) and t
    the quantile of Student's distribution with count − 1 degrees of freedom (NIST/SEMATECH, "e-Handbook of Statistical Methods",
    section 1.3.5.2; the quantile by Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964, 26.7.5, whose error is
    0.2 % at most for 95 %). It takes a word's occurrences as independent: where they stand in few texts it is too narrow.

    Attributes:
        words: the words.
        counts: how often each occurs, int64, (word,).
        means: the mean of its scores, float64, (word,).
        deviations: their standard deviation, likewise; NaN where a word occurs once.
        low: the lower end of the confidence interval of the mean, likewise.
        high: the upper end, likewise.
        confidence: the confidence of the intervals.
        left_out: the number of words that occur less often than `min_count`.
    """

    words: tuple[str, ...]
    counts: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    low: np.ndarray
    high: np.ndarray
    confidence: float
    left_out: int

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[WordMean]:
        columns = (self.counts, self.means, self.low, self.high)
        return map(WordMean._make, zip(self.words, *(values.tolist() for values in columns), strict=True))

    def __repr__(self) -> str:
        rows, cut = list(self), max(SHOWN, len(self) - SHOWN)
        lines = [
            f"{title:8}{', '.join(_describe(row) for row in part)}"
            for title, part in (("highest", rows[:SHOWN]), ("lowest", rows[cut:]))
            if part
        ]
        few = f", {self.left_out} that are rarer left out" if self.left_out else ""
        title = f"WordMeans({len(self)} words of {int(self.counts.sum())} occurrences{few}, {self.confidence:.4g} intervals)"
        return "\n".join(map(visible, [title, *lines]))

    def _columns(self) -> Columns:
        return {
            "word": text_column(self.words),
            "count": self.counts,
            "mean": self.means,
            "deviation": self.deviations,
            "low": self.low,
            "high": self.high,
        }

    def to_pandas(self) -> Any:
        """Return the words as a `pandas.DataFrame` with the columns word, count, mean, deviation, low and high.

        Raises:
            EmbgradError: pandas is not installed (`pip install 'embgrad[table]'`).
        """
        return frame(self._columns())


def _describe(row: WordMean) -> str:
    return f"{row.word} {row.mean:.3g} ({row.occurrences})"


def word_means(tables: Iterable[Columns], min_count: Any = 1, confidence: Any = 0.95) -> WordMeans:
    """Return the mean score of each word of some tables by words; one table at a time is in memory.

    Counts, means and sums of squares of two tables are put together as in Chan, Golub and LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances", 1979.

    Args:
        tables: the tables, with the columns `word` and `score`.
        min_count: words that occur less often are left out.
        confidence: the confidence of the intervals, between 0 and 1.

    Raises:
        BatchError: `min_count` is not a whole number of at least 1.
        EmbgradError: `confidence` is not a number between 0 and 1.
    """
    least = count_or_none(min_count, "min_count") or 1
    is_number = isinstance(confidence, (int, float)) and not isinstance(confidence, bool)
    if not is_number or not 0 < confidence < 1:
        raise EmbgradError(f"confidence is {brief(confidence)}: expected a number between 0 and 1, such as 0.95")
    totals: dict[str, Sums] = {}
    for table in tables:
        for word, of_table in _sums_of(table):
            totals[word] = _join(totals.get(word, (0, 0.0, 0.0)), of_table)
    frequent = {word: total for word, total in totals.items() if total[0] >= least}
    words = sorted(frequent, key=lambda word: (-frequent[word][1], word))
    counts, means, squares = (np.array([frequent[word][axis] for word in words]) for axis in range(3))
    counts = counts.astype(np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        deviations = np.sqrt(squares / (counts - 1))
        half = quantiles_of_t(counts - 1, (1 + float(confidence)) / 2) * deviations / np.sqrt(counts)
    return WordMeans(
        tuple(words),
        counts,
        means,
        deviations,
        means - half,
        means + half,
        float(confidence),
        len(totals) - len(frequent),
    )


#: How often a word occurs, the mean of its scores, and the sum of squares about the mean.
Sums = tuple[int, float, float]


def _sums_of(table: Columns) -> Iterator[tuple[str, Sums]]:
    """Yield each word of a table with its sums."""
    words, owners = np.unique(table["word"].astype(str), return_inverse=True)
    counts = np.bincount(owners, minlength=len(words))
    means = np.bincount(owners, table["score"], len(words)) / counts
    squares = np.bincount(owners, (table["score"] - means[owners]) ** 2, len(words))
    yield from zip(words.tolist(), zip(counts.tolist(), means.tolist(), squares.tolist(), strict=True), strict=True)


def _join(one: Sums, other: Sums) -> Sums:
    """Return the sums of the occurrences of both."""
    total, apart = one[0] + other[0], other[1] - one[1]
    share = other[0] / total
    return total, one[1] + apart * share, one[2] + other[2] + apart**2 * one[0] * share


def quantiles_of_t(degrees: np.ndarray, share: float) -> np.ndarray:
    """Return the quantile of Student's distribution for each number of degrees of freedom; NaN for 0.

    It is exact for 1 and 2, and from 3 on the expansion 26.7.5 of Abramowitz and Stegun.
    """
    x = NormalDist().inv_cdf(share)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    few = {0: math.nan, 1: math.tan(math.pi * (share - 0.5)), 2: (2 * share - 1) / math.sqrt(2 * share * (1 - share))}
    many = x + sum(term / np.maximum(degrees, 1.0) ** power for power, term in enumerate(terms, 1))
    for number, value in few.items():
        many = np.where(degrees == number, value, many)
    return np.asarray(many)
