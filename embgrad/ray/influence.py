"""`embgrad.ray.influence`: the training examples that move the objectives of test examples most, over a dataset on Ray."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from embgrad.common.options import count_or_none
from embgrad.errors import BatchError, brief, quote
from embgrad.ray.run import compute, tally_with_schemas
from embgrad.ray.settings import Job, settings
from embgrad.ray.source import dataset_of, plain_errors, readable
from embgrad.ray.tally import Tally, expect_same_rows, tally_of
from embgrad.ray.worker import Worker
from embgrad.results.file_format import plain
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.influence import Influence
from embgrad.results.row_sparse import RowSparse
from embgrad.results.table_norms import TableIndex, tables_of
from embgrad.streaming.influence import Best

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from embgrad.ray.settings import Options

__all__ = ["influence"]


def influence(
    dataset: Any,
    build: Callable[[], Any],
    objective: Any,
    test: EmbeddingGradients | Sequence[RowSparse],
    *,
    number: str,
    top: int = 10,
    **options: Unpack[Options],
) -> Influence:
    """Return the rows of a dataset whose gradient steps change the objectives of test examples most.

    The scores are those of `embgrad.tables.influence` for one checkpoint. Each actor holds the gradients of the test examples,
    and sends on the first rows of its blocks alone; what rows were covered is compared with the dataset's.

    Args:
        dataset: the training examples, as in `gradients`, likewise `build` and `objective`.
        test: the gradients of the test examples by the same model: a result of `embgrad.gradients`, or a list of tables such as
            several results' `per_example()` together.
        number: the column with the row's number, from 0 to the number of rows, since Ray has no order of rows.
        top: how many proponents and opponents of each test example are kept.
        **options: see `Options`.

    Returns:
        An `embgrad.results.Influence`, whose training examples are named by that column.

    Raises:
        EmbgradError: as `embgrad.ray.gradients`, with the row named; or rows are missing or were counted twice.
        BatchError: the column does not exist, or holds something else.
    """
    job, pool = settings(build, objective, options)
    tables = tables_of(test, "test")
    most = count_or_none(top, "top") or 1
    rows = dataset_of(dataset)
    before = None
    if pool.verify:
        with readable(dataset), plain_errors():
            before, _ = tally_with_schemas(rows, job)
    kinds = [Best(most, sign) for sign in (1, -1)]
    total, last, provenance = Tally(), -1, dict[str, Any]()
    with plain_errors():
        computed = compute(rows, InfluenceWorker, (job, tables, number, most), job, pool)
        for row in computed.iter_rows():
            total += Tally(int(row["rows"]), int(row["fingerprint"]))
            if row["rows"]:
                numbers, scores = (np.array(row[name]).reshape(2, len(tables), -1) for name in ("numbers", "scores"))
                for best, own, of_own in zip(kinds, numbers, scores, strict=True):
                    best.add(of_own, own)
                last = max(last, int(row["last"]))
                provenance = provenance or json.loads(row["provenance"])
    if before is not None:
        expect_same_rows(before, total, "the influence")
    if not total.rows:
        raise BatchError("the dataset holds no row: expected one at least")
    if last >= total.rows:
        raise BatchError(
            f"the column {number!r} holds {last}, and the dataset has {total.rows} rows: expected their numbers, from 0"
        )
    provenance |= {"method": "TracIn-WE", "rates": [1.0]}
    return Influence(*kinds[0].result(), *kinds[1].result(), total.rows, provenance)


class InfluenceWorker(Worker):
    """The actor that finds the rows of its blocks with the highest and the lowest scores.

    Args:
        job: what is computed.
        tables: the gradients of the test examples.
        number: the column with the row's number.
        top: how many rows of each kind are kept.
    """

    def __init__(self, job: Job, tables: Sequence[RowSparse], number: str, top: int) -> None:
        super().__init__(job)
        self._index, self._number, self._top = TableIndex(tables), number, top

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return one row: the first rows of each kind, and the tally of the rows that it covers."""
        tally, numbers = tally_of(rows, self._job.inputs.columns), self._numbers(rows)
        kinds, provenance = [Best(self._top, sign) for sign in (1, -1)], dict[str, Any]()
        for chosen, _, result in self.results(rows):
            scores = self._index.products(TableIndex(result.per_example()))
            for best in kinds:
                best.add(scores, np.broadcast_to(numbers[chosen], scores.shape))
            provenance = provenance or dict(result.provenance)
        found = [best.result() for best in kinds] if rows.num_rows else [(np.empty(0), np.empty(0))]
        flat = [np.concatenate([part.ravel() for part in parts]) for parts in zip(*found, strict=True)]
        return pa.table(
            {
                "rows": [tally.rows],
                "fingerprint": pa.array([tally.fingerprint], pa.uint64()),
                "last": [int(numbers.max(initial=-1))],
                "numbers": pa.array([flat[0].astype(np.int64)], pa.list_(pa.int64())),
                "scores": pa.array([flat[1]], pa.list_(pa.float64())),
                "provenance": [json.dumps(provenance, default=plain)],
            }
        )

    def _numbers(self, rows: pa.Table) -> np.ndarray:
        """Return the numbers of rows.

        Raises:
            BatchError: there is no such column, or it holds something else.
        """
        if not rows.num_rows:
            return np.zeros(0, np.int64)
        if self._number not in rows.column_names:
            raise BatchError(f"the rows have no column {self._number!r}: expected one of {quote(rows.column_names)}")
        column = rows.column(self._number)
        if not pa.types.is_integer(column.type) or column.null_count or column.to_numpy().min() < 0:
            raise BatchError(
                f"the column {self._number!r} holds {brief(column[0].as_py())}: expected the rows' numbers, from 0"
            )
        return np.asarray(column.to_numpy(), np.int64)
