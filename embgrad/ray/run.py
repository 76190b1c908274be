"""The public functions: gradients of a dataset's rows, as a dataset, as Parquet files, or summed to the table's gradient."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import ray
import ray.data
from pyarrow import fs

from embgrad.attribution.method import Method
from embgrad.common.options import count_or_none
from embgrad.errors import BatchError, EmbgradError, FileFormatError, brief, did_you_mean
from embgrad.objectives.objectives import as_objective, described
from embgrad.ray.actors import expect_startable, mapped
from embgrad.ray.dataset import dataset_of, expect_no_query, readable
from embgrad.ray.failures import plain_errors
from embgrad.ray.reduction import sum_of
from embgrad.ray.result_columns import Wanted
from embgrad.ray.schemas import conformed, expect_parquet, unified
from embgrad.ray.settings import OUTPUTS, Job, settings
from embgrad.ray.tally import Tally, expect_same_rows, tally_of_dataset
from embgrad.ray.worker import GradientWorker, TableWorker
from embgrad.results.file_format import plain
from embgrad.results.row_sparse import RowSparse
from embgrad.streaming.attributions import expect_of_attributions, method_from
from embgrad.version import __version__

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from embgrad.ray.settings import Options

__all__ = ["Written", "gradients", "table", "write"]

#: The least number of rows in a file, which amounts to some megabytes for each output.
FILE_ROWS: Final = {"saliency": 16_384, "tables": 256, "values": 256}

#: The file that describes the Parquet files beside it; Parquet readers skip names that begin with an underscore.
MANIFEST: Final = "_embgrad.json"


@dataclass(frozen=True)
class Written:
    """The result of `write`.

    Attributes:
        folder: the folder of the Parquet files.
        rows_in: the number of rows in the dataset; None with `verify=False`.
        rows_out: the number of rows read back from the files; None with `verify=False`.
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
    method: Method | str | None = None,
    **options: Unpack[Options],
) -> ray.data.Dataset:
    """Return a lazy Ray dataset: the rows of the given one, with their gradients in additional columns.

    Each row has its own objective L, and its gradient equals that of `embgrad.gradients` in one process, up to rounding. Rows
    come in any order, unless the dataset's context asks Ray to preserve it.

    Args:
        dataset: a `ray.data.Dataset`, or paths of Parquet, JSON lines or text files. Several files of JSON lines are read once
            in advance for the types of their columns, which are then the same in all.
        build: a function that returns the model, or (model, tokenizer), in any framework; each actor calls it once. The
            function is sent to the actors, and the files that it loads must exist where they run.
        objective: an `embgrad.Objective` that is the same for all rows, or a function of the rows that returns one, such as
            `lambda rows: embgrad.CrossEntropy(rows["label"])`; `rows` has an array for each column. The function may also
            return a function of the model's outputs, as for `embgrad.gradients`.
        output: "saliency": the columns `ids`, `tokens` (for texts), `objective` and `saliency`; all but the objective are lists
            with one entry a position. With `max_length` also `truncated`, the number of tokens that were cut off. "tables":
            each row's table gradient as `rows` (whole numbers), `values` (a list of dim numbers for each of the rows) and
            `vocab`, beside `ids`, `tokens` and `objective`. "values": the gradients themselves in `values`, a tensor of shape
            (length, dim), which is zero after the row's real positions; `ids` has one entry for each of these.
        kind: the kind of saliency, "norm" or "dot", see `EmbeddingGradients.saliency`.
        length: with output="values", the number of positions in each tensor; a longer row is an error.
        prefix: the prefix of the new columns' names.
        method: an attribution method, or its name, see `embgrad.attribute`; None for gradients. The columns are then `ids`,
            `tokens`, `objective` and `scores`, a list with one number a position, and where the method has them
            `baseline_objective` and `delta`. A row has the same scores in whatever batch it is run. `output` and `kind` keep
            their defaults; of `Options`, `check`, `compile`, `override`, `add` and `edit` are for gradients alone.
        **options: see `Options`.

    Raises:
        EmbgradError: an option is not valid. Errors of rows are raised when the dataset is consumed, wrapped in errors of Ray;
            `plain_errors` unwraps them.
    """
    job, pool = settings(build, objective, options)
    expect_startable(job, pool)
    wanted = _wanted(output, kind, length, prefix, method, job)
    return mapped(dataset_of(dataset), GradientWorker, (job, wanted), job, pool)


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
    method: Method | str | None = None,
    **options: Unpack[Options],
) -> Written:
    """Write the gradients of each row of a dataset to a folder of Parquet files, and verify that each row is there once.

    The rows are read back from the files and compared with those of the dataset, in number and content. All files have the
    same columns: where the types of a column differ from block to block, numbers are written in the wider type, and missing
    columns as nulls. A file `_embgrad.json` records the arguments. It is written last, and a folder without it is incomplete.

    Args:
        dataset: as in `gradients`, likewise the other arguments.
        folder: the folder, which must not exist or must be empty. On a cluster all machines must see it, for example as
            s3://bucket/folder.

    Raises:
        EmbgradError: as `embgrad.gradients`, with the row named; or rows are missing or written twice.
        FileFormatError: the folder is not empty or cannot be written to; a file cannot be read; or the values of a column are
            of incompatible types, which is detected before any model is built, unless `verify` is False.
    """
    job, pool = settings(build, objective, options)
    expect_startable(job, pool)
    wanted = _wanted(output, kind, length, prefix, method, job)
    address, files = _empty_folder(folder)
    rows = dataset_of(dataset)
    before = None
    if pool.verify:
        with readable(dataset), plain_errors():
            rows, before = _with_one_schema(rows, job)
    with plain_errors():
        mapped(rows, GradientWorker, (job, wanted), job, pool).write_parquet(
            address, min_rows_per_file=FILE_ROWS[output]
        )
        if before is None:
            _write_manifest(files, job, wanted, None)
            return Written(address, None, None)
        after = _tally_of_files(files, address, job)
    expect_same_rows(before, after, f"what was written to {address}")
    _write_manifest(files, job, wanted, before.rows)
    return Written(address, before.rows, after.rows)


