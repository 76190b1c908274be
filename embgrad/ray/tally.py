"""Counts and fingerprints of rows; those of a dataset and of its results must be equal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from embgrad.errors import EmbgradError
from embgrad.ray.row_columns import python_values

__all__ = ["Tally", "expect_same_rows", "tally_of", "tally_of_dataset"]

#: The number of bits in which fingerprints are summed. A sum ignores the order of rows, but not how often each occurs.
BITS: Final = 64


@dataclass(frozen=True)
class Tally:
    """The number of rows, and the sum of their fingerprints."""

    rows: int = 0
    fingerprint: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.rows + other.rows, (self.fingerprint + other.fingerprint) % 2**BITS)


def tally_of(rows: pa.Table, columns: Sequence[str]) -> Tally:
    """Return the tally of the rows of a block, identified by the values of these columns, whatever their types.

    Raises:
        BatchError: a column does not exist.
    """
    values = [python_values(rows, name) for name in columns]
    total = Tally()
    for row in zip(*values, strict=True):
        data = json.dumps([_plain(value) for value in row], default=str).encode("utf-8", "surrogatepass")
        total += Tally(1, int.from_bytes(hashlib.blake2b(data, digest_size=BITS // 8).digest(), "big"))
    return total


def _plain(value: Any) -> Any:
    """Return the same object for equal values: 1, 1.0 and Decimal("1.00"), or a struct with a null field and without it."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(value[name]) for name in sorted(value, key=str) if value[name] is not None}
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else value.normalize()
    return value


def tally_of_dataset(dataset: Any, columns: Sequence[str]) -> tuple[Tally, list[pa.Schema]]:
    """Return the tally of a dataset, which is read once and not kept in memory, and the schemas of its blocks."""
    names = list(columns)

    def count(rows: pa.Table) -> pa.Table:
        tally = tally_of(rows, names)
        schema = rows.schema.remove_metadata().serialize().to_pybytes() if tally.rows else None
        return pa.table(
            {
                "rows": [tally.rows],
                "fingerprint": pa.array([tally.fingerprint], pa.uint64()),
                "schema": pa.array([schema], pa.binary()),
            }
        )

    total = Tally()
    schemas: dict[bytes | None, None] = {}
    for row in dataset.map_batches(count, batch_format="pyarrow", batch_size=None).iter_rows():
        total += Tally(int(row["rows"]), int(row["fingerprint"]))
        schemas[row["schema"]] = None
    return total, [pa.ipc.read_schema(pa.py_buffer(schema)) for schema in schemas if schema is not None]


def expect_same_rows(before: Tally, after: Tally, what: str) -> None:
    """Check that a result covers each row once.

    Raises:
        EmbgradError: a row is missing, or counted twice.
    """
    if before == after:
        return
    difference = (
        f"{before.rows} rows went in and {after.rows} came out"
        if before.rows != after.rows
        else f"{before.rows} rows went in and as many came out, but they are not the same"
    )
    raise EmbgradError(
        f"{what} does not hold each row once: {difference}. If the dataset gives the same rows each time it is read (a random "
        "sample does not: call its materialize() first, or pass verify=False), the result is wrong and must not be used"
    )
