"""The public functions: gradients of a dataset's rows, as a dataset, as Parquet files, or summed to the table's gradient."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import ray
import ray.data
from pyarrow import fs

from embgrad.attribution.method import Method
from embgrad.common.options import count_or_none
from embgrad.errors import BatchError, EmbgradError, EmbgradWarning, FileFormatError, brief, did_you_mean
from embgrad.objectives.objectives import as_objective, describe
from embgrad.ray.columns import Wanted
from embgrad.ray.settings import OUTPUTS, Job, Pool, actor_options, settings
from embgrad.ray.source import address_of, conform, expect_dataset, expect_parquet, plain_errors, unify
from embgrad.ray.tally import Tally, Total, expect_same_rows, tally_of
from embgrad.ray.worker import GradientWorker, TableWorker
from embgrad.results.file_format import plain
from embgrad.results.row_sparse import RowSparse
from embgrad.streaming.attributions import expect_of_attributions, method_from
from embgrad.version import __version__

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from embgrad.ray.settings import Options

__all__ = ["Written", "gradients", "table", "write"]

#: The number of batches in an actor's block: rows are grouped by length within a block, whose sum is sent on once.
BATCHES_A_BLOCK: Final = 4

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
        dataset: a `ray.data.Dataset`, such as `ray.data.read_parquet(path)`.
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
            `baseline_objective`, `delta` and `error`. A row has the same scores in whatever batch it is run. `output` and `kind`
            keep their defaults; of `Options`, `check`, `compile`, `override`, `add` and `edit` are for gradients alone.
        **options: see `Options`.

    Raises:
        EmbgradError: an option is not valid. Errors of rows are raised when the dataset is consumed, wrapped in errors of Ray;
            `plain_errors` unwraps them.
    """
    job, pool = settings(build, objective, options)
    wanted = _wanted_columns(output, kind, length, prefix, method, job)
    expect_dataset(dataset)
    return _compute(dataset, GradientWorker, (job, wanted), job, pool)


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
        FileFormatError: the folder is not empty or cannot be written to; or the values of a column are
            of incompatible types, which is detected before any model is built, unless `verify` is False.
    """
    job, pool = settings(build, objective, options)
    wanted = _wanted_columns(output, kind, length, prefix, method, job)
    expect_dataset(dataset)
    address, system, path = _empty_folder(folder)
    rows, count = dataset, None
    with plain_errors():
        if pool.verify:
            rows, before = _with_one_schema(rows, job)
            count = before.rows
        computed = _compute(rows, GradientWorker, (job, wanted), job, pool)
        computed.write_parquet(address, min_rows_per_file=FILE_ROWS[output])
        if pool.verify:
            there = system.get_file_info(fs.FileSelector(path))
            after = _tally_with_schemas(ray.data.read_parquet(address, partitioning=None), job)[0] if there else Tally()
            expect_same_rows(before, after, f"what was written to {address}")
    with system.open_output_stream(f"{path}/{MANIFEST}") as stream:
        stream.write(_manifest(job, wanted, count))
    return Written(address, count, count)


def table(
    dataset: Any,
    build: Callable[[], Any],
    objective: Any,
    *,
    reduce: str = "sum",
    **options: Unpack[Options],
) -> RowSparse:
    """Return the table's gradient over a whole dataset, (vocab, dim): Σ over rows and positions, or its mean over the rows.

    Actors sum up block by block, and this process adds up their sums, one at a time. Each of these records the rows that it
    covers, and those of the total are compared with the dataset's: no row is lost and none is counted twice, whatever failed
    meanwhile. Padding does not contribute.

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
    if reduce not in ("sum", "mean"):
        raise EmbgradError(
            f"reduce is {reduce!r}: expected 'sum' or 'mean'.{did_you_mean(str(reduce), ('sum', 'mean'))}"
        )
    expect_dataset(dataset)
    total = Total()
    with plain_errors():
        before = _tally_with_schemas(dataset, job)[0] if pool.verify else None
        computed = _compute(dataset, TableWorker, (job,), job, pool)
        for block in computed.iter_batches(batch_format="pyarrow", batch_size=None):
            total.add_arrow(block)
    if before is not None:
        expect_same_rows(before, total.tally, "the sum")
    whole = total.table(wide=True)
    if whole is None:
        raise BatchError("the dataset holds no row: expected one at least")
    values = whole.values / (total.tally.rows if reduce == "mean" else 1)
    return RowSparse(whole.rows, values.astype(total.dtype), whole.shape)


def _wanted_columns(
    output: str, kind: str, length: int | None, prefix: str | None, method: Method | str | None, job: Job
) -> Wanted:
    """Return the requested columns."""
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
        expect_of_attributions(
            job.options, [f"{name}={value!r}" for name, (value, default) in defaults.items() if value != default]
        )
    return Wanted(output, kind, length, prefix or "", chosen)


