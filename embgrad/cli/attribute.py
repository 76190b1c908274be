"""`embgrad attribute`: compute how much each word of texts contributes to the objective; print it or write files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from embgrad.attribution.attribute import attribute as attributed
from embgrad.attribution.method import Method
from embgrad.cli.command import command
from embgrad.cli.describe import describe, model_of
from embgrad.cli.files import Files
from embgrad.cli.methods import methods_from
from embgrad.cli.options import GradientRequest, Inputs, OneModel, of_method, of_points
from embgrad.cli.request import load_with_batch, note_default, with_objective
from embgrad.cli.result_lines import legend_of, result_lines
from embgrad.cli.run import OK
from embgrad.cli.table import TableOptions, write_table
from embgrad.cli.terminal import Terminal
from embgrad.common.text import visible
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.objectives import Objective
from embgrad.results.attribution import Attribution, Attributions

__all__ = ["attribute"]

DEFAULT: Final = ("integrated-gradients",)


@command
def attribute(
    terminal: Terminal,
    *,
    models: OneModel,
    method: Annotated[
        list[str] | None,
        of_method(
            "--method",
            metavar="METHOD",
            help="saliency, input-x-gradient, integrated-gradients (the default), smooth-grad, gradient-shap, "
            "sequential-integrated-gradients, discretized-integrated-gradients, occlusion, lime or kernel-shap. May be repeated.",
        ),
    ] = None,
    argument: Annotated[
        list[str] | None,
        of_method(
            "--set",
            metavar="NAME=VALUE",
            help="An argument of the method, such as steps=50, baseline=mask, samples=200 or seed=1; of several methods, of each "
            "that has it. May be repeated.",
        ),
    ] = None,
    inputs: Inputs,
    request: Annotated[GradientRequest, "objective", "labels", "batch_size", "training", "pads", "call"],
    at: Annotated[
        str,
        of_points("--at", metavar="POINT", help="The point: word (the default), embeddings, layer.0, layer.-1, …"),
    ] = "word",
    files: Files,
    table: TableOptions,
) -> int:
    """Compute how much each word contributes to the objective, by one or several methods, and print the words coloured by sign.

    \b
    embgrad attribute -m FOLDER -t "A gripping film." --method integrated-gradients --set steps=50 --set baseline=mask
    embgrad attribute -m FOLDER -f texts.txt --method saliency --method occlusion --objective "Logit(1)" --html page.html
    embgrad attribute -m FOLDER -t "A gripping film." -o a.safetensors
    embgrad attribute -m FOLDER -f reviews.txt --method input-x-gradient --to scores.parquet
    """
    methods = methods_from(method or DEFAULT, argument or ())
    files.expect(printed="words")
    table.expect()
    request.expect()
    if table.to is not None and files.output is None and files.html is None:
        return write_table(table, methods, models, inputs, request, at, terminal)
    loaded, batch, tokenizer = load_with_batch(models, inputs, request, terminal)
    with terminal.busy(f"attributing in {loaded.framework} …"):
        used, results = _compute(loaded.model, batch, request, methods, at, tokenizer)
    note_default(request, used, terminal)
    files.write(results)
    table.write(results)
    _print(results, terminal)
    files.say_written(terminal)
    table.say_written(terminal)
    answer = {name: describe(result) for name, result in results.items()}
    terminal.give(
        {"framework": loaded.framework, "results": answer, "file": files.output, "page": files.html, "table": table.to}
    )
    return OK


def _compute(
    model: Any, batch: TokenBatch, request: GradientRequest, methods: Mapping[str, Method], at: str, tokenizer: Any
) -> tuple[Objective, Attributions]:
    def run(objective: Objective) -> Attributions:
        return attributed(
            model,
            batch,
            objective,
            methods,
            at=at,
            tokenizer=tokenizer,
            call=request.function(),
            training=request.training,
            pads=request.pads,
            batch_size=request.batch_size,
        )

    return with_objective(request.parsed, run)


def _print(results: Mapping[str, Attribution], terminal: Terminal) -> None:
    for name, result in results.items():
        terminal.say(
            f"{name.replace('_', '-')} at {visible(str(result.provenance['point']))}, {model_of(result)}", style="bold"
        )
        for example, line in enumerate(result_lines(result, terminal, words=result.tokens is not None)):
            terminal.say(line)
            terminal.say(_figures(result, example), style="dim")
        terminal.say(legend_of(result, terminal.coloured), style="dim")
        terminal.say()


def _figures(result: Attribution, example: int) -> str:
    """Return the figures of an example in one line."""
    parts = [f"objective {result.objective[example]:.6g}"]
    if result.baseline_objective is not None:
        parts.append(f"at the baseline {result.baseline_objective[example]:.6g}")
    if result.delta is not None:
        parts.append(f"error of completeness {result.delta[example]:.2g}")
    return ", ".join(parts)
