"""The calls: gradients of a dataset's rows, written as Parquet, or added up to the table's gradient."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import ray
import ray.data
from pyarrow import fs

from embgrad.common.options import count_or_none
from embgrad.errors import BatchError, EmbgradError, FileFormatError, brief, did_you_mean
from embgrad.objectives.native import as_objective, described
from embgrad.ray.actors import expect_startable, mapped
from embgrad.ray.dataset import dataset_of, expect_no_query, readable
from embgrad.ray.failures import plain_errors
from embgrad.ray.reduction import sum_of
from embgrad.ray.result_columns import Wanted
from embgrad.ray.schemas import conformed, expect_parquet, unified
from embgrad.ray.settings import OUTPUTS, Asked, settings
from embgrad.ray.tally import Tally, expect_same_rows, tally_of_dataset
from embgrad.ray.worker import GradientWorker, TableWorker
from embgrad.results.file_format import plain
from embgrad.results.row_sparse import RowSparse
from embgrad.version import __version__

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from embgrad.ray.settings import Options

__all__ = ["Written", "gradients", "table", "write"]

#: How many rows make a file at least: some megabytes, whatever is written of each.
FILE_ROWS: Final = {"saliency": 16_384, "tables": 256, "values": 256}

#: The file beside the Parquet files that says what they are; readers leave names with an underscore aside.
MANIFEST: Final = "_embgrad.json"


@dataclass(frozen=True)
class Written:
    """What `write` has written.

    Attributes:
        folder: where the Parquet files are.
        rows_in: the rows of the dataset; None with `verify=False`.
        rows_out: the rows that were read back from the files; None with `verify=False`.
    """

    folder: str
    rows_in: int | None
    rows_out: int | None


def gradients(
    dataset: Any,
    build: Callable[[], Any],
    objective: Any,
    *,
    output: str = "saliency",
    kind: str = "norm",
    length: int | None = None,
    prefix: str = "",
    **options: Unpack[Options],
) -> ray.data.Dataset:
    """The gradients of each row of a dataset, as columns beside its own; lazy, as Ray's datasets are.

    Each row has its own L, and its gradient is that of `embgrad.gradients` in one process, to rounding. Rows come in any
    order, unless the dataset's context asks Ray to preserve it.

    Args:
        dataset: a `ray.data.Dataset`, or paths of Parquet, JSON lines or text files. Several files of JSON lines are read at
            once for the types of their columns, which then are the same in all.
        build: gives the model, or (model, tokenizer), in whichever framework; each actor calls it once. It is sent to the
            actors, and what it loads has to be where they are.
        objective: an `embgrad.Objective` that is the same for all rows, or a function of the rows that gives one, such as
            `lambda rows: embgrad.CrossEntropy(rows["label"])`; `rows` has an array for each column. It may give a function of
            the model's outputs, too, as `embgrad.gradients` takes it.
        output: "saliency": the columns `ids`, `tokens` (of texts), `objective` and `saliency`, a list each but for the
            objective, one entry a position; with `max_length` also `truncated`, how many tokens were cut off. "tables": each
            row's gradient of the table, as `rows` (whole numbers), `values` (a list of dim numbers for each of the rows) and
            `vocab`, beside `ids`, `tokens` and `objective`. "values": the gradients themselves, `values`, a tensor of shape
            (length, dim) that is zero behind the row's own positions, of which `ids` has as many as there are.
        kind: of the saliency, "norm" or "dot", see `EmbeddingGradients.saliency`.
        length: of the values, the positions of each tensor; a row that is longer is an error.
        prefix: goes before the new columns' names.
        **options: see `Options`.

    Raises:
        EmbgradError: an option is not what it should be. Errors of rows come when the dataset is consumed, within Ray's own;
            `plain_errors` takes them out.
    """
    asked, shape = settings(build, objective, options)
    expect_startable(asked, shape)
    wanted = _wanted(output, kind, length, prefix)
    return mapped(dataset_of(dataset), GradientWorker, (asked, wanted), asked, shape)


def write(
    dataset: Any,
    build: Callable[[], Any],
    objective: Any,
    folder: str | Path,
    *,
    output: str = "saliency",
    kind: str = "norm",
    length: int | None = None,
    prefix: str = "",
    **options: Unpack[Options],
) -> Written:
    """The gradients of each row of a dataset into a folder of Parquet files, and the proof that each row is there once.

    The rows that lie in the files are read back and compared with those of the dataset, in number and in what they hold. The
    files have the same columns: where the dataset's own differ from block to block, numbers are written in the wider type, and
    null where a column is not there. A file `_embgrad.json` says what was asked; it is written last, and a folder without it
    is not whole.

    Args:
        dataset: as in `gradients`; so are all others.
        folder: does not exist yet, or is empty. On a cluster it is one that all machines see, such as s3://bucket/folder.

    Raises:
        EmbgradError: as `embgrad.gradients`, with the row named; or rows are missing or there twice.
        FileFormatError: the folder holds something, or cannot be written to; a file cannot be read; or a column's values are of
            types that do not go together, which is found before any model is built, unless `verify` is False.
    """
    asked, shape = settings(build, objective, options)
    expect_startable(asked, shape)
    wanted = _wanted(output, kind, length, prefix)
    place, files = _place(folder)
    rows = dataset_of(dataset)
    before = None
    if shape.verify:
        with readable(dataset), plain_errors():
            rows, before = _of_one_schema(rows, asked)
    with plain_errors():
        mapped(rows, GradientWorker, (asked, wanted), asked, shape).write_parquet(
            place, min_rows_per_file=FILE_ROWS[output]
        )
        if before is None:
            _write_manifest(files, asked, wanted, None)
            return Written(place, None, None)
        after = _tally_of_files(files, place, asked)
    expect_same_rows(before, after, f"what was written to {place}")
    _write_manifest(files, asked, wanted, before.rows)
    return Written(place, before.rows, after.rows)


def table(
    dataset: Any,
    build: Callable[[], Any],
    objective: Any,
    *,
    reduce: str = "sum",
    **options: Unpack[Options],
) -> RowSparse:
    """The table's gradient over a whole dataset, (vocab, dim): Σ over rows and positions, or its mean over the rows.

    Actors add up block by block, and Ray tasks in a tree what they have added up; this process holds the last sum alone.
    Each partial sum carries which rows it is of, and those of the whole are compared with the dataset's: no row is lost and
    none is counted twice, whatever died meanwhile. What a batch is filled up with counts for nothing.

    Args:
        dataset: as in `gradients`; so are `build` and `objective`.
        reduce: "sum", or "mean" for the sum over the number of rows.
        **options: see `Options`.

    Returns:
        The sum, added up in float64, in the gradients' dtype.

    Raises:
        EmbgradError: as `embgrad.gradients`, with the row named; or rows are missing or were counted twice.
        PointError: the point is no lookup.
    """
    asked, shape = settings(build, objective, options)
    expect_startable(asked, shape)
    if reduce not in ("sum", "mean"):
        raise EmbgradError(
            f"reduce is {reduce!r}: expected 'sum' or 'mean'.{did_you_mean(str(reduce), ('sum', 'mean'))}"
        )
    rows = dataset_of(dataset)
    before = None
    if shape.verify:
        with readable(dataset), plain_errors():
            before, _ = tally_of_dataset(rows, asked.inputs.columns)
    with plain_errors():
        bundles = mapped(rows, TableWorker, (asked,), asked, shape).iter_internal_ref_bundles()
        total = sum_of(reference for bundle in bundles for reference in bundle.block_refs)
    if before is not None:
        expect_same_rows(before, total.tally, "the sum")
    if total.table is None:
        raise BatchError("the dataset holds no row: expected one at least")
    values = total.table.values / (total.tally.rows if reduce == "mean" else 1)
    return RowSparse(total.table.rows, values.astype(total.dtype), total.table.shape)


def _of_one_schema(rows: Any, asked: Asked) -> tuple[Any, Tally]:
    """The rows with the same columns in all blocks, and their tally."""
    tally, schemas = tally_of_dataset(rows, asked.inputs.columns)
    if not schemas:  # there is no row
        return rows, tally
    schema = unified([("a block of the dataset", one) for one in schemas])
    expect_parquet(schema)
    if all(one.equals(schema) for one in schemas):
        return rows, tally

    def alike(block: pa.Table) -> pa.Table:
        return conformed(block, schema, "the dataset")

    rows = rows.map_batches(alike, batch_format="pyarrow", batch_size=None)
    tally, _ = tally_of_dataset(rows, asked.inputs.columns)  # again, for the values that the wider type does not hold
    return rows, tally


def _wanted(output: str, kind: str, length: int | None, prefix: str | None) -> Wanted:
    if output not in OUTPUTS:
        raise EmbgradError(
            f"output is {output!r}: expected 'saliency', 'tables' or 'values'.{did_you_mean(str(output), OUTPUTS)}"
        )
    if kind not in ("norm", "dot"):
        raise EmbgradError(f"kind is {kind!r}: expected 'norm' or 'dot'.{did_you_mean(str(kind), ('norm', 'dot'))}")
    length = count_or_none(length, "length")
    if (output == "values") != (length is not None):
        raise EmbgradError(
            f"length is {length!r} and output is {output!r}: expected a length with output='values', whose tensors are of one "
            "shape, and with no other"
        )
    if not isinstance(prefix, (str, type(None))):
        raise EmbgradError(f"prefix is {brief(prefix)}: expected what goes before the new columns' names, such as 'g_'")
    return Wanted(output, kind, length, prefix or "")


def _place(folder: str | Path) -> tuple[str, Any]:
    """The folder's address and its file system; nothing lies there yet."""
    if not isinstance(folder, (str, Path)):
        raise FileFormatError(f"the folder is {brief(folder)}: expected the name of a new one, for the Parquet files")
    address = str(folder) if "://" in str(folder) else str(Path(folder).absolute())
    expect_no_query(address)
    try:
        system, path = fs.FileSystem.from_uri(address) if "://" in address else (fs.LocalFileSystem(), address)
        kind = system.get_file_info(path).type
        held = system.get_file_info(fs.FileSelector(path, allow_not_found=True)) if kind != fs.FileType.File else []
        if kind == fs.FileType.NotFound and isinstance(system, fs.LocalFileSystem):
            system.create_dir(path)  # so that one that cannot be made is told of before the dataset is read
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{folder} cannot be written to ({error}): expected a folder, or an address that pyarrow knows, such as "
            "s3://bucket/folder"
        ) from error
    if kind == fs.FileType.File:
        raise FileFormatError(f"{folder} is a file: expected the name of a folder")
    if held:
        raise FileFormatError(
            f"{folder} holds {len(held)} files, such as {held[0].base_name!r}: expected a new folder, or an empty one, so that "
            "what is read there later is of one run"
        )
    return address, (system, path)


def _tally_of_files(files: Any, place: str, asked: Asked) -> Tally:
    """Of the rows that lie in the folder."""
    system, path = files
    held = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return (
        tally_of_dataset(ray.data.read_parquet(place, partitioning=None), asked.inputs.columns)[0] if held else Tally()
    )


def _write_manifest(files: Any, asked: Asked, wanted: Wanted, rows: int | None) -> None:
    system, path = files
    inputs = {name: value for name, value in asdict(asked.inputs).items() if value is not None}
    manifest = {
        "embgrad": __version__,
        "rows": rows,
        "point": asked.point,
        "objective": described(as_objective(asked.objective)),
        "inputs": inputs,
        **asdict(wanted),
    }
    text = json.dumps(manifest, indent=2, default=plain)  # before there is a file
    system.create_dir(path)
    with system.open_output_stream(f"{path}/{MANIFEST}") as stream:
        stream.write(text.encode())
