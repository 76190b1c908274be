"""`embgrad search`: search for texts near given ones at which the objective is high or low; print them or write files."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from embgrad.cli import options as o
from embgrad.cli.describe import described
from embgrad.cli.errors import UsageError
from embgrad.cli.files import expect_files, say_written, write_files
from embgrad.cli.methods import instances_of
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
from embgrad.cli.search_lines import search_lines
from embgrad.cli.terminal import Terminal
from embgrad.errors import did_you_mean, listed
from embgrad.objectives.objectives import Objective
from embgrad.results.search import Search
from embgrad.token_search.rule import expect_goal
from embgrad.token_search.search import METHODS
from embgrad.token_search.search import search as searched
from embgrad.token_search.vocabulary import is_ascii, is_word

__all__ = ["search"]

#: The methods by their names on the command line.
NAMES: Final = {name.replace("_", "-"): cls for name, cls in METHODS.items()}

#: The functions of tokens by the values of --allowed.
ALLOWED: Final = {"words": is_word, "ascii": is_ascii}


def search(
    model: o.Model = None,
    framework: o.Framework = None,
    method: Annotated[
        str,
        typer.Option("--method", metavar="METHOD", help=f"{', '.join(NAMES)}."),
    ] = "hotflip",
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An argument of the method, such as steps=3, candidates=256, insert=true or seed=1. May be repeated.",
        ),
    ] = None,
    goal: Annotated[
        str,
        typer.Option(
            "--goal", metavar="maximize|minimize", help="Whether the objective is to be high (the default) or low."
        ),
    ] = "maximize",
    until: Annotated[
        float | None,
        typer.Option(
            "--until", metavar="L", help="Stop the search of an example as soon as its objective reaches this."
        ),
    ] = None,
    allowed: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed",
            metavar="words|ascii",
            help="Put in only tokens that are words, or only tokens of ASCII characters. May be repeated. Default: any but "
            "special tokens.",
        ),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            "--positions",
            metavar="POSITIONS",
            help="The positions whose tokens may be replaced: 1,2,-2 or a slice such as 1:5; negative ones count back from the "
            "last. Default: all but those of special tokens.",
        ),
    ] = None,
    unstable: Annotated[
        bool,
        typer.Option(
            "--unstable", help="Keep texts too whose characters the tokenizer would divide into other tokens."
        ),
    ] = False,
    text: o.TextOption = None,
    pair: o.Pair = None,
    file: o.File = None,
    pairs: o.Pairs = False,
    ids: o.Ids = None,
    tokenizer: o.Tokenizer = None,
    max_length: o.MaxLength = None,
    objective: o.ObjectiveText = None,
    labels: o.Labels = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="Run at most N texts at once.")
    ] = None,
    training: o.Training = False,
    ignore: o.Ignore = None,
    call: o.Call = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="A file for the state of the search, from which the same command goes on after an interruption.",
        ),
    ] = None,
    output: o.Output = None,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="PAGE", help="The HTML page to write, with changed tokens marked."),
    ] = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Search for texts near given ones at which the objective is high or low, and print both with changed tokens marked.

    \b
    embgrad search -m FOLDER -t "A gripping film." --labels 1 --goal maximize --until 0.7 --set steps=3 --allowed words
    embgrad search -m FOLDER -f texts.txt --labels labels.txt --method gcg --to run.safetensors -o s.safetensors --html page.html
    """

    def work(terminal: Terminal) -> int:
        chosen = next(iter(instances_of([method], argument or (), NAMES).values()))
        expect_goal(goal)
        options: dict[str, Any] = {
            "goal": goal,
            "until": until,
            "allowed": _allowed(allowed or ()),
            "positions": _positions(positions),
            "stable": not unstable,
            "training": training,
            "batch_size": batch_size,
            "to": to,
        }
        expect_model(model)
        expect_files({"--output": output, "--html": html, "--to": to}, printed="texts")
        inputs = Inputs(text or (), o.pairs_from(pair), file, pairs, ids, tokenizer, max_length)
        request = GradientRequest(objective, labels, (), batch_size, call=call)
        loaded, batch, of_texts = loaded_with_batch(str(model), framework, ignore or (), inputs, terminal, request)

        def run(wanted: Objective) -> Search:
            with terminal.progress(f"searching in {loaded.framework}") as progress:
                return searched(
                    loaded.model,
                    batch,
                    wanted,
                    chosen,
                    tokenizer=of_texts,
                    call=call_from(request),
                    progress=progress,
                    **options,
                )

        used, result = with_objective(request.parsed, run)
        note_default(request, used, terminal)
        write_files(result, output, html)
        for line in (*search_lines(result, terminal), "", result.figures().table()):
            terminal.say(line)
        say_written(terminal, output, html)
        terminal.give({"framework": loaded.framework, "result": described(result), "file": output, "page": html})
        return OK

    execute(work, as_json=as_json, debug=debug)


def _allowed(names: list[str] | tuple[str, ...]) -> Any:
    """Return the functions of tokens that --allowed names; None for none.

    Raises:
        UsageError: there is no such value.
    """
    for name in names:
        if name not in ALLOWED:
            raise UsageError(f"--allowed is {name!r}: expected {listed(ALLOWED)}.{did_you_mean(name, ALLOWED)}")
    return [ALLOWED[name] for name in names] or None


def _positions(spelled: str | None) -> Any:
    """Return the positions of --positions: whole numbers, or a slice; None for None.

    Raises:
        UsageError: the value is neither.
    """
    if spelled is None:
        return None
    numbers = re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*", spelled)
    if numbers:
        return [int(number) for number in spelled.split(",")]
    part = re.fullmatch(r"\s*(-?\d+)?\s*:\s*(-?\d+)?\s*", spelled)
    if part:
        return slice(*(None if bound is None else int(bound) for bound in part.groups()))
    raise UsageError(f"--positions is {spelled!r}: expected whole numbers such as 1,2,-2, or a slice such as 1:5")
