"""Saliencies in place of whole gradients, one number a position, for long runs whose vectors would take too much space."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from embgrad.common.metrics import length
from embgrad.common.safetensors import read_tensors, write_tensors
from embgrad.common.schema import OBJECT, Array, SchemaError, expect_arrays, expect_names
from embgrad.common.text import visible
from embgrad.errors import FileFormatError
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.schema import check_tokens
from embgrad.results.table_rows import saliency_columns
from embgrad.results.tabular import Columns, TabularGradients, columns_of_tokens, expect_choice
from embgrad.results.word_means import WordMeans, word_means
from embgrad.results.words import expect_vectors

__all__ = ["Saliencies", "load_saliencies", "save_saliencies"]

#: The arrays of a file.
_ARRAYS: Final = {
    "norm": Array("*place", "float32 float64"),
    "dot": Array("*place", "float32 float64"),
    "ids": Array("*index", "int64"),
    "objective": Array("*reduced"),
    "mask": Array("*index", "int64", optional=True),
    "words_of": Array("*index", "int64", optional=True),
}
_KEY: Final = "embgrad-saliencies"
_FIELDS: Final = ("tokens", "provenance")


@dataclass(frozen=True, eq=False)
class Saliencies(TabularGradients):
    """The stored part of a result with `keep="saliency"`.

    Attributes:
        norm: `saliency("norm")` of the result: the L2 norm of the gradient at each position, (example, position).
        dot: `saliency("dot")` of the result: the gradient's inner product with the activation, (example, position).
        objective: the objective L of each example, float64, (example,); () for a `Scalar` objective.
        ids: as in `EmbeddingGradients`, likewise `mask`, `tokens`, `words_of` and `provenance`.
    """

    norm: np.ndarray
    dot: np.ndarray
    objective: np.ndarray
    ids: np.ndarray
    mask: np.ndarray | None
    tokens: tuple[tuple[str, ...], ...] | None
    words_of: np.ndarray | None
    provenance: Mapping[str, Any]

    def __repr__(self) -> str:
        source = self.provenance
        shape = " × ".join(map(str, self.norm.shape))
        return visible(
            f"Saliencies({shape}, at {source.get('point')!r} of {source.get('model')} ({source.get('backend')}), norm "
            f"{length(self.norm):.4g})"
        )

    @property
    def real(self) -> np.ndarray:
        """A bool array, shape (example, position): true at real positions, everywhere without a mask."""
        return np.ones(self.ids.shape, bool) if self.mask is None else self.mask.astype(bool)

    def _columns(self, by: str, special: bool, kind: str = "norm") -> Columns:
        expect_choice(kind, "kind", ("norm", "dot"))
        expect_vectors(self, self.norm.shape)
        return saliency_columns(self, getattr(self, kind), kind, by, special)

    def by_word(
        self, *, kind: str = "norm", min_count: int = 1, confidence: float = 0.95, special: bool = False
    ) -> WordMeans:
        """Return the mean score of each word over the examples, see `EmbeddingGradients.by_word`."""
        return word_means([columns_of_tokens(self, "words", special, kind=kind)], min_count, confidence)

    @property
    def nbytes(self) -> int:
        """The number of bytes in the arrays."""
        present = (getattr(self, name) for name in _ARRAYS)
        return sum(int(array.nbytes) for array in present if array is not None)

    @classmethod
    def of(cls, result: EmbeddingGradients) -> Saliencies:
        """Return the saliencies of a result."""
        return cls(
            result.saliency("norm"),
            result.saliency("dot"),
            result.objective,
            result.ids,
            result.mask,
            result.tokens,
            result.words_of,
            result.provenance,
        )


def save_saliencies(named: Mapping[str, Saliencies], path: Path, *, durable: bool = False) -> None:
    """Write saliencies by name to one file, atomically."""
    arrays, entries = {}, []
    for number, (name, saliencies) in enumerate(named.items()):
        for key in _ARRAYS:
            if (array := getattr(saliencies, key)) is not None:
                arrays[f"{number}.{key}"] = np.asarray(array)
        entries.append({"name": name, "tokens": saliencies.tokens, "provenance": dict(saliencies.provenance)})
    text = json.dumps(
        {"format": 1, "results": entries}, default=lambda value: getattr(value, "tolist", value.__repr__)()
    )
    write_tensors(path, arrays, {_KEY: text}, durable=durable)


def load_saliencies(path: Path) -> dict[str, Saliencies]:
    """Read a file written by `save_saliencies`.

    Raises:
        FileFormatError: the file was not written by `save_saliencies`.
    """
    arrays, metadata = read_tensors(path, ("F32", "F64", "I64"))
    try:
        header = json.loads(metadata[_KEY])
        entries = header["results"]
        if header["format"] != 1 or not isinstance(entries, list):
            raise ValueError("it is of another format")
        saliencies = {}
        for number, entry in enumerate(entries):
            prefix = f"{number}."
            entry_arrays = {key.removeprefix(prefix): arrays.pop(key) for key in list(arrays) if key.startswith(prefix)}
            name = entry.pop("name")
            saliencies[str(name)] = _check(entry_arrays, entry)
        if arrays or len(saliencies) != len(entries):
            raise ValueError("it holds arrays of no result, or a name twice")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path} holds no saliencies as embgrad writes them: {error}; write it again") from error
    return saliencies


def _check(arrays: Mapping[str, np.ndarray], entry: Mapping[str, Any]) -> Saliencies:
    expect_names("fields", entry, _FIELDS)
    expect_arrays(arrays, _ARRAYS)
    if arrays["objective"].ndim > 1:
        raise SchemaError(f"holds an objective of shape {arrays['objective'].shape}: expected (example,)")
    OBJECT.check("provenance", entry["provenance"])
    return Saliencies(
        **{name: arrays.get(name) for name in _ARRAYS},  # type: ignore[arg-type]
        tokens=check_tokens(entry["tokens"], arrays["ids"].shape),
        provenance=entry["provenance"],
    )