def table(
    dataset: Any,
    build: Callable[[], Any],
    objective: Any,
    *,
    reduce: str = "sum",
    **options: Unpack[Options],
) -> RowSparse:
    """Return the table's gradient over a whole dataset, (vocab, dim): Σ over rows and positions, or its mean over the rows.

    Actors sum up block by block, and a tree of Ray tasks adds up their sums; this process holds the final sum alone. Each
    partial sum records the rows that it covers, and those of the total are compared with the dataset's: no row is lost and
    none is counted twice, whatever failed meanwhile. Padding does not contribute.

    Args:
        dataset: as in `gradients`, likewise `build` and `objective`.
        reduce: "sum", or "mean" for the sum divided by the number of rows.
        **options: see `Options`.

    Returns:
        The sum, computed in float64 and returned in the dtype of the gradients.

    Raises:
        EmbgradError: as `embgrad.gradients`, with the row named; or rows are missing or were counted twice.
        PointError: the point is not a lookup.
    """
    job, pool = settings(build, objective, options)
    expect_startable(job, pool)
    if reduce not in ("sum", "mean"):
        raise EmbgradError(
            f"reduce is {reduce!r}: expected 'sum' or 'mean'.{did_you_mean(str(reduce), ('sum', 'mean'))}"
        )
    rows = dataset_of(dataset)
    before = None
    if pool.verify:
        with readable(dataset), plain_errors():
            before, _ = tally_of_dataset(rows, job.inputs.columns)
    with plain_errors():
        bundles = mapped(rows, TableWorker, (job,), job, pool).iter_internal_ref_bundles()
        total = sum_of(reference for bundle in bundles for reference in bundle.block_refs)
    if before is not None:
        expect_same_rows(before, total.tally, "the sum")
    if total.table is None:
        raise BatchError("the dataset holds no row: expected one at least")
    values = total.table.values / (total.tally.rows if reduce == "mean" else 1)
    return RowSparse(total.table.rows, values.astype(total.dtype), total.table.shape)


