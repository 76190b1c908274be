"""`embgrad explain`: the documentation page on an error, as of the installed version."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from embgrad import errors
from embgrad.cli import options as o
from embgrad.cli.errors import UsageError
from embgrad.cli.run import OK, execute
from embgrad.cli.terminal import Terminal
from embgrad.errors import did_you_mean

__all__ = ["explain"]

#: Every error class and the warning class by name, in the order of the class tree.
NAMES = {
    name: kind
    for name, kind in vars(errors).items()
    if name in errors.__all__
    and isinstance(kind, type)
    and issubclass(kind, (errors.EmbgradError, errors.EmbgradWarning))
}


def explain(
    name: Annotated[str, typer.Argument(metavar="[ERROR]", help="The error's name, as in BatchError.")] = "",
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Explain an error: its meaning, its usual causes with their messages, and what to do. Without a name, list all errors.

    \b
    embgrad explain
    embgrad explain BatchError
    """

    def work(terminal: Terminal) -> int:
        if name:
            found = _named(name)
            text = _page(found)
            if terminal.out.is_terminal:
                terminal.say(_laid_out(text))
            elif not as_json:
                terminal.stream.write(f"{text}\n")  # unchanged: wrapped lines would break its examples
            terminal.give({"error": found, "text": text})
        else:
            said = {one: " ".join((kind.__doc__ or "").partition("\n")[0].split()) for one, kind in NAMES.items()}
            width = max(map(len, said))
            for one, line in said.items():
                terminal.say(f"{one:<{width}}  {line}")
            terminal.give({"errors": said})
        return OK

    execute(work, as_json=as_json, debug=debug)


def _named(given: str) -> str:
    """Return the error's name from any spelling: with its module, as the file name of its page, in any case."""
    short = given.rpartition("/")[2].removesuffix(".md").rpartition(".")[2]
    found = {name.lower(): name for name in NAMES}.get(short.lower())
    if found is None:
        raise UsageError(
            f"there is no error {given!r}: expected one of {', '.join(NAMES)}.{did_you_mean(short, NAMES)}"
        )
    return found


def _page(name: str) -> str:
    """Return the page's text from the package, or from the source checkout."""
    file = f"{name.lower()}.md"
    packed: Any = resources.files("embgrad") / "documented" / file
    source = packed if packed.is_file() else Path(__file__).parents[2] / "docs" / "errors" / file
    if not source.is_file():
        raise errors.EmbgradError(f"this installation of embgrad lacks its page {file}: install it again, with pip")
    return re.sub(r"<!--.*?-->\n*", "", source.read_text(encoding="utf-8"), flags=re.DOTALL).strip()


def _laid_out(text: str) -> Any:
    from rich.markdown import Markdown

    return Markdown(text, hyperlinks=False)
