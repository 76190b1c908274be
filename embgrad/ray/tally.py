"""The rows that a result covers, and the sum of their tables: no row may be lost, and none counted twice."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from embgrad.errors import EmbgradError
from embgrad.ray.columns import python_values
from embgrad.streaming import totals

__all__ = ["Tally", "Total", "expect_same_rows", "tally_of"]

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
    """Return the tally of the rows of a block, identified by the values of these columns, whatever their types."""
    values = [python_values(rows, name) for name in columns]
    total = Tally()
    for row in zip(*values, strict=True):
        data = json.dumps([_plain(value) for value in row], default=str).encode("utf-8", "surrogatepass")
        total += Tally(1, int.from_bytes(hashlib.blake2b(data, digest_size=BITS // 8).digest(), "big"))
    return total


def _plain(value: Any) -> Any:
    """Return the same object for equal values: 1, 1.0 and Decimal("1.00"), or a struct with a null field and without it."""
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


def expect_same_rows(before: Tally, after: Tally, what: str) -> None:
    """Check that a result covers each row once."""
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


class Total(totals.Total):
    """The running sum of rows' table gradients, in float64, with the tally of the rows that it covers."""

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()

    def to_arrow(self) -> pa.Table:
        """Return an Arrow table of one row, which `add_arrow` reads."""
        return pa.table(
            {"total": pa.array([pickle.dumps((self.table(wide=True), self.dtype, self.tally))], pa.large_binary())}
        )

    def add_arrow(self, rows: pa.Table) -> None:
        """Add the totals of some blocks of rows."""
        for value in rows["total"]:
            table, dtype, tally = pickle.loads(value.as_buffer())
            self.tally += tally
            if table is not None:
                self.add(table, dtype)
