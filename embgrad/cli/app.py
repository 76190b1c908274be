"""The `embgrad` application: its commands, its help, and its exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from embgrad.cli import attribute as attributing
from embgrad.cli import attribute_tokens as attributing_tokens
from embgrad.cli import bisect as bisecting
from embgrad.cli import check_port as checking
from embgrad.cli import compare as comparing
from embgrad.cli import demo_command, doctor, gradients
from embgrad.cli import dump as dumping
from embgrad.cli import explain as explaining
from embgrad.cli import report as reporting
from embgrad.cli import search as searching
from embgrad.cli import show as showing
from embgrad.cli.command import Command
from embgrad.cli.run import FAILED, READER_GONE, in_own_process
from embgrad.errors import did_you_mean
from embgrad.loading.errors import UsageError

__all__ = ["app", "run"]

HELP = """Compute, compare and show gradients with respect to a text model's embeddings, in PyTorch, TensorFlow, Keras, JAX and
MXNet Gluon.

\b
  embgrad doctor
  embgrad gradients -m FOLDER -t "A gripping film." -o g.safetensors
  embgrad show g.safetensors
  embgrad attribute -m FOLDER -t "A gripping film." --method integrated-gradients --set baseline=mask
  embgrad attribute-tokens -m FOLDER -t "The keys to the cabinet" --generate 5 --html page.html
  embgrad search -m FOLDER -t "A gripping film." --labels 1 --until 0.7 --allowed words
  embgrad compare a.safetensors b.safetensors
  embgrad compare -m FOLDER --frameworks torch,tensorflow,keras -f texts.txt
  embgrad check-port FOLDER port.py:build -t "A gripping film."

Exit codes: 0 success or agreement; 1 difference; 2 wrong usage or input; 130 interrupted.
"""

#: Each command by name: its function and its one-line description.
COMMANDS = {
    "doctor": (doctor.doctor, "Check what is installed and what works."),
    "gradients": (gradients.gradients, "Compute the gradients of texts in one model."),
    "attribute": (attributing.attribute, "Compute how much each word contributes to the objective."),
    "attribute-tokens": (attributing_tokens.attribute_tokens, "Compute which tokens made each output token likely."),
    "search": (searching.search, "Search for texts near given ones that make the objective high or low."),
    "compare": (comparing.compare, "Compare gradients and explain differences."),
    "bisect": (bisecting.bisect, "Find the first point where two models diverge."),
    "check-port": (checking.check_port, "Check whether a model is a right port of another, and why not."),
    "dump": (dumping.dump, "Write what a model computes to a folder, to check a port elsewhere."),
    "show": (showing.show, "Show saved gradients as coloured tokens."),
    "report": (reporting.report, "Write an HTML page of results side by side."),
    "explain": (explaining.explain, "Explain an error and what to do about it."),
    "demo": (demo_command.demo, "Run the same call in each framework that is installed."),
}

HELP_NAMES = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

app: Any = typer.Typer(
    name="embgrad",
    help=HELP,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
)
for _name, (_function, _short) in COMMANDS.items():
    app.command(_name, cls=Command, short_help=_short, context_settings=HELP_NAMES)(_function)


def _show_version(requested: bool) -> None:
    if requested:
        from embgrad.version import __version__

        typer.echo(f"embgrad {__version__}")
        raise typer.Exit(0)


def _embgrad(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Accept the options before the command's name."""


app.callback(help=HELP)(_embgrad)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    code: Any
    try:
        _expect_command(words)
        with in_own_process() if arguments is None else contextlib.nullcontext():
            app(args=words, prog_name="embgrad")
        code = 0
    except SystemExit as exit_request:
        code = exit_request.code
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        code = FAILED
    except KeyboardInterrupt:
        code = 130
    return _flush(code if isinstance(code, int) else 0 if code is None else FAILED)


def _expect_command(words: Sequence[str]) -> None:
    """Raise a UsageError with a suggestion if the first argument is no command."""
    first = next((word for word in words if not word.startswith("-")), None)
    if words and first == words[0] and first not in COMMANDS:
        raise UsageError(
            f"there is no command {first!r}: expected {', '.join(COMMANDS)}.{did_you_mean(first, COMMANDS)}"
        )


def _flush(code: int) -> int:
    """Flush stdout and return the exit code; a reader that has closed the pipe, as `head` does, is not reported as an error."""
    with contextlib.suppress(AttributeError, ValueError):  # no stdout at all, or closed
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE
    return code
