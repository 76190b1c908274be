"""The `embgrad` application: its commands, its help, and its exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from embgrad.cli import bisect as bisecting
from embgrad.cli import compare as comparing
from embgrad.cli import demo_command, doctor, gradients
from embgrad.cli import explain as explaining
from embgrad.cli import report as reporting
from embgrad.cli import show as showing
from embgrad.cli.errors import UsageError
from embgrad.cli.options import Command
from embgrad.cli.run import FAILED, READER_GONE, in_own_process
from embgrad.errors import did_you_mean

__all__ = ["app", "run"]

HELP = """Gradients with respect to a text model's embeddings, in PyTorch, TensorFlow and MXNet Gluon: what they are, whether
two agree, and why not.

\b
  embgrad doctor
  embgrad gradients -m FOLDER -t "A gripping film." -o g.safetensors
  embgrad show g.safetensors
  embgrad compare a.safetensors b.safetensors
  embgrad compare -m FOLDER --frameworks torch,tensorflow,gluon -f texts.txt

Exit codes: 0 agree, or done; 1 differ; 2 usage or input; 130 interrupted.
"""

#: Each command by name: its function and its one-line description.
COMMANDS = {
    "doctor": (doctor.doctor, "What is installed, what runs, what to install."),
    "gradients": (gradients.gradients, "The gradients of texts in one model."),
    "compare": (comparing.compare, "Whether gradients agree, and why not."),
    "bisect": (bisecting.bisect, "The first point at which two models part."),
    "show": (showing.show, "Saved gradients as coloured tokens."),
    "report": (reporting.report, "Results side by side, as an HTML page."),
    "explain": (explaining.explain, "What an error means, and what to do."),
    "demo": (demo_command.demo, "One call in three frameworks."),
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


def _version(wanted: bool) -> None:
    if wanted:
        from embgrad.version import __version__

        typer.echo(f"embgrad {__version__}")
        raise typer.Exit(0)


def _embgrad(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Say the version and leave.")
    ] = False,
) -> None:
    """Accept the options before the command's name."""


app.callback(help=HELP)(_embgrad)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    code: Any
    try:
        _expect_command(given)
        with in_own_process() if arguments is None else contextlib.nullcontext():
            app(args=given, prog_name="embgrad")
        code = 0
    except SystemExit as left:
        code = left.code
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        code = FAILED
    except KeyboardInterrupt:
        code = 130
    return _flushed(code if isinstance(code, int) else 0 if code is None else FAILED)


def _expect_command(given: Sequence[str]) -> None:
    """Raise a UsageError with a suggestion if the first argument is no command."""
    first = next((one for one in given if not one.startswith("-")), None)
    if given and first == given[0] and first not in COMMANDS:
        raise UsageError(
            f"there is no command {first!r}: expected {', '.join(COMMANDS)}.{did_you_mean(first, COMMANDS)}"
        )


def _flushed(code: int) -> int:
    """Flush stdout and return the exit code; a reader that has closed the pipe, as `head` does, is not reported as an error."""
    with contextlib.suppress(AttributeError, ValueError):  # no stdout at all, or closed
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE
    return code
