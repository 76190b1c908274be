"""`embgrad report`: an HTML page that shows results side by side, from files or from models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from embgrad.cli.command import command
from embgrad.cli.compare import OfModels, against_first, compare_models, expect_none_for_models
from embgrad.cli.describe import Results, name_results
from embgrad.cli.files import expect_writable, load_results, restrict
from embgrad.cli.options import Inputs, Models, Tolerance, of_output
from embgrad.cli.run import OK
from embgrad.cli.terminal import Terminal
from embgrad.loading.errors import UsageError

__all__ = ["report"]


@command
def report(
    terminal: Terminal,
    *,
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE ...",
            help="Files of saved gradients, attributions or a search; one may be '-', which is stdin.",
        ),
    ] = None,
    models: Models,
    inputs: Inputs,
    request: OfModels,
    output: Annotated[
        str | None, of_output("--output", "-o", metavar="PAGE", help="The HTML page to write; '-' is stdout.")
    ] = None,
    title: Annotated[str | None, of_output("--title", metavar="TITLE", help="The page's title.")] = None,
    tolerance: Tolerance = None,
) -> int:
    """Write a self-contained HTML page: the comparison's findings, and below them the tokens coloured by score, side by side.

    \b
    embgrad report a.safetensors b.safetensors -o page.html
    embgrad report -m FOLDER --frameworks torch,tensorflow -f texts.txt --at word --at layer.0 -o page.html
    """
    _expect(files, models.model, output, terminal)
    if files:
        expect_none_for_models(context)
        results: Mapping[str, Results] = restrict(load_results(files), request.at or ())
        comparisons: Mapping[str, Any] = against_first(_comparable(results), tolerance, terminal)
    else:
        compared = compare_models(models, inputs, request, tolerance, terminal, least=1)
        results, comparisons = compared.results, compared.comparisons
    _write(results, comparisons, str(output), title, terminal)
    agrees = all(comparison.agrees for comparison in comparisons.values()) if comparisons else None
    terminal.give({"file": output, "results": list(results), "agrees": agrees})
    return OK


def _expect(files: list[str] | None, model: str | None, output: str | None, terminal: Terminal) -> None:
    if output is None:
        raise UsageError("--output is missing: expected the file name of the page, such as -o page.html")
    if output == "-" and terminal.as_json:
        raise UsageError("-o - writes the page to stdout, which --json uses as well: pass only one")
    if bool(files) == (model is not None):
        raise UsageError(f"expected files of results or --model, {'not both' if files else 'and got neither'}")
    expect_writable(output)


def _comparable(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first result, and those that should be equal to it, by their labels on the page.

    Attributions by different methods need not be equal, so the page shows them side by side only.
    """
    from embgrad.report.arguments import comparable, flat, of_own_page

    of_own_page(results)  # raises an error where one stands beside other results
    if len(results) == 1:
        return dict(results)
    (first, reference), *others = flat(results).items()
    expected = name_results(reference)
    equal = {
        label: result
        for label, result in others
        if all(comparable(expected[name], single) for name, single in name_results(result).items() if name in expected)
    }
    return {first: reference, **equal}


def _write(
    results: Mapping[str, Any], comparisons: Mapping[str, Any], output: str, title: str | None, terminal: Terminal
) -> None:
    from embgrad.report.page import render_page, write_page

    options = {} if title is None else {"title": title}
    if output == "-":
        terminal.binary.write(render_page(results, comparisons, **options).encode("utf-8"))
        return
    write_page(output, results, comparisons, **options)
    terminal.say(f"written to {output}")
