"""`embgrad doctor`: check the installed versions, import each framework, and advise what to install."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer

from embgrad.cli.command import command
from embgrad.cli.run import DIFFER, OK
from embgrad.cli.terminal import Terminal
from embgrad.doctor.health import LIMIT, Health, Part, core_parts, examine
from embgrad.loading.errors import UsageError

__all__ = ["doctor"]

#: The largest value of --timeout, in seconds: a day.
LONGEST: Final = 86400


@command
def doctor(
    terminal: Terminal,
    *,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", help=f"The time limit for each framework. Default: {LIMIT:g}."),
    ] = LIMIT,
) -> int:
    """Check which frameworks are installed, supported and working, and say what to install.

    Imports each framework in a separate process; `embgrad demo` computes gradients in them. Exit code 0 if at least one framework
    works, 1 if none does.
    """
    from embgrad.backend.registry import broken_backends
    from embgrad.version import __version__

    if not 0 < timeout <= LONGEST:
        raise UsageError(f"--timeout is {timeout:g}: expected a number of seconds above 0, and {LONGEST} at most")
    broken = broken_backends()
    with terminal.busy("trying each framework …"):
        backends, core = examine(timeout), core_parts()
    about = {"embgrad": __version__, "python": platform.python_version(), "platform": platform.platform()}
    _print_core(core, about, terminal)
    _print_backends(backends, broken, terminal)
    terminal.give(
        {
            **about,
            "executable": sys.executable,
            "works": any(health.works for health in backends),
            "core": [asdict(part) for part in core],
            "backends": {health.name: asdict(health) for health in backends},
            "broken": broken,
        }
    )
    return OK if any(health.works for health in backends) else DIFFER


def _print_core(parts: Sequence[Part], about: Mapping[str, str], terminal: Terminal) -> None:
    """Print the versions of embgrad, Python and NumPy, and those other core packages that need attention."""
    terminal.say(", ".join(f"{name} {value}" for name, value in about.items()))
    for part in parts:
        if part.trouble or part.note or part.name == "numpy":
            _print_part(part, terminal)


def _print_backends(backends: Sequence[Health], broken: Mapping[str, str], terminal: Terminal) -> None:
    for health in backends:
        terminal.say()
        _print_backend(health, terminal)
    for name, why in broken.items():
        terminal.say()
        terminal.say(f"✗ {name}: broken", style="bold red")
        terminal.say(why, indent=2)
    works = [health.name for health in backends if health.works]
    terminal.say()
    terminal.say(
        f"embgrad works with {', '.join(works)}" if works else "embgrad works with no framework here: install one"
    )


def _print_backend(health: Health, terminal: Terminal) -> None:
    state = f"imported in {health.seconds:.1f} s" if health.works else health.error
    mark, style = ("✓", "bold green") if health.works else ("✗", "bold red")
    if not health.version:
        mark, style = "–", "bold"
    terminal.say(f"{mark} {health.name}{f' {health.version}' if health.version else ''}: {state}", style=style)
    if not health.works:
        terminal.say(health.install, indent=2)
    if not health.version:
        return
    for number, part in enumerate(health.parts):
        if number or part.trouble or part.note:  # the framework itself is named in the heading
            _print_part(part, terminal)
    for name, why in health.classes.items():
        if why:
            terminal.say(f"✗ {name}, required by embgrad.zoo.load_bert: {why}", style="yellow", indent=2)


def _print_part(part: Part, terminal: Terminal) -> None:
    if not part.trouble:
        note = f": {part.note}; {part.mend}" if part.note else ""
        terminal.say(f"✓ {part.name} {part.version}{note}", indent=2)
        return
    mark = "–" if part.optional else "✗"
    version = f" {part.version}" if part.version else ""
    terminal.say(
        f"{mark} {part.name}{version}: {part.trouble} ({part.what}); {part.mend}",
        style="" if part.optional else "yellow",
        indent=2,
    )
