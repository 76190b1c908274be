"""`embgrad explain`: the documentation page on an error, as of the installed version."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from embgrad import errors
from embgrad.cli.command import command
from embgrad.cli.run import OK
from embgrad.cli.terminal import Terminal
from embgrad.errors import did_you_mean
from embgrad.loading.errors import UsageError

__all__ = ["explain"]

#: Every error class and the warning class by name, in the order of the class tree.
NAMES = {
    name: cls
    for name, cls in vars(errors).items()
    if name in errors.__all__
    and isinstance(cls, type)
    and issubclass(cls, (errors.EmbgradError, errors.EmbgradWarning))
}


@command
def explain(
    terminal: Terminal,
    *,
    name: Annotated[
        str, typer.Argument(metavar="ERROR", help="The error's name, as in BatchError. Default: all are listed.")
    ] = "",
) -> int:
    """Explain an error: its meaning, its usual causes with their messages, and what to do. Without a name, list all errors.

    \b
    embgrad explain
    embgrad explain BatchError
    """
    if name:
        full_name = _full_name(name)
        text = _page(full_name)
        if terminal.out.is_terminal:
            terminal.say(_format(text))
        elif not terminal.as_json:
            terminal.stream.write(f"{text}\n")  # unchanged: wrapped lines would break its examples
        terminal.give({"error": full_name, "text": text})
    else:
        summaries = {each: " ".join((cls.__doc__ or "").partition("\n")[0].split()) for each, cls in NAMES.items()}
        width = max(map(len, summaries))
        for each, line in summaries.items():
            terminal.say(f"{each:<{width}}  {line}")
        terminal.give({"errors": summaries})
    return OK


def _full_name(spelled: str) -> str:
    """Return the error's name from any spelling: with its module, as the file name of its page, in any case."""
    short = spelled.rpartition("/")[2].removesuffix(".md").rpartition(".")[2]
    full_name = {name.lower(): name for name in NAMES}.get(short.lower())
    if full_name is None:
        raise UsageError(
            f"there is no error {spelled!r}: expected one of {', '.join(NAMES)}.{did_you_mean(short, NAMES)}"
        )
    return full_name


def _page(name: str) -> str:
    """Return the page's text from the package, or from the source checkout."""
    file = f"{name.lower()}.md"
    packaged: Any = resources.files("embgrad") / "documented" / file
    source = packaged if packaged.is_file() else Path(__file__).parents[2] / "docs" / "errors" / file
    if not source.is_file():
        raise errors.EmbgradError(f"this installation of embgrad lacks its page {file}: reinstall it with pip")
    return re.sub(r"<!--.*?-->\n*", "", source.read_text(encoding="utf-8"), flags=re.DOTALL).strip()


def _format(text: str) -> Any:
    from rich.markdown import Markdown

    return Markdown(text, hyperlinks=False)
