"""`embgrad check-port`: whether a model, a dump or an .onnx file computes what another one computes, and if not, why."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

import embgrad
from embgrad.cli.command import command
from embgrad.cli.files import expect_writable
from embgrad.cli.options import GradientRequest, Inputs, Models, of_comparison, of_objective, of_output
from embgrad.cli.request import batch_from
from embgrad.cli.result_lines import port_lines
from embgrad.cli.run import DIFFER, OK, own_process
from embgrad.cli.terminal import Terminal
from embgrad.comparison.dump_format import holds_dump
from embgrad.comparison.floor import ROUNDOFFS
from embgrad.errors import quote
from embgrad.inputs.batch import TokenBatch
from embgrad.loading.errors import UsageError
from embgrad.loading.models import expect_models, load_model

__all__ = ["check_port"]


@command
def check_port(
    terminal: Terminal,
    *,
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="REFERENCE PORT",
            help="The model to measure against and its port: each a checkpoint or SavedModel folder, an .onnx file, your own "
            "model as path/to/file.py:name, or a folder that embgrad dump has written.",
        ),
    ] = None,
    models: Annotated[Models, "frameworks", "framework", "ignore"],
    inputs: Inputs,
    request: Annotated[GradientRequest, "call"],
    objective: Annotated[
        str | None,
        of_objective(
            "--objective",
            metavar="OBJECTIVE",
            help="The objective of gradients to compare too, in Python syntax, such as Sum() or Logit(1). Default: values alone.",
        ),
    ] = None,
    floor: Annotated[
        str | None,
        of_comparison(
            "--floor",
            metavar="DTYPE",
            help=f"The dtype whose rounding counts as agreement: {', '.join(ROUNDOFFS)}. Default: that of the models, at least "
            "float32.",
        ),
    ] = None,
    html: Annotated[str | None, of_output("--html", metavar="PAGE", help="The HTML page to write.")] = None,
    output: Annotated[
        str | None, of_output("--output", "-o", metavar="FILE", help="The safetensors file to write, for embgrad.load.")
    ] = None,
) -> int:
    """Check whether a model is a right port of another one. Exit code 0 if they agree, 1 if they differ, 2 if nothing is known.

    \b
    embgrad check-port FOLDER FOLDER --frameworks torch,jax -t "A gripping film."
    embgrad check-port old.py:build model.onnx --ids ids.json --html port.html
    embgrad check-port reference/ new.py:build    # a dump, with its own texts
    """
    if sides is None or len(sides) != 2:
        raise UsageError(f"{len(sides or ())} models were named: expected two, embgrad check-port REFERENCE PORT")
    _expect_written(html, output)
    if floor is not None and floor not in ROUNDOFFS:
        raise UsageError(f"--floor is {floor!r}: expected one of {quote(ROUNDOFFS)}")
    request = replace(request, objective=objective)
    request.expect()
    specified = replace(models, model=sides[0], against=sides[1]).specify()
    live = [entry for entry in specified if not holds_dump(entry[0])]
    expect_models(live, models.ignore or (), own_process=own_process())
    batch = _batch(inputs, [spelled for spelled, _ in live], terminal, request)
    reference, port = (_load(*entry, models, terminal) for entry in specified)
    with terminal.busy("running both models …"):
        report = embgrad.check_port(reference, port, batch, request.parsed, call=request.function(), floor=floor)
    if html is not None:
        report.to_html(html)
    if output is not None:
        report.save(output)
    for line in port_lines(report):
        terminal.say(line)
    for path in filter(None, (html, output)):
        terminal.say(f"written to {path}")
    terminal.give({"models": sides, **report.to_dict()})
    return OK if report.agrees else DIFFER


def _expect_written(html: str | None, output: str | None) -> None:
    for option, path in {"--html": html, "--output": output}.items():
        if path == "-":
            raise UsageError(f"{option} is '-', but the report is printed on stdout: expected the name of a file")
        if path is not None:
            expect_writable(path, option)


def _batch(inputs: Inputs, live: list[str], terminal: Terminal, request: GradientRequest) -> TokenBatch | None:
    """Return the batch of the inputs; None where there are none and a dump has its own."""
    if len(live) < 2 and not any((inputs.text, inputs.pair, inputs.file, inputs.ids)):
        return None
    return batch_from(inputs, live, terminal, request)


def _load(spelled: str, framework: str | None, models: Models, terminal: Terminal) -> Any:
    """Return a model; of a dump its folder."""
    if holds_dump(spelled):
        return spelled
    with terminal.busy(f"loading {spelled} …"):
        return load_model(spelled, framework, models.ignore or ()).model
