"""`embgrad attribute`: compute how much each word of texts contributes to the objective; print it or write files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from embgrad.attribution.attribute import attribute as attributed
from embgrad.attribution.method import Method
from embgrad.cli import options as o
from embgrad.cli.attribution_lines import attribution_legend, attribution_lines
from embgrad.cli.describe import described, model_of
from embgrad.cli.files import expect_files, say_written, write_files
from embgrad.cli.methods import methods_from
from embgrad.cli.models import expect_model
from embgrad.cli.request import (
    GradientRequest,
    Inputs,
    call_from,
    loaded_with_batch,
    note_default,
    with_objective,
)
from embgrad.cli.run import OK, execute
from embgrad.cli.terminal import Terminal
from embgrad.common.text import visible
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.objectives import Objective
from embgrad.results.attribution import Attribution, Attributions

__all__ = ["attribute"]

DEFAULT: Final = ("integrated-gradients",)


def attribute(
    model: o.Model = None,
    framework: o.Framework = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="METHOD",
            help="saliency, input-x-gradient, integrated-gradients (the default), smooth-grad, gradient-shap, "
            "sequential-integrated-gradients, discretized-integrated-gradients, occlusion, lime or kernel-shap. May be repeated.",
        ),
    ] = None,
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An argument of the method, such as steps=50, baseline=mask, samples=200 or seed=1; of several methods, of each "
            "that has it. May be repeated.",
        ),
    ] = None,
    text: o.TextOption = None,
    pair: o.Pair = None,
    file: o.File = None,
    pairs: o.Pairs = False,
    ids: o.Ids = None,
    tokenizer: o.Tokenizer = None,
    max_length: o.MaxLength = None,
    objective: o.ObjectiveText = None,
    labels: o.Labels = None,
    at: Annotated[
        str,
        typer.Option("--at", metavar="POINT", help="The point: word (the default), embeddings, layer.0, layer.-1, …"),
    ] = "word",
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="Run at most N examples, steps or samples at once.")
    ] = None,
    training: o.Training = False,
    pads: o.Pads = "keep",
    ignore: o.Ignore = None,
    call: o.Call = None,
    output: o.Output = None,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="PAGE", help="The HTML page to write, with the methods side by side."),
    ] = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Compute how much each word contributes to the objective, by one or several methods, and print the words coloured by sign.

    \b
    embgrad attribute -m FOLDER -t "A gripping film." --method integrated-gradients --set steps=50 --set baseline=mask
    embgrad attribute -m FOLDER -f texts.txt --method saliency --method occlusion --objective "Logit(1)" --html page.html
    embgrad attribute -m FOLDER -t "A gripping film." -o a.safetensors
    """

    def work(terminal: Terminal) -> int:
        methods = methods_from(method or DEFAULT, argument or ())
        expect_model(model)
        expect_files({"--output": output, "--html": html}, printed="words")
        inputs = Inputs(text or (), o.pairs_from(pair), file, pairs, ids, tokenizer, max_length)
        request = GradientRequest(objective, labels, (at,), batch_size, training, pads, call=call)
        loaded, batch, of_texts = loaded_with_batch(str(model), framework, ignore or (), inputs, terminal, request)
        with terminal.busy(f"attributing in {loaded.framework} …"):
            used, results = _computed(loaded.model, batch, request, methods, of_texts)
        note_default(request, used, terminal)
        write_files(results, output, html)
        _print(results, terminal)
        say_written(terminal, output, html)
        answer = {name: described(result) for name, result in results.items()}
        terminal.give({"framework": loaded.framework, "results": answer, "file": output, "page": html})
        return OK

    execute(work, as_json=as_json, debug=debug)


def _computed(
    model: Any, batch: TokenBatch, request: GradientRequest, methods: Mapping[str, Method], tokenizer: Any
) -> tuple[Objective, Attributions]:
    def run(objective: Objective) -> Attributions:
        return attributed(
            model,
            batch,
            objective,
            methods,
            at=request.at[0],
            tokenizer=tokenizer,
            call=call_from(request),
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
        for example, line in enumerate(attribution_lines(result, terminal, words=result.tokens is not None)):
            terminal.say(line)
            terminal.say(_figures(result, example), style="dim")
        terminal.say(attribution_legend(result, terminal.coloured), style="dim")
        terminal.say()


def _figures(result: Attribution, example: int) -> str:
    """Return the figures of an example in one line."""
    parts = [f"objective {result.objective[example]:.6g}"]
    if result.baseline_objective is not None:
        parts.append(f"at the baseline {result.baseline_objective[example]:.6g}")
    if result.delta is not None:
        parts.append(f"error of completeness {result.delta[example]:.2g}")
    return ", ".join(parts)
