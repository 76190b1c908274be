"""Results as tables of pandas, made of columns; the package is not imported before a table is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from embgrad.common.options import expect_flag
from embgrad.errors import EmbgradError, brief, did_you_mean

__all__ = [
    *("Columns", "Tabular", "TabularByChoice", "TabularGradients", "columns_of_tokens", "expect_choice"),
    "UNITS",
    "expect_units",
    *("frame", "import_library", "join", "optional", "stack", "text_column"),
]

#: The columns of a table by name, all of one length: arrays of float64, int64, bool, or of str and None as objects. Whole numbers
#: and truth values that may be missing are masked arrays.
Columns = Mapping[str, np.ndarray]

#: The units of the rows of scores.
UNITS: Final = ("tokens", "words")

#: The units of the rows of attributions, beside named parts.
UNITS_OF_SCORES: Final = (*UNITS, "segments")


def optional(numbers: Any) -> np.ndarray:
    """Return whole numbers as a column in which those below zero are missing, as -1 is in results."""
    values = np.asarray(numbers, np.int64)
    return np.ma.MaskedArray(values, values < 0)


def text_column(texts: Sequence[str | None]) -> np.ndarray:
    """Return texts as a column; None is a missing text."""
    column = np.empty(len(texts), object)
    column[:] = texts
    return column


def join(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the parts of a column one after another; it is masked if one of them is."""
    masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
    if not masked:
        return np.concatenate(parts)
    masks = [np.ma.getmaskarray(part) for part in parts]
    return np.ma.MaskedArray(np.concatenate([np.ma.getdata(part) for part in parts]), np.concatenate(masks))


def stack(name: str, tables: Mapping[str, Columns]) -> Columns:
    """Return tables of the same columns one after another, with a first column that tells them apart."""
    first = [text for text, columns in tables.items() for _ in range(len(next(iter(columns.values()))))]
    parts = list(tables.values())
    return {name: text_column(first), **{key: join([each[key] for each in parts]) for key in parts[0]}}


def frame(columns: Columns) -> Any:
    """Return columns as a `pandas.DataFrame`.

    Raises:
        EmbgradError: pandas is not installed.
    """
    pandas = import_library("pandas", "to_pandas")
    return pandas.DataFrame({name: _pandas_column(pandas, values) for name, values in columns.items()})


def _pandas_column(pandas: Any, values: np.ndarray) -> Any:
    if values.dtype == object:
        return pandas.array(np.ma.getdata(values), dtype="string")
    if not isinstance(values, np.ma.MaskedArray):
        return values
    array = pandas.arrays.BooleanArray if values.dtype == bool else pandas.arrays.IntegerArray
    return array(values.data.copy(), np.ma.getmaskarray(values).copy())


def import_library(name: str, needed_by: str) -> Any:
    """Return a package that makes tables.

    Args:
        name: "pandas" or "pyarrow".
        needed_by: what needs it, for the message.
    """
    try:
        if name == "pandas":
            import pandas as library
        else:
            import pyarrow as library
    except ImportError as error:
        raise EmbgradError(
            f"{needed_by} needs the package {name!r}, which cannot be imported ({error}): pip install 'embgrad[table]'"
        ) from error
    return library


def expect_choice(value: Any, name: str, choices: Sequence[str]) -> None:
    """Raise an error if an option is none of its choices."""
    if not isinstance(value, str) or value not in choices:
        expected = " or ".join(map(repr, choices))
        raise EmbgradError(f"{name} is {brief(value)}: expected {expected}.{did_you_mean(str(value), choices)}")


def expect_units(by: Any, special: Any, units: Sequence[str] = UNITS) -> None:
    """Check the unit of rows, and whether special tokens have any."""
    expect_choice(by, "by", units)
    expect_flag(special, "special")


def columns_of_tokens(result: Any, by: Any, special: Any, **further: Any) -> Columns:
    """Return the columns of a result with a row for each token or word, after a check of the options."""
    expect_units(by, special)
    columns: Columns = result._columns(by, special, **further)
    return columns


class Tabular(ABC):
    """A base class of results with a score for each token or word."""

    @abstractmethod
    def _columns(self, by: Any, special: bool) -> Columns:
        """Return the columns of the table."""

    def to_pandas(self, *, by: str | Mapping[str, Any] = "tokens", special: bool = True) -> Any:
        """Return the scores as a `pandas.DataFrame` with a row for each token or word; see the page "Tables" for the columns.

        Args:
            by: "tokens", "words" or "segments", or parts of the texts by name, see `Attribution.segments`.
            special: whether special tokens have rows; padding has none.

        Raises:
            EmbgradError: pandas is not installed (`pip install 'embgrad[table]'`); there is no such unit; or words are asked for
                and the tokens are not known.
        """
        return frame(self._checked_columns(by, special))

    def _checked_columns(self, by: Any, special: Any) -> Columns:
        if isinstance(by, Mapping):
            from embgrad.results.segments import check_parts  # an import of a plain gradient otherwise

            check_parts(by)
        expect_units("segments" if isinstance(by, Mapping) else by, special, UNITS_OF_SCORES)
        return self._columns(by, special)


class TabularGradients(ABC):
    """A base class of gradients, with a saliency for each token or word."""

    @abstractmethod
    def _columns(self, by: str, special: bool, kind: str = "norm") -> Columns:
        """Return the columns of the table."""

    def to_pandas(self, *, kind: str = "norm", by: str = "tokens", special: bool = True) -> Any:
        """Return the saliencies as a `pandas.DataFrame` with a row for each token or word; see the page "Tables".

        Args:
            kind: "norm" for the gradient's length, or "dot" for its inner product with the activation, see `saliency`.
            by: "tokens" or "words".
            special: whether special tokens have rows; padding has none.

        Raises:
            EmbgradError: pandas is not installed (`pip install 'embgrad[table]'`); there is no such kind or unit; the point has
                no vector for each token; or words are asked for and the tokens are not known.
        """
        return frame(columns_of_tokens(self, by, special, kind=kind))


class TabularByChoice(ABC):
    """A base class of results that have tables of several kinds, the first of which is the default."""

    #: The columns' functions by the name of the kind.
    _TABLES: ClassVar[Mapping[str, Any]]

    def to_pandas(self, *, by: str | None = None) -> Any:
        """Return the result as a `pandas.DataFrame`; see the page "Tables" for the columns.

        Args:
            by: what a row stands for: of a search "changes" or "examples", of substitutions "tokens", of an influence
                "pairs" or "tokens", of a faithfulness "examples" or "shares"; None for the first of these.

        Raises:
            EmbgradError: pandas is not installed (`pip install 'embgrad[table]'`), or there is no such kind of row.
        """
        return frame(self._columns_by(by))

    def _columns_by(self, by: str | None) -> Columns:
        chosen = next(iter(self._TABLES)) if by is None else by
        expect_choice(chosen, "by", tuple(self._TABLES))
        columns: Columns = self._TABLES[chosen](self)
        return columns
