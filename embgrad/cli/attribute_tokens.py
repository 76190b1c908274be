"""`embgrad attribute-tokens`: compute which tokens made each output token of a language model likely; print it or write files."""

from __future__ import annotations

import functools
import re
from typing import Annotated, Final

import typer

from embgrad.attribution.attribute_tokens import attribute_tokens as attributed
from embgrad.cli.command import command
from embgrad.cli.describe import describe, model_of
from embgrad.cli.files import Files
from embgrad.cli.methods import methods_from
from embgrad.cli.options import GradientRequest, Inputs, OneModel, of_method
from embgrad.cli.request import load_with_batch
from embgrad.cli.result_lines import legend_of, result_lines
from embgrad.cli.run import OK
from embgrad.cli.terminal import Terminal
from embgrad.common.text import visible
from embgrad.errors import EmbgradError, quote

__all__ = ["attribute_tokens"]

#: The units that an attribution of output tokens has.
UNITS: Final = ("tokens", "words", "spans", "sentences", "segments")

of_tokens = functools.partial(typer.Option, rich_help_panel="Output tokens")


@command
def attribute_tokens(
    terminal: Terminal,
    *,
    models: OneModel,
    method: Annotated[
        str,
        of_method(
            "--method",
            metavar="METHOD",
            help="input-x-gradient (the default), saliency, integrated-gradients or occlusion.",
        ),
    ] = "input-x-gradient",
    argument: Annotated[
        list[str] | None,
        of_method("--set", metavar="NAME=VALUE", help="An argument of the method, such as steps=50. May be repeated."),
    ] = None,
    inputs: Annotated[Inputs, "text", "file", "ids", "tokenizer", "max_length"],
    generate: Annotated[
        int | None,
        of_tokens(
            "--generate",
            metavar="N",
            help="Let the model continue the texts by N tokens, which are then the output tokens.",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        of_tokens(
            "--target",
            metavar="OUTPUT",
            help="An output: the position of a token, from 0, where negative ones count back from the last; or several tokens "
            "together, as a slice such as -3: or as their text. May be repeated. By default every token after the first, or "
            "those that the model generated.",
        ),
    ] = None,
    contrast: Annotated[
        str | None,
        of_tokens(
            "--contrast",
            metavar="TEXT",
            help="Another text of one or several tokens, or an id: why is the output more likely than this one in its place?",
        ),
    ] = None,
    hops: Annotated[
        int,
        of_tokens(
            "--hops",
            metavar="N",
            help="Pass the contributions of tokens that the model wrote before an output on to the tokens before them, N times.",
        ),
    ] = 0,
    through: Annotated[
        list[str] | None,
        of_tokens(
            "--through",
            metavar="OUTPUT",
            help="With --hops, the tokens whose contributions are passed on, as --target names outputs. May be repeated.",
        ),
    ] = None,
    by: Annotated[
        str,
        of_tokens(
            "--by",
            metavar="UNIT",
            help="What is printed with a score: tokens (the default), words, spans, sentences or segments, the turns of a chat.",
        ),
    ] = "tokens",
    request: Annotated[GradientRequest, "batch_size", "training", "call"],
    files: Files,
) -> int:
    """Compute how much each token before an output contributed to its log-probability, and print the texts in colours.

    \b
    embgrad attribute-tokens -m FOLDER -t "The keys to the cabinet" --generate 5 --html page.html
    embgrad attribute-tokens -m FOLDER -t "The keys to the cabinet are" --target -1 --contrast " is"
    embgrad attribute-tokens -m FOLDER -t "The keys to the cabinet are" --target -1 --by words
    embgrad attribute-tokens -m FOLDER -t "The keys are on the table" --target "on the table" --contrast " in my bag"
    """
    if by not in UNITS:
        raise EmbgradError(f"--by is {by!r}: expected one of {quote(UNITS)}")
    methods = methods_from([method], argument or ())
    files.expect(printed="tokens")
    request.expect()
    loaded, batch, tokenizer = load_with_batch(models, inputs, request, terminal)
    with terminal.progress(f"attributing in {loaded.framework}") as progress:
        result = attributed(
            loaded.model,
            batch,
            [_target(entry) for entry in target] if target else None,
            int(contrast) if contrast is not None and contrast.isdecimal() else contrast,
            next(iter(methods.values())),
            generate=generate,
            hops=hops,
            through=[_target(entry) for entry in through] if through else None,
            tokenizer=tokenizer,
            call=request.function(),
            training=request.training,
            batch_size=request.batch_size,
            progress=progress,
        )
    files.write(result)
    terminal.say(f"{method} at {visible(str(result.provenance['point']))}, {model_of(result)}", style="bold")
    for line in result_lines(result, terminal, by=by):
        terminal.say(line)
    terminal.say(legend_of(result, terminal.coloured), style="dim")
    files.say_written(terminal)
    terminal.give({"framework": loaded.framework, "result": describe(result), "file": files.output, "page": files.html})
    return OK


def _target(text: str) -> int | slice | str:
    """Return an output: a position, a slice of positions, or else the text of its tokens."""
    if match := re.fullmatch(r"(-?\d+)?:(-?\d+)?", text):
        return slice(*(None if end is None else int(end) for end in match.groups()))
    return int(text) if re.fullmatch(r"-?\d+", text) else text
