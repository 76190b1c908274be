"""`embgrad show`: print the tokens of saved results in the terminal, coloured by their saliency or score."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from embgrad.cli.command import command
from embgrad.cli.describe import Result, describe, model_of
from embgrad.cli.files import choose_results, load_results
from embgrad.cli.options import At, of_output
from embgrad.cli.result_lines import legend_of, lines_of_several, port_lines, result_lines, search_text
from embgrad.cli.run import OK
from embgrad.cli.table import expect_table, write_results
from embgrad.cli.terminal import Terminal
from embgrad.common.text import visible
from embgrad.errors import did_you_mean
from embgrad.loading.errors import UsageError
from embgrad.results.attribution import Attribution
from embgrad.results.gradient_display import has_tokens
from embgrad.results.influence import Influence
from embgrad.results.pair_attribution import PairAttribution
from embgrad.results.port_report import PortReport
from embgrad.results.search import Search
from embgrad.results.substitutions import Substitutions
from embgrad.results.token_attribution import TokenAttribution

__all__ = ["show"]

KINDS = ("norm", "dot")

#: The results whose texts have no score by token.
WITHOUT_SCORES: Final = (Search, Substitutions, PortReport, PairAttribution, Influence)


@command
def show(
    terminal: Terminal,
    *,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file of saved gradients, attributions, searches, substitutions, checks of ports or influences; '-' "
            "is stdin, the default.",
        ),
    ] = "-",
    kind: Annotated[
        str,
        of_output(
            "--kind",
            metavar="norm|dot",
            help="The length of the gradient (the default), or its inner product with the embedding.",
        ),
    ] = "norm",
    words: Annotated[bool, of_output("--words", help="Merge the tokens of each word.")] = False,
    at: At = None,
    to: Annotated[
        str | None,
        of_output(
            "--to", metavar="TABLE", help="The table to write, .parquet or .csv, with the columns of `to_pandas`."
        ),
    ] = None,
) -> int:
    """Print the tokens of saved gradients or attributions, coloured by saliency or score; without colours, with digits.

    Of a saved search the texts before and after are printed, with changed tokens marked; of substitutions the best ones; of the
    check of a port its verdict, causes and layers; of pairs of texts the second text by its scores with each token of the first;
    of an influence the first training examples.

    \b
    embgrad show g.safetensors
    embgrad show g.safetensors --kind dot --words
    NO_COLOR=1 embgrad show g.safetensors --at layer.-1
    embgrad show search.safetensors --to changes.csv
    """
    if kind not in KINDS:
        raise UsageError(f"--kind is {kind!r}: expected 'norm' or 'dot'.{did_you_mean(kind, KINDS)}")
    if to is not None:
        expect_table(to)
    results = choose_results(next(iter(load_results([file]).values())), at or (), file)
    texts = {name: _lines(name, result, kind, words, terminal) for name, result in results.items()}
    if to is not None:
        write_results(to, results, "words" if words else "tokens")
    for name, lines in texts.items():
        prefix = "" if isinstance(results[name], WITHOUT_SCORES) else "at "
        terminal.say(f"{prefix}{visible(name)}, {model_of(results[name])}", style="bold")
        for line in (*lines, ""):
            terminal.say(line)
    of_tokens = [result for result in results.values() if not isinstance(result, WITHOUT_SCORES)]
    for meaning in dict.fromkeys(legend_of(result, terminal.coloured, kind) for result in of_tokens):
        terminal.say(meaning, style="dim")
    if to is not None:
        terminal.say(f"written to {to}")
    terminal.give({"results": {name: describe(result) for name, result in results.items()}})
    return OK


def _lines(name: str, result: Result, kind: str, words: bool, terminal: Terminal) -> list[Any]:
    """Return one line of text for each example, of attributions of output tokens one for each output, of searches several."""
    if isinstance(result, WITHOUT_SCORES):
        for option in [*(["--kind"] * (kind != "norm")), *(["--words"] * words)]:
            of = type(result).__name__
            raise UsageError(
                f"{option} is for gradients and attributions, and {name!r} is of the class {of}: remove it"
            )
        if isinstance(result, PortReport):
            return port_lines(result)
        if isinstance(result, PairAttribution | Influence):
            return [] if terminal.as_json else lines_of_several(result, terminal.coloured)
        return [search_text(result, terminal)] if isinstance(result, Search) else result_lines(result, terminal)
    if isinstance(result, Attribution | TokenAttribution):
        if kind != "norm":
            raise UsageError(
                f"--kind {kind} is for gradients, and {name!r} is an attribution, which has one score: remove it"
            )
    elif not has_tokens(result):
        raise UsageError(
            f"the gradient at {name!r} has the shape {result.shape}, which is not one vector per token: expected a point such as "
            "'word', chosen with --at"
        )
    return result_lines(result, terminal, words=words, kind=kind)
