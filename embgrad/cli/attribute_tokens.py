"""`embgrad attribute-tokens`: compute which tokens made each output token of a language model likely; print it or write files."""

from __future__ import annotations

from typing import Annotated

import typer

from embgrad.attribution.attribute_tokens import attribute_tokens as attributed
from embgrad.cli import options as o
from embgrad.cli.attribution_lines import attribution_legend, token_lines
from embgrad.cli.describe import described, model_of
from embgrad.cli.files import expect_files, say_written, write_files
from embgrad.cli.methods import methods_from
from embgrad.cli.models import expect_model
from embgrad.cli.request import GradientRequest, Inputs, call_from, loaded_with_batch
from embgrad.cli.run import OK, execute
from embgrad.cli.terminal import Terminal
from embgrad.common.text import visible

__all__ = ["attribute_tokens"]


def attribute_tokens(
    model: o.Model = None,
    framework: o.Framework = None,
    text: o.TextOption = None,
    file: o.File = None,
    ids: o.Ids = None,
    tokenizer: o.Tokenizer = None,
    max_length: o.MaxLength = None,
    generate: Annotated[
        int | None,
        typer.Option(
            "--generate",
            metavar="N",
            help="Let the model continue the texts by N tokens, which are then the output tokens.",
        ),
    ] = None,
    target: Annotated[
        list[int] | None,
        typer.Option(
            "--target",
            metavar="POSITION",
            help="The position of an output token, from 0; negative ones count back from the last. May be repeated. By default "
            "every token after the first, or those that the model generated.",
        ),
    ] = None,
    contrast: Annotated[
        str | None,
        typer.Option(
            "--contrast", metavar="TOKEN", help="Another token, or its id: why is the output more likely than this one?"
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="METHOD",
            help="input-x-gradient (the default), saliency, integrated-gradients or occlusion.",
        ),
    ] = "input-x-gradient",
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="An argument of the method, such as steps=50. May be repeated."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="Run at most N examples or steps at once.")
    ] = None,
    training: o.Training = False,
    ignore: o.Ignore = None,
    call: o.Call = None,
    output: o.Output = None,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="PAGE", help="The HTML page to write, with output tokens to click."),
    ] = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Compute how much each token before an output token contributed to its log-probability, and print the texts in colours.

    \b
    embgrad attribute-tokens -m FOLDER -t "The keys to the cabinet" --generate 5 --html page.html
    embgrad attribute-tokens -m FOLDER -t "The keys to the cabinet are" --target -1 --contrast " is"
    """

    def work(terminal: Terminal) -> int:
        methods = methods_from([method], argument or ())
        expect_model(model)
        expect_files({"--output": output, "--html": html}, printed="tokens")
        inputs = Inputs(text or (), file=file, ids=ids, tokenizer=tokenizer, max_length=max_length)
        request = GradientRequest(batch_size=batch_size, call=call)
        loaded, batch, of_texts = loaded_with_batch(str(model), framework, ignore or (), inputs, terminal, request)
        with terminal.busy(f"attributing in {loaded.framework} …"):
            result = attributed(
                loaded.model,
                batch,
                target or None,
                int(contrast) if contrast is not None and contrast.isdecimal() else contrast,
                next(iter(methods.values())),
                generate=generate,
                tokenizer=of_texts,
                call=call_from(request),
                training=training,
                batch_size=batch_size,
            )
        write_files(result, output, html)
        terminal.say(f"{method} at {visible(str(result.provenance['point']))}, {model_of(result)}", style="bold")
        for line in token_lines(result, terminal, words=False):
            terminal.say(line)
        terminal.say(attribution_legend(result, terminal.coloured), style="dim")
        say_written(terminal, output, html)
        terminal.give({"framework": loaded.framework, "result": described(result), "file": output, "page": html})
        return OK

    execute(work, as_json=as_json, debug=debug)
