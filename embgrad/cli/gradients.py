"""`embgrad gradients`: compute the gradients of texts in one model; print a summary or write a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from embgrad.cli import options as o
from embgrad.cli.describe import Results, described, named, print_summary
from embgrad.cli.errors import UsageError
from embgrad.cli.files import expect_writable
from embgrad.cli.models import expect_model, expect_models, load_model
from embgrad.cli.ray_run import OnRay, write_on_ray
from embgrad.cli.request import GradientRequest, Inputs, batch_from, compute, note_default
from embgrad.cli.run import OK, execute, own_process
from embgrad.cli.terminal import Terminal

__all__ = ["gradients"]


def gradients(
    model: o.Model = None,
    framework: o.Framework = None,
    text: o.TextOption = None,
    pair: o.Pair = None,
    file: o.File = None,
    pairs: o.Pairs = False,
    ids: o.Ids = None,
    tokenizer: o.Tokenizer = None,
    max_length: o.MaxLength = None,
    objective: o.ObjectiveText = None,
    labels: o.Labels = None,
    at: o.At = None,
    batch_size: o.BatchSize = None,
    training: o.Training = False,
    pads: o.Pads = "keep",
    split: Annotated[
        bool,
        typer.Option(
            "--split", help="Run one backward pass per example, for models in which examples affect each other."
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check the gradient by finite differences, and fail if it is wrong.")
    ] = False,
    ignore: o.Ignore = None,
    call: o.Call = None,
    ray: o.Ray = False,
    workers: o.Workers = None,
    column: o.Column = None,
    give: o.Give = None,
    prefix: o.Prefix = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The safetensors file to write, for embgrad.load; '-' is stdout. With --ray, a new folder for Parquet files.",
        ),
    ] = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Compute the gradient of an objective with respect to the embeddings of texts.

    \b
    embgrad gradients -m FOLDER --framework torch -t "A gripping film." -o g.safetensors
    embgrad gradients -m FOLDER -f texts.txt --labels 0,1,1 --at word --at layer.-1 -o g.safetensors
    embgrad gradients -m my.py:build --ids ids.json --objective "Logit(1)" --json
    embgrad gradients -m FOLDER --ray -f reviews.parquet --labels label -o FOLDER_OF_PARQUET
    cut -f2 reviews.tsv | embgrad gradients -m FOLDER -o - | embgrad show -
    """

    def work(terminal: Terminal) -> int:
        _expect(model, output, terminal, ray)
        inputs = Inputs(text or (), o.pairs_from(pair), file, pairs, ids, tokenizer, max_length)
        if ray:
            on = OnRay(objective, labels, at or (), batch_size, pads, check, call, workers, column, give, prefix)
            _expect_on_ray(split, training, output)
            terminal.give(write_on_ray(str(model), framework, ignore or (), inputs, on, str(output), terminal))
            return OK
        _expect_no_ray(workers, column, give, prefix)
        request = GradientRequest(objective, labels, at or (), batch_size, training, pads, check, split, call)
        expect_models([(str(model), framework)], ignore or (), own_process=own_process())
        batch = batch_from(inputs, [str(model)], terminal, request)
        with terminal.busy(f"loading {model} …"):
            loaded = load_model(str(model), framework, ignore or ())
        used, results = compute(loaded, batch, request, terminal)
        note_default(request, used, terminal)
        if output is not None:
            _write(results, output, terminal)
        if output != "-":
            print_summary(results, terminal)
            terminal.say(f"written to {output}" if output is not None else "")
        terminal.give(_for_json(results, loaded.framework, output))
        return OK

    execute(work, as_json=as_json, debug=debug)


def _expect_on_ray(split: bool, training: bool, output: str | None) -> None:
    for name, value in {"--split": split, "--training": training}.items():
        if value:
            raise UsageError(f"{name} cannot be used with --ray, which decides what rows share a batch: remove it")
    if output is None or output == "-":
        raise UsageError("--ray needs --output: expected the name of a new folder, for the Parquet files")


def _expect_no_ray(workers: int | None, column: str | None, give: str | None, prefix: str | None) -> None:
    for name, value in {"--workers": workers, "--column": column, "--give": give, "--prefix": prefix}.items():
        if value is not None:
            raise UsageError(f"{name} requires --ray: add --ray, or remove it")


def _expect(model: str | None, output: str | None, terminal: Terminal, ray: bool = False) -> None:
    expect_model(model)
    if output == "-" and terminal.as_json:
        raise UsageError("-o - writes the file to stdout, which --json uses as well: pass only one")
    if output == "-" and terminal.stream.isatty():
        raise UsageError("-o - writes a binary file, but stdout is a terminal: pipe the output, or name a file")
    if output is not None and not ray:
        expect_writable(output)


def _write(results: Results, output: str, terminal: Terminal) -> None:
    """Write the results to the file, or to stdout, to which nothing else is written in that case."""
    from embgrad.results.io import save

    if output != "-":
        save(results, output)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g.safetensors"
        save(results, path)
        terminal.binary.write(path.read_bytes())


def _for_json(results: Results, framework: str, output: str | None) -> dict[str, Any]:
    return {
        "framework": framework,
        "results": {name: described(result) for name, result in named(results).items()},
        "file": output,
    }
