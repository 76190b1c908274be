"""`embgrad report`: an HTML page that shows saved results side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from embgrad.cli.command import command
from embgrad.cli.files import expect_writable, load_results, restrict
from embgrad.cli.options import At, of_output
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
    from embgrad.report.page import render_page, write_page

    results: Any = restrict(load_results(files), at or ())
    if output == "-":
        terminal.binary.write(render_page(results, title=title).encode("utf-8"))
    else:
        write_page(output, results, title=title)
        terminal.say(f"written to {output}")
    terminal.give({"file": output, "results": list(results)})
    return OK
