"""How many rows there are, and which: taken on the way in and on the way out, the two must be the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from embgrad.errors import EmbgradError
from embgrad.ray.columns import python_values

__all__ = ["Tally", "expect_same_rows", "tally_of", "tally_of_dataset"]

#: Fingerprints are added up in so many bits, so that their order does not count, but how often each row comes does.
BITS: Final = 64


@dataclass(frozen=True)
class Tally:
    """How many rows, and the sum of their fingerprints."""

    rows: int = 0
    fingerprint: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.rows + other.rows, (self.fingerprint + other.fingerprint) % 2**BITS)


def tally_of(rows: pa.Table, columns: Sequence[str]) -> Tally:
    """The tally of the rows of a block, told apart by these columns.

    Raises:
        BatchError: there is no such column.
    """
    values = [python_values(rows, name) for name in columns]
    total = Tally()
    for row in zip(*values, strict=True):
        data = json.dumps(row, default=str).encode("utf-8", "surrogatepass")
        total += Tally(1, int.from_bytes(hashlib.blake2b(data, digest_size=BITS // 8).digest(), "big"))
    return total


def tally_of_dataset(dataset: Any, columns: Sequence[str]) -> Tally:
    """The tally of a whole dataset, which is read for it and not held."""
    wanted = list(columns)

    def count(rows: pa.Table) -> pa.Table:
        found = tally_of(rows, wanted)
        return pa.table({"rows": [found.rows], "fingerprint": pa.array([found.fingerprint], pa.uint64())})

    total = Tally()
    for row in dataset.map_batches(count, batch_format="pyarrow", batch_size=None).iter_rows():
        total += Tally(int(row["rows"]), int(row["fingerprint"]))
    return total


def expect_same_rows(given: Tally, found: Tally, what: str) -> None:
    """Refuse a result that is not of each row once.

    Raises:
        EmbgradError: a row is missing, or counted twice.
    """
    if given == found:
        return
    how = (
        f"{given.rows} rows went in and {found.rows} came out"
        if given.rows != found.rows
        else f"{given.rows} rows went in and as many came out, but they are not the same"
    )
    raise EmbgradError(
        f"{what} is not of each row once: {how}. Expected a dataset that gives the same rows each time it is read (a random "
        "sample does not: call its materialize() first, or pass verify=False); if it does, the result is wrong and is not to "
        "be used"
    )
