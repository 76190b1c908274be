"""`embgrad compare`: compare gradients from files or models; report how much they differ, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from embgrad.cli.command import command
from embgrad.cli.describe import Results
from embgrad.cli.files import load_results, restrict
from embgrad.cli.options import GradientRequest, Inputs, Models, Tolerance
from embgrad.cli.request import batch_from, compute, note_default
from embgrad.cli.run import DIFFER, OK
from embgrad.cli.terminal import Terminal
from embgrad.common.text import visible
from embgrad.common.tolerance import check_tolerance
from embgrad.loading.errors import UsageError

__all__ = [
    "against_first",
    "compare",
    "compare_models",
    "print_comparisons",
]

#: The parameters of commands that apply to files; all others apply to models only.
FOR_FILES: Final = ("files", "at", "tolerance", "as_json", "debug")

#: The options of gradients that are compared.
OfModels = Annotated[GradientRequest, "objective", "labels", "at", "batch_size", "training", "pads", "call"]


@command
def compare(
    terminal: Terminal,
    *,
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="A B", help="Two files of saved gradients; one may be '-', which is stdin."),
    ] = None,
    models: Models,
    inputs: Inputs,
    request: OfModels,
    tolerance: Tolerance = None,
) -> int:
    """Compare gradients: do they agree, by how much do they differ, and why. Exit code 0 if they agree, 1 if they differ.

    \b
    embgrad compare a.safetensors b.safetensors --tolerance 1e-5
    embgrad compare -m FOLDER --frameworks torch,tensorflow,gluon,jax,keras -f texts.txt
    embgrad compare -m FOLDER --against OTHER --framework torch -t "A gripping film." --at word --at layer.-1
    """
    if not files and models.model is None:
        raise UsageError("--model is missing: expected two files, or --model with --frameworks or --against")
    if files:
        _expect_none_for_models(context)
        _expect_two(files)
        results = restrict(load_results(files), request.at or ())
        return print_comparisons(against_first(results, tolerance, terminal), terminal)
    return print_comparisons(compare_models(models, inputs, request, tolerance, terminal), terminal)


def against_first(
    results: Mapping[str, Results],
    tolerance: float | None,
    terminal: Terminal,
    models: Mapping[str, Any] | None = None,
    call: Any = None,
) -> dict[str, Any]:
    """Compare each of the results with the first, by label; models, if given, are run again to find causes."""
    from embgrad.comparison.compare import compare as compare_results

    first, *rest = results
    comparisons = {}
    for label in rest:
        with terminal.busy(f"comparing {label} with {first} …"):
            pair = None if models is None else (models[first], models[label])
            comparisons[label] = compare_results(
                results[first], results[label], models=pair, tolerance=tolerance, call=call
            )
    return comparisons


def compare_models(
    models: Models,
    inputs: Inputs,
    request: GradientRequest,
    tolerance: float | None,
    terminal: Terminal,
) -> dict[str, Any]:
    """Compute the gradients of the models and compare each with the first; the models are run again to find causes."""
    request.expect()
    check_tolerance(tolerance)
    batch = batch_from(inputs, models.expect(), terminal, request)
    loaded = models.load(terminal)
    results: dict[str, Results] = {}
    used = request.parsed
    for label, model in loaded.items():
        used, results[label] = compute(model, batch, request, terminal, used)
    note_default(request, used, terminal)
    natives = {label: model.model for label, model in loaded.items()}
    return against_first(results, tolerance, terminal, natives, request.function())


def print_comparisons(comparisons: Mapping[str, Any], terminal: Terminal) -> int:
    """Print the comparisons and return the exit code: `OK` if all agree, else `DIFFER`."""
    agrees = all(comparison.agrees for comparison in comparisons.values())
    for number, (label, comparison) in enumerate(comparisons.items()):
        if number:
            terminal.say()
        terminal.say(
            f"{visible(label)}: {'agrees' if comparison.agrees else 'differs'}",
            style="bold green" if comparison.agrees else "bold red",
        )
        terminal.say(repr(comparison))
    reports = {label: comparison.to_dict() for label, comparison in comparisons.items()}
    terminal.give({"agrees": agrees, "comparisons": reports})
    return OK if agrees else DIFFER


def _expect_none_for_models(context: typer.Context) -> None:
    """Check that no option for models was passed together with files, where it would have no effect."""
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        if option.name not in FOR_FILES and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{option.opts[0]} is for models and has no effect on files: remove it")


def _expect_two(files: Sequence[str]) -> None:
    if len(files) != 2:
        raise UsageError(f"{len(files)} file{' was' if len(files) == 1 else 's were'} named: expected two to compare")