def _with_one_schema(rows: Any, job: Job) -> tuple[Any, Tally]:
    """Return the rows with the same columns in all blocks, and their tally."""
    tally, schemas = tally_of_dataset(rows, job.inputs.columns)
    if not schemas:  # there are no rows
        return rows, tally
    schema = unified([("a block of the dataset", block_schema) for block_schema in schemas])
    expect_parquet(schema)
    if all(block_schema.equals(schema) for block_schema in schemas):
        return rows, tally

    def conform(block: pa.Table) -> pa.Table:
        return conformed(block, schema, "the dataset")

    rows = rows.map_batches(conform, batch_format="pyarrow", batch_size=None)
    tally, _ = tally_of_dataset(rows, job.inputs.columns)  # again: raises for values that the wider type cannot hold
    return rows, tally


def _wanted(
    output: str, kind: str, length: int | None, prefix: str | None, method: Method | str | None, job: Job
) -> Wanted:
    if output not in OUTPUTS:
        raise EmbgradError(
            f"output is {output!r}: expected 'saliency', 'tables' or 'values'.{did_you_mean(str(output), OUTPUTS)}"
        )
    if kind not in ("norm", "dot"):
        raise EmbgradError(f"kind is {kind!r}: expected 'norm' or 'dot'.{did_you_mean(str(kind), ('norm', 'dot'))}")
    length = count_or_none(length, "length")
    if (output == "values") != (length is not None):
        raise EmbgradError(
            f"length is {length!r} and output is {output!r}: pass length with output='values', whose tensors have one "
            "shape, and with no other output"
        )
    if not isinstance(prefix, (str, type(None))):
        raise EmbgradError(f"prefix is {brief(prefix)}: expected the prefix of the new columns' names, such as 'g_'")
    chosen = None if method is None else method_from(method)
    if chosen is not None:
        defaults = {"output": (output, OUTPUTS[0]), "kind": (kind, "norm")}
        others = [f"{name}={value!r}" for name, (value, default) in defaults.items() if value != default]
        expect_of_attributions(job.options, others)
    return Wanted(output, kind, length, prefix or "", chosen)


def _empty_folder(folder: str | Path) -> tuple[str, Any]:
    """Return the address of an empty or new folder, and its file system with the path in it."""
    if not isinstance(folder, (str, Path)):
        raise FileFormatError(f"the folder is {brief(folder)}: expected the name of a new one, for the Parquet files")
    address = str(folder) if "://" in str(folder) else str(Path(folder).absolute())
    expect_no_query(address)
    try:
        system, path = fs.FileSystem.from_uri(address) if "://" in address else (fs.LocalFileSystem(), address)
        file_type = system.get_file_info(path).type
        files = (
            system.get_file_info(fs.FileSelector(path, allow_not_found=True)) if file_type != fs.FileType.File else []
        )
        if file_type == fs.FileType.NotFound and isinstance(system, fs.LocalFileSystem):
            system.create_dir(path)  # so that a failure is reported before the dataset is read
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{folder} cannot be written to ({error}): expected a folder, or an address that pyarrow knows, such as "
            "s3://bucket/folder"
        ) from error
    if file_type == fs.FileType.File:
        raise FileFormatError(f"{folder} is a file: expected the name of a folder")
    if files:
        raise FileFormatError(
            f"{folder} holds {len(files)} files, such as {files[0].base_name!r}: expected a new or empty folder, so that it "
            "holds one run alone"
        )
    return address, (system, path)


def _tally_of_files(files: Any, address: str, job: Job) -> Tally:
    """Return the tally of the rows in the folder."""
    system, path = files
    entries = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return (
        tally_of_dataset(ray.data.read_parquet(address, partitioning=None), job.inputs.columns)[0]
        if entries
        else Tally()
    )


def _write_manifest(files: Any, job: Job, wanted: Wanted, rows: int | None) -> None:
    system, path = files
    inputs = {name: value for name, value in asdict(job.inputs).items() if value is not None}
    manifest = {
        "embgrad": __version__,
        "rows": rows,
        "point": job.point,
        "objective": described(as_objective(job.objective)),
        "inputs": inputs,
        **asdict(replace(wanted, method=None)),
        "method": None if wanted.method is None else wanted.method.describe(),
    }
    if wanted.method is None:
        del manifest["method"]
    text = json.dumps(manifest, indent=2, default=plain)  # may raise, before the file exists
    system.create_dir(path)
    with system.open_output_stream(f"{path}/{MANIFEST}") as stream:
        stream.write(text.encode())
