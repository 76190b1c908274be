"""Results of consecutive batches as tables of pandas, a batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from embgrad.errors import EmbgradError, brief
from embgrad.results.tabular import (
    Columns,
    TabularGradients,
    columns_of_tokens,
    expect_units,
    frame,
    import_library,
    stack,
)

__all__ = ["TabularResults", "columns_in_turn"]


class TabularResults(ABC):
    """A base class of iterables of the results of consecutive batches, of which one at a time is in memory."""

    def to_pandas(self, *, kind: str | None = None, by: str = "tokens", special: bool = True) -> Iterator[Any]:
        """Return an iterator over a `pandas.DataFrame` for each result, with a row for each token or word; see the page "Tables".

        The examples are numbered through all results, and those of several points have a column `point` in front.

        Args:
            kind: the saliency of gradients, "norm", the default, or "dot"; None for attributions.
            by: "tokens" or "words".
            special: whether special tokens have rows; padding has none.

        Raises:
            EmbgradError: pandas is not installed (`pip install 'embgrad[table]'`), or an option is not valid, see the results'
                own `to_pandas`; or results were taken from the stream already, so that their rows would be missing.
        """
        import_library("pandas", "to_pandas")
        return map(frame, self._tables(kind, by, special))

    def _tables(self, kind: str | None, by: str, special: bool) -> Iterator[Columns]:
        expect_units(by, special)
        return columns_in_turn(self._from_the_first(), kind, by, special)

    @abstractmethod
    def _from_the_first(self) -> Iterable[Any]:
        """Return the results from the first on."""


def columns_in_turn(results: Iterable[Any], kind: str | None, by: str, special: bool) -> Iterator[Columns]:
    """Yield the columns of each result, or of the results by point, with the examples numbered through all of them.

    Args:
        kind: the saliency of gradients; None for "norm", and for attributions.
    """
    done = 0
    for result in results:
        named: Mapping[str, Any] = result if isinstance(result, dict) else {"": result}
        tables = {name: _columns_of(each, kind, by, special) for name, each in named.items()}
        columns = tables[""] if "" in tables else stack("point", tables)
        yield {**columns, "example": columns["example"] + done}
        done += _count(next(iter(named.values())))


def _columns_of(result: Any, kind: str | None, by: str, special: bool) -> Columns:
    if isinstance(result, TabularGradients):
        return columns_of_tokens(result, by, special, kind="norm" if kind is None else kind)
    if kind is not None:
        raise EmbgradError(
            f"kind is {brief(kind)}, but the results are attributions, which have one score for each token: omit it"
        )
    return columns_of_tokens(result, by, special)


def _count(result: Any) -> int:
    """Return the number of examples of a result."""
    return len(result.ids) if result.objective.ndim == 0 else len(result.objective)
