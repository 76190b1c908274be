"""`embgrad dump`: the values, gradients and weights of a model in a folder, to check a port of it elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from embgrad.cli.command import command
from embgrad.cli.options import GradientRequest, Inputs, Models, of_objective, of_output
from embgrad.cli.request import load_with_batch
from embgrad.cli.run import OK
from embgrad.cli.terminal import Terminal
from embgrad.loading.errors import UsageError

__all__ = ["dump"]


@command
def dump(
    terminal: Terminal,
    *,
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL FOLDER",
            help="The model: a checkpoint or SavedModel folder, an .onnx file, or your own as path/to/file.py:name. The folder "
            "to write: a new or empty one, or a dump, which is replaced.",
        ),
    ] = None,
    models: Annotated[Models, "framework", "ignore"],
    inputs: Inputs,
    request: Annotated[GradientRequest, "call"],
    objective: Annotated[
        str | None,
        of_objective(
            "--objective",
            metavar="OBJECTIVE",
            help="The objective of gradients to write too, in Python syntax, such as Sum() or Logit(1). Default: values alone.",
        ),
    ] = None,
    without_weights: Annotated[
        bool,
        of_output(
            "--no-weights", help="Write fingerprints of the weights alone; a weight that differs is then not compared."
        ),
    ] = False,
) -> int:
    """Write what a model computes to a folder, which embgrad check-port takes in the place of the model.

    \b
    embgrad dump FOLDER reference/ -t "A gripping film." -t "The keys to the cabinet"
    embgrad dump old.py:build reference/ --ids ids.json --objective "Sum()"
    """
    if named is None or len(named) != 2:
        raise UsageError(
            f"{len(named or ())} names were given: expected a model and a folder, embgrad dump MODEL FOLDER"
        )
    model, folder = named
    request = replace(request, objective=objective)
    request.expect()
    from embgrad.comparison.dump import dump as write
    from embgrad.comparison.dump import expect_free

    expect_free(folder)
    loaded, batch, _ = load_with_batch(replace(models, model=model), inputs, request, terminal)
    with terminal.busy("running the model …"):
        write(loaded.model, batch, folder, request.parsed, call=request.function(), weights=not without_weights)
    terminal.say(f"written to {folder}")
    terminal.give({"folder": folder, "examples": len(batch)})
    return OK
