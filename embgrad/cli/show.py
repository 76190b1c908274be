"""`embgrad show`: print the tokens of saved results in the terminal, coloured by their saliency."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from embgrad.cli import options as o
from embgrad.cli.describe import described, model_of
from embgrad.cli.errors import UsageError
from embgrad.cli.files import chosen, loaded_results
from embgrad.cli.run import OK, execute
from embgrad.cli.terminal import Terminal
from embgrad.cli.token_colours import legend, painted, pieces
from embgrad.common.text import visible
from embgrad.errors import did_you_mean
from embgrad.report.sentences import has_sentences
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["show"]

KINDS = ("norm", "dot")


def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of saved gradients; '-' is stdin.")] = "-",
    kind: Annotated[
        str,
        typer.Option(
            "--kind", metavar="norm|dot", help="The length of the gradient, or its inner product with the embedding."
        ),
    ] = "norm",
    words: Annotated[bool, typer.Option("--words", help="Merge the tokens of each word.")] = False,
    at: o.At = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Print the tokens of saved gradients, coloured by saliency; without colours, with numbers from 0 to 9.

    \b
    embgrad show g.safetensors
    embgrad show g.safetensors --kind dot --words
    NO_COLOR=1 embgrad show g.safetensors --at layer.-1
    """

    def work(terminal: Terminal) -> int:
        if kind not in KINDS:
            raise UsageError(f"--kind is {kind!r}: expected 'norm' or 'dot'.{did_you_mean(kind, KINDS)}")
        results = chosen(next(iter(loaded_results([file]).values())), at or (), file)
        texts = {name: _lines(name, result, kind, words, terminal) for name, result in results.items()}
        for name, lines in texts.items():
            terminal.say(f"at {visible(name)}, {model_of(results[name])}", style="bold")
            for line in (*lines, ""):
                terminal.say(line)
        terminal.say(legend(kind, terminal.coloured), style="dim")
        terminal.give({"results": {name: described(result) for name, result in results.items()}})
        return OK

    execute(work, as_json=as_json, debug=debug)


def _lines(name: str, result: EmbeddingGradients, kind: str, words: bool, terminal: Terminal) -> list[Any]:
    """Return one line of text for each example."""
    if not has_sentences(result):
        raise UsageError(
            f"the gradient at {name!r} has the shape {result.shape}, which is not one vector per token: expected a point such as "
            "'word', chosen with --at"
        )
    examples = () if terminal.as_json else range(len(result.ids))
    return [painted(pieces(result, example, kind, words), kind, terminal.coloured) for example in examples]
