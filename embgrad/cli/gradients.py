"""`embgrad gradients`: compute the gradients of texts in one model; print a summary or write a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

from embgrad.cli.command import command
from embgrad.cli.describe import Results, describe, name_results, print_summary
from embgrad.cli.files import expect_writable
from embgrad.cli.options import GradientRequest, Inputs, OneModel, of_output
from embgrad.cli.request import compute, load_with_batch, note_default
from embgrad.cli.run import OK
from embgrad.cli.terminal import Terminal
from embgrad.loading.errors import UsageError

__all__ = ["gradients"]


@command
def gradients(
    terminal: Terminal,
    *,
    models: OneModel,
    inputs: Inputs,
    request: GradientRequest,
    output: Annotated[
        str | None,
        of_output(
            "--output",
            "-o",
            metavar="FILE",
            help="The safetensors file to write, for embgrad.load; '-' is stdout.",
        ),
    ] = None,
) -> int:
    """Compute the gradient of an objective with respect to the embeddings of texts.

    \b
    embgrad gradients -m FOLDER --framework torch -t "A gripping film." -o g.safetensors
    embgrad gradients -m FOLDER -f texts.txt --labels 0,1,1 --at word --at layer.-1 -o g.safetensors
    embgrad gradients -m my.py:build --ids ids.json --objective "Logit(1)" --json
    cut -f2 reviews.tsv | embgrad gradients -m FOLDER -o - | embgrad show -
    """
    _expect(output, terminal)
    request.expect()
    loaded, batch, _ = load_with_batch(models, inputs, request, terminal)
    used, results = compute(loaded, batch, request, terminal)
    note_default(request, used, terminal)
    if output is not None:
        _write(results, output, terminal)
    if output != "-":
        print_summary(results, terminal)
        terminal.say(f"written to {output}" if output is not None else "")
    terminal.give(_for_json(results, loaded.framework, output))
    return OK


def _expect(output: str | None, terminal: Terminal) -> None:
    if output == "-" and terminal.as_json:
        raise UsageError("-o - writes the file to stdout, which --json uses as well: pass only one")
    if output == "-" and terminal.stream.isatty():
        raise UsageError("-o - writes a binary file, but stdout is a terminal: pipe the output, or name a file")
    if output is not None:
        expect_writable(output)


def _write(results: Results, output: str, terminal: Terminal) -> None:
    """Write the results to the file, or to stdout, to which nothing else is written in that case."""
    from embgrad.results.io import save

    if output != "-":
        save(results, output)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g.safetensors"
        save(results, path)
        terminal.binary.write(path.read_bytes())


def _for_json(results: Results, framework: str, output: str | None) -> dict[str, Any]:
    return {
        "framework": framework,
        "results": {name: describe(result) for name, result in name_results(results).items()},
        "file": output,
    }
