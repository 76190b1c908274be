"""`embgrad gradients --ray`: the gradients of a dataset's rows, computed on Ray and written to a folder of Parquet files."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from embgrad.cli.options import GradientRequest, Inputs, Models, of_ray
from embgrad.cli.request import warn_truncated
from embgrad.cli.terminal import Terminal
from embgrad.errors import did_you_mean
from embgrad.loading.errors import UsageError
from embgrad.loading.models import expect_models, load_model
from embgrad.loading.objectives import parse_objective
from embgrad.loading.tokenizer import tokenizer_from, tokenizer_of
from embgrad.loading.user_objects import expect_function, import_object
from embgrad.objectives.objectives import Objective

__all__ = ["OnRay", "write_on_ray"]

#: The permitted values of --give. The gradients themselves need a fixed length and are available from Python only.
OUTPUTS: Final = ("saliency", "tables")


@dataclass(frozen=True)
class OnRay:
    """The options of a run on Ray; all but the first need it."""

    ray: Annotated[
        bool,
        of_ray(
            "--ray",
            help="Run on Ray, at RAY_ADDRESS or else on this machine. --file is then Parquet, JSON lines or texts, and --labels "
            "and --ids name columns.",
        ),
    ] = False
    workers: Annotated[
        int | None, of_ray("--workers", metavar="N", help="The number of processes that hold the model. Default: 2.")
    ] = None
    column: Annotated[
        str | None, of_ray("--column", metavar="NAME", help="The column of the texts. Default: text.")
    ] = None
    give: Annotated[
        str | None,
        of_ray(
            "--give",
            metavar="saliency|tables",
            help="What to write: the saliency of each position (default), or each row's table gradient.",
        ),
    ] = None
    prefix: Annotated[
        str | None,
        of_ray(
            "--prefix",
            metavar="TEXT",
            help="A prefix for the names of the new columns, in case the rows already have columns of these names.",
        ),
    ] = None

    def expect(self, request: GradientRequest, output: str | None) -> None:
        """Check the options of a run on Ray.

        Raises:
            UsageError: one cannot be used on Ray, or --output is missing.
        """
        for name in ("split", "training"):
            if getattr(request, name):
                raise UsageError(
                    f"--{name} cannot be used with --ray, which decides what rows share a batch: remove it"
                )
        if output is None or output == "-":
            raise UsageError("--ray needs --output: expected the name of a new folder, for the Parquet files")


def write_on_ray(
    models: Models, inputs: Inputs, request: GradientRequest, on: OnRay, output: str, terminal: Terminal
) -> dict[str, Any]:
    """Write the rows' gradients into the folder; return the numbers of rows and the folder, for JSON.

    Raises:
        UsageError: an option cannot be used with --ray, or a required one is missing.
        MissingPackageError: Ray is not installed.
    """
    _expect(inputs, request, on)
    objective = _objective(request)
    from embgrad.ray.run import write

    _expect_file(str(inputs.file))
    model, framework, ignore = models.single(), models.framework, models.ignore or ()
    expect_models([(model, framework)], ignore)
    tokenizer = None if inputs.tokenizer is None else _absolute(inputs.tokenizer)
    build = functools.partial(_build, _absolute(model), framework, tuple(ignore), tokenizer, inputs.ids is None)
    with _cluster(terminal.debug), terminal.busy(f"gradients of {inputs.file} on Ray …"):
        written = write(str(inputs.file), build, objective, output, **_options(inputs, request, on))
        if inputs.max_length is not None and written.rows_out:
            _warn_cut(written.folder, f"{on.prefix or ''}truncated", written.rows_out, inputs.max_length, terminal)
    terminal.say(f"{written.rows_in} rows in, {written.rows_out} rows out, written to {output}")
    return {"rows_in": written.rows_in, "rows_out": written.rows_out, "folder": output}


def _options(inputs: Inputs, request: GradientRequest, on: OnRay) -> dict[str, Any]:
    """Return the keyword arguments for `embgrad.ray.write`."""
    return {
        "output": on.give or OUTPUTS[0],
        "prefix": on.prefix or "",
        "text": on.column,
        "ids": inputs.ids,
        "max_length": inputs.max_length,
        "batch_size": request.batch_size,
        "workers": on.workers,
        "call": None if request.call is None else functools.partial(_call, _absolute(request.call)),
        "at": request.at[0] if request.at else None,
        "pads": request.pads,
        "check": request.check,
    }


def _expect(inputs: Inputs, request: GradientRequest, on: OnRay) -> None:
    """Check the options, before Ray is started."""
    foreign = {"--text": inputs.text, "--pair": inputs.pair, "--pairs": inputs.pairs}
    passed = [name for name, value in foreign.items() if value]
    if passed:
        raise UsageError(f"{passed[0]} cannot be used with --ray, which reads the rows of --file: remove it")
    if inputs.file is None or inputs.file == "-":
        raise UsageError("--ray needs --file: expected a file of Parquet, JSON lines (.jsonl) or texts (.txt)")
    if inputs.ids and on.column:
        raise UsageError("--ids names the column of the ids, and --column that of the texts: pass only one")
    if request.objective is None and request.labels is None:
        raise UsageError("--ray needs --objective, such as 'Sum(output=\"pooled\")', or --labels COLUMN")
    if on.give is not None and on.give not in OUTPUTS:
        raise UsageError(
            f"--give {on.give!r}: expected saliency or tables. In Python, embgrad.ray also writes the gradients themselves."
            f"{did_you_mean(on.give, OUTPUTS)}"
        )
    expect_function(request.call, "--call")
    if len(request.at or ()) > 1:
        raise UsageError(
            "--ray computes the gradients at one point: expected one --at. Run the command once for each point"
        )


def _expect_file(file: str) -> None:
    """Check that a local file exists, before Ray is started; Ray itself resolves URLs and patterns."""
    if "://" not in file and not any(mark in file for mark in "*?[") and not Path(file).exists():
        raise UsageError(f"--file {file!r} does not exist: expected a file or folder of rows")


def _warn_cut(folder: str, column: str, rows: int, most: int, terminal: Terminal) -> None:
    """Warn how many tokens were truncated, in the same words as without Ray."""
    import ray.data

    tokens = cut = 0
    for block in ray.data.read_parquet(folder, columns=[column], partitioning=None).iter_batches(batch_format="numpy"):
        tokens, cut = tokens + int(block[column].sum()), cut + int((block[column] > 0).sum())
    warn_truncated(tokens, cut, rows, most, terminal)


@contextlib.contextmanager
def _cluster(debug: bool) -> Iterator[None]:
    """Connect to the cluster of RAY_ADDRESS, or start Ray on this machine; on exit disconnect, or stop it."""
    import ray
    import ray.data

    started_here = not ray.is_initialized()
    if started_here:
        options: dict[str, Any] = (
            {} if os.environ.get("RAY_ADDRESS") else {"address": "local", "include_dashboard": False}
        )
        ray.init(log_to_driver=debug, logging_level=logging.INFO if debug else logging.ERROR, **options)
    if not debug:
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # the command prints the error itself, in one line
        ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield
    finally:
        if started_here:
            ray.shutdown()


def _build(model: str, framework: str | None, ignore: Sequence[str], tokenizer: str | None, texts: bool) -> Any:
    """Return the model, with its tokenizer if the rows are texts; runs in an actor."""
    loaded = load_model(model, framework, ignore)
    if not texts:
        # `embgrad.ray` takes several modules as a list.
        return list(loaded.model) if isinstance(loaded.model, tuple) else loaded.model
    if tokenizer is not None:
        return loaded.model, tokenizer_from(tokenizer)
    if loaded.folder is None:
        raise UsageError(
            "texts need a tokenizer, and the model has no folder that holds one: name it with --tokenizer, or give --ids COLUMN"
        )
    return loaded.model, tokenizer_of(loaded.folder)


def _call(spelled: str, model: Any, inputs: Any) -> Any:
    return import_object(spelled)(model, inputs)


def _objective(request: GradientRequest) -> Objective | Callable[[Mapping[str, Any]], Objective] | None:
    if request.labels is None:
        return parse_objective(request.objective)
    parse_objective(request.objective, [0])  # raises if the text is not an objective
    objective = functools.partial(_objective_of, request.objective, request.labels)
    # The manifest of the folder identifies a function by its qualified name.
    vars(objective)["__qualname__"] = f"{request.objective or 'CrossEntropy'}, labels of the column {request.labels!r}"
    return objective


def _objective_of(spelled: str | None, column: str, rows: Mapping[str, Any]) -> Objective:
    """Return the objective of a block of rows; runs in an actor."""
    objective = parse_objective(spelled, rows[column].tolist())
    assert objective is not None
    return objective


def _absolute(spelled: str) -> str:
    """Return a path, or path.py:name, as an absolute path; module:name is returned unchanged."""
    source, colon, name = spelled.rpartition(":")
    if colon and source.endswith(".py"):
        return f"{Path(source).resolve()}:{name}"
    return str(Path(spelled).resolve()) if Path(spelled).exists() else spelled
