"""`embgrad search`: search for texts near given ones at which the objective is high or low; print them or write files."""

from __future__ import annotations

import functools
import re
from typing import Annotated, Any, Final

import typer

from embgrad.cli.command import command
from embgrad.cli.describe import describe
from embgrad.cli.files import Files
from embgrad.cli.methods import instances_of
from embgrad.cli.options import GradientRequest, Inputs, OneModel, of_method, of_output
from embgrad.cli.request import load_with_batch, note_default, with_objective
from embgrad.cli.result_lines import search_text
from embgrad.cli.run import OK
from embgrad.cli.terminal import Terminal
from embgrad.errors import did_you_mean, quote
from embgrad.loading.errors import UsageError
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

of_search = functools.partial(typer.Option, rich_help_panel="Search")


@command
def search(
    terminal: Terminal,
    *,
    models: OneModel,
    method: Annotated[
        str,
        of_method("--method", metavar="METHOD", help=f"{', '.join(NAMES)}. Default: hotflip."),
    ] = "hotflip",
    argument: Annotated[
        list[str] | None,
        of_method(
            "--set",
            metavar="NAME=VALUE",
            help="An argument of the method, such as steps=3, candidates=256, insert=true or seed=1. May be repeated.",
        ),
    ] = None,
    goal: Annotated[
        str,
        of_search(
            "--goal", metavar="maximize|minimize", help="Whether the objective is to be high (the default) or low."
        ),
    ] = "maximize",
    until: Annotated[
        float | None,
        of_search("--until", metavar="L", help="Stop the search of an example as soon as its objective reaches this."),
    ] = None,
    allowed: Annotated[
        list[str] | None,
        of_search(
            "--allowed",
            metavar="words|ascii",
            help="Put in only tokens that are words, or only tokens of ASCII characters. May be repeated. Default: any but "
            "special tokens.",
        ),
    ] = None,
    positions: Annotated[
        str | None,
        of_search(
            "--positions",
            metavar="POSITIONS",
            help="The positions whose tokens may be replaced: 1,2,-2 or a slice such as 1:5; negative ones count back from the "
            "last. Default: all but those of special tokens.",
        ),
    ] = None,
    unstable: Annotated[
        bool,
        of_search("--unstable", help="Keep texts too whose characters the tokenizer would divide into other tokens."),
    ] = False,
    inputs: Inputs,
    request: Annotated[GradientRequest, "objective", "labels", "batch_size", "training", "call"],
    files: Files,
    to: Annotated[
        str | None,
        of_output(
            "--to",
            metavar="FILE",
            help="A file for the state of the search, from which the same command goes on after an interruption.",
        ),
    ] = None,
) -> int:
    """Search for texts near given ones at which the objective is high or low, and print both with changed tokens marked.

    \b
    embgrad search -m FOLDER -t "A gripping film." --labels 1 --goal maximize --until 0.7 --set steps=3 --allowed words
    embgrad search -m FOLDER -f texts.txt --labels labels.txt --method gcg --to run.safetensors -o s.safetensors --html page.html
    """
    chosen = next(iter(instances_of([method], argument or (), NAMES).values()))
    expect_goal(goal)
    options: dict[str, Any] = {
        "goal": goal,
        "until": until,
        "allowed": _find_allowed(allowed or ()),
        "positions": _positions(positions),
        "stable": not unstable,
        "training": request.training,
        "batch_size": request.batch_size,
        "to": to,
    }
    files.expect(printed="texts", further={"--to": to})
    request.expect()
    loaded, batch, tokenizer = load_with_batch(models, inputs, request, terminal)

    def run(wanted: Objective) -> Search:
        with terminal.progress(f"searching in {loaded.framework}") as progress:
            return searched(
                loaded.model,
                batch,
                wanted,
                chosen,
                tokenizer=tokenizer,
                call=request.function(),
                progress=progress,
                **options,
            )

    used, result = with_objective(request.parsed, run)
    note_default(request, used, terminal)
    files.write(result)
    for line in (search_text(result, terminal), "", result.figures().table()):
        terminal.say(line)
    files.say_written(terminal)
    terminal.give({"framework": loaded.framework, "result": describe(result), "file": files.output, "page": files.html})
    return OK


def _find_allowed(names: list[str] | tuple[str, ...]) -> Any:
    """Return the functions of tokens that --allowed names; None for none."""
    for name in names:
        if name not in ALLOWED:
            raise UsageError(f"--allowed is {name!r}: expected {quote(ALLOWED)}.{did_you_mean(name, ALLOWED)}")
    return [ALLOWED[name] for name in names] or None


def _positions(spelled: str | None) -> Any:
    """Return the positions of --positions: whole numbers, or a slice; None for None."""
    if spelled is None:
        return None
    numbers = re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*", spelled)
    if numbers:
        return [int(number) for number in spelled.split(",")]
    part = re.fullmatch(r"\s*(-?\d+)?\s*:\s*(-?\d+)?\s*", spelled)
    if part:
        return slice(*(None if bound is None else int(bound) for bound in part.groups()))
    raise UsageError(f"--positions is {spelled!r}: expected whole numbers such as 1,2,-2, or a slice such as 1:5")