def _compute(rows: Any, worker: type, arguments: tuple[Any, ...], job: Job, pool: Pool) -> Any:
    """Return the dataset of the results that actors compute from the rows."""
    if not ray.is_initialized():
        ray.init()  # as Ray Data does: at RAY_ADDRESS, or on this machine
    options = actor_options(pool)
    options["num_cpus"] = _cpus(options["num_cpus"], pool.workers)
    block = job.batch_size * BATCHES_A_BLOCK
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about the limits on restarts
        # Ray reads a file of a hundred thousand texts as one block: a single actor would process all of it, and losing that actor
        # would lose all of the work.
        return rows.repartition(target_num_rows_per_block=block).map_batches(
            worker,
            fn_constructor_args=arguments,
            batch_size=block,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=pool.workers),
            **options,
        )


def _cpus(num_cpus: float | None, workers: int) -> float:
    """Return the CPUs of each actor, which leave one to the tasks that read the dataset: without it all wait for each other.

    By default the actors take half of the others at most, since actors that produce the dataset run at the same time.
    """
    available = float(ray.cluster_resources().get("CPU", 0))
    if num_cpus is None:
        return min(1.0, max(available - 1, 0) / (2 * workers)) if available else 1.0
    if available and available - num_cpus * workers < 1:
        warnings.warn(
            f"{workers} actors of num_cpus={num_cpus} leave none of the cluster's {available:g} CPUs to read the dataset: unless "
            "the cluster grows, the run waits for ever. Lower num_cpus or workers",
            EmbgradWarning,
            stacklevel=4,
        )
    return num_cpus


def _tally_with_schemas(rows: Any, job: Job) -> tuple[Tally, list[pa.Schema]]:
    """Return the tally of a dataset, which is read once and not kept in memory, and the schemas of its blocks."""
    columns = job.inputs.columns

    def count(block: pa.Table) -> pa.Table:
        tally, schema = tally_of(block, columns), block.schema.remove_metadata().serialize().to_pybytes()
        return pa.table(
            {"rows": [tally.rows], "fingerprint": pa.array([tally.fingerprint], pa.uint64()), "schema": [schema]}
        )

    total, schemas = Tally(), dict[bytes, None]()
    for row in rows.map_batches(count, batch_format="pyarrow", batch_size=None).iter_rows():
        if row["rows"]:
            total += Tally(int(row["rows"]), int(row["fingerprint"]))
            schemas[row["schema"]] = None
    return total, [pa.ipc.read_schema(pa.py_buffer(schema)) for schema in schemas]


def _with_one_schema(rows: Any, job: Job) -> tuple[Any, Tally]:
    """Return the rows with the same columns in all blocks, and their tally."""
    tally, schemas = _tally_with_schemas(rows, job)
    if not schemas:  # there are no rows
        return rows, tally
    schema = unify(schemas)
    expect_parquet(schema)
    if len(schemas) == 1:
        return rows, tally
    rows = rows.map_batches(conform, fn_args=(schema,), batch_format="pyarrow", batch_size=None)
    return rows, _tally_with_schemas(rows, job)[0]  # again: raises for values that the wider type cannot hold


def _empty_folder(folder: str | Path) -> tuple[str, Any, str]:
    """Return the address of a folder, created and empty, its file system, and its path in it."""
    if not isinstance(folder, (str, Path)):
        raise FileFormatError(f"the folder is {brief(folder)}: expected the name of a new one, for the Parquet files")
    address = address_of(folder)
    try:
        system, path = fs.FileSystem.from_uri(address)
        system.create_dir(path)  # so that a failure is reported before the dataset is read
        files = system.get_file_info(fs.FileSelector(path))
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{folder} cannot be written to ({error}): expected a folder, or an address that pyarrow knows, such as "
            "s3://bucket/folder"
        ) from error
    if files:
        raise FileFormatError(
            f"{folder} holds {len(files)} files, such as {files[0].base_name!r}: expected a new or empty folder, so that it "
            "holds one run alone"
        )
    return address, system, path


def _manifest(job: Job, wanted: Wanted, rows: int | None) -> bytes:
    """Return the content of the file that records the arguments of a run."""
    manifest = {
        "embgrad": __version__,
        "rows": rows,
        "point": job.point,
        "objective": describe(as_objective(job.objective)),
        "inputs": {name: value for name, value in asdict(job.inputs).items() if value is not None},
        **{name: value for name, value in vars(wanted).items() if name != "method"},
    }
    if wanted.method is not None:
        manifest["method"] = wanted.method.describe()
    return json.dumps(manifest, indent=2, default=plain).encode()
