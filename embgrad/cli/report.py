"""`embgrad report`: an HTML page that shows saved results side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from embgrad.cli.command import command
from embgrad.cli.compare import against_first
from embgrad.cli.describe import name_results
from embgrad.cli.files import expect_writable, load_results, restrict
from embgrad.cli.options import At, Tolerance, of_output
from embgrad.cli.run import OK
from embgrad.cli.terminal import Terminal
from embgrad.loading.errors import UsageError

__all__ = ["report"]


@command
def report(
    terminal: Terminal,
    *,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE ...",
            help="Files of saved gradients, attributions or a search; one may be '-', which is stdin.",
        ),
    ] = None,
    at: At = None,
    output: Annotated[
        str | None, of_output("--output", "-o", metavar="PAGE", help="The HTML page to write; '-' is stdout.")
    ] = None,
    title: Annotated[str | None, of_output("--title", metavar="TITLE", help="The page's title.")] = None,
    tolerance: Tolerance = None,
) -> int:
    """Write a self-contained HTML page: the comparison's findings, and below them the tokens coloured by score, side by side.

    \b
    embgrad report a.safetensors b.safetensors -o page.html
    embgrad report two.safetensors --at layer.-1 -o page.html
    """
    if not files:
        raise UsageError(
            "no file is named: expected files of results, as `embgrad gradients -o g.safetensors` writes them"
        )
    if output is None:
        raise UsageError("--output is missing: expected the file name of the page, such as -o page.html")
    if output == "-" and terminal.as_json:
        raise UsageError("-o - writes the page to stdout, which --json uses as well: pass only one")
    expect_writable(output)
    results = restrict(load_results(files), at or ())
    comparisons = against_first(_comparable(results), tolerance, terminal)
    _write(results, comparisons, output, title, terminal)
    agrees = all(comparison.agrees for comparison in comparisons.values()) if comparisons else None
    terminal.give({"file": output, "results": list(results), "agrees": agrees})
    return OK


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
