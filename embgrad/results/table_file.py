"""Tables in files: Parquet or CSV by the name's end, written a part at a time, and there whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from embgrad.common.files import naming, open_whole
from embgrad.errors import EmbgradError, brief
from embgrad.results.tabular import Columns, frame, import_library

__all__ = ["expect_table_file", "open_table"]

#: The ends of the names of files.
ENDS: Final = (".parquet", ".csv")

#: How many rows of a Parquet file are compressed together at least.
GROUP: Final = 50_000


def expect_table_file(path: str | Path) -> None:
    """Check, before anything is computed, that a table can be written to a file of this name."""
    end = Path(path).suffix.lower()
    if end not in ENDS:
        raise EmbgradError(f"the file of a table is {brief(str(path))}: expected a name that ends in .parquet or .csv")
    if end == ".parquet":
        for name in ("pyarrow", "pandas"):
            import_library(name, "Parquet")


@contextlib.contextmanager
def open_table(path: str | Path) -> Iterator[Callable[[Columns], None]]:
    """Open a file for a table; yield a function that adds rows. The file appears when the block ends without an error."""
    expect_table_file(path)
    write = _rows_of_parquet if Path(path).suffix.lower() == ".parquet" else _rows_of_csv
    with open_whole(path) as file, write(file) as add:

        def add_rows(columns: Columns) -> None:
            with naming(path):
                add(columns)

        yield add_rows


@contextlib.contextmanager
def _rows_of_csv(file: BinaryIO) -> Iterator[Callable[[Columns], None]]:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    header: list[str] = []

    def add(columns: Columns) -> None:
        if not header:
            header.extend(columns)
            writer.writerow(header)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))

    yield add
    text.flush()
    text.detach()  # the file is closed by its owner


@contextlib.contextmanager
def _rows_of_parquet(file: BinaryIO) -> Iterator[Callable[[Columns], None]]:
    from pyarrow import Table, concat_tables, parquet

    writer: Any = None
    pending: list[Any] = []

    def flush() -> None:
        nonlocal writer
        table = concat_tables(pending)
        writer = parquet.ParquetWriter(file, table.schema) if writer is None else writer
        writer.write_table(table)
        pending.clear()

    def add(columns: Columns) -> None:
        pending.append(Table.from_pandas(frame(columns), preserve_index=False))
        if sum(len(table) for table in pending) >= GROUP:
            flush()

    try:
        yield add
        if pending:
            flush()
    finally:
        if writer is not None:
            writer.close()
