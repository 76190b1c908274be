"""The help of the commands: panels of options, in plain words, and groups of options in a command's signature."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
import typer.testing

from embgrad.cli.app import COMMANDS, app
from embgrad.cli.command import Command, command
from embgrad.cli.terminal import Terminal

RUNNER = typer.testing.CliRunner()


def shown(name: str, columns: int = 80) -> list[str]:
    """Return the lines of a command's help in a terminal of so many columns."""
    done = RUNNER.invoke(app, [name, "--help"], terminal_width=columns, max_content_width=columns)
    assert done.exit_code == 0
    return str(done.output).splitlines()


def panels(lines: list[str]) -> dict[str, list[str]]:
    """Return the names of the arguments and options by panel."""
    by_panel: dict[str, list[str]] = {}
    for line in lines[1:]:
        if re.fullmatch(r"\w[\w ]*:", line):
            by_panel[line[:-1]] = names = []
        elif by_panel and re.match(r"  [-A-Z]", line):
            names.append(line[2:].partition("  ")[0])
    return by_panel


def test_the_options_of_a_command_stand_in_panels() -> None:
    expected = {
        "Model": ["-m, --model MODEL", "--frameworks NAMES", "--against MODEL", "--framework NAME", "--ignore PATTERN",
            "--call NAME"],
        "Texts": ["-t, --text TEXT", "--pair A B", "-f, --file FILE", "--pairs", "--ids FILE", "--tokenizer TOKENIZER",
            "--max-length N"],
        "Objective": ["--objective OBJECTIVE", "--labels LABELS"],
        "Comparison": ["--tolerance X"],
        "Output": ["--json"],
        "Options": ["--debug", "-h, --help"],
    }  # fmt: skip
    assert list(panels(shown("bisect")).items()) == list(expected.items())


def test_options_without_a_panel_come_last() -> None:
    expected = {"Output": ["--json"], "Options": ["--timeout SECONDS", "--debug", "-h, --help"]}
    assert list(panels(shown("doctor")).items()) == list(expected.items())


def test_a_command_takes_some_options_of_a_group() -> None:
    by_panel = panels(shown("attribute-tokens"))
    assert by_panel["Texts"] == [
        "-t, --text TEXT",
        "-f, --file FILE",
        "--ids FILE",
        "--tokenizer TOKENIZER",
        "--max-length N",
    ]
    assert by_panel["Points and passes"] == ["--batch-size N", "--training"]
    assert "Objective" not in by_panel


@pytest.mark.parametrize(
    ("name", "usage", "argument"),
    [("compare", "[A B]", "A B"), ("check-port", "[REFERENCE PORT]", "REFERENCE PORT"),
        ("dump", "[MODEL FOLDER]", "MODEL FOLDER"), ("show", "[FILE]", "FILE"), ("report", "[FILE ...]", "FILE ..."),
        ("explain", "[ERROR]", "ERROR")],
)  # fmt: skip
def test_arguments_stand_once_in_brackets(name: str, usage: str, argument: str) -> None:
    lines = shown(name)
    assert lines[0] == f"Usage: embgrad {name} [OPTIONS] {usage}"
    assert panels(lines)["Arguments"] == [argument]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_is_in_plain_words(name: str, columns: int) -> None:
    lines = shown(name, columns)
    text = "\n".join(lines)
    assert not re.search(r"<\w+|\[default|\[\[|\\\[|\bNone\b", text), "Python's words, or the marks of a library"
    options = lines[next(number for number, line in enumerate(lines) if re.fullmatch(r"\w[\w ]*:", line)) :]
    assert max(map(len, options)) <= columns
    starts = {found.end() for line in options if (found := re.match(r"  \S+(?: \S+)*\s\s+(?=\S)", line))}
    assert len(starts) == 1, "the explanations begin in one column"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_says_each_default(name: str) -> None:
    for param in typer.main.get_command(app).commands[name].params:
        if param.param_type_name == "option" and param.default not in (None, False):
            assert "default" in param.help.lower(), param.name


@dataclass(frozen=True)
class Sizes:
    """A group of options."""

    width: Annotated[int, typer.Option("--width", "-w", metavar="N", help="Default: 3.")] = 3
    names: Annotated[list[str] | None, typer.Option("--name", metavar="NAME", help="A name.")] = None
    deep: Annotated[bool, typer.Option("--deep", help="Deep.")] = False


def outcome(function: Any, *arguments: str) -> Any:
    """Return the exit code of a command that is made of the function."""
    single = typer.Typer()
    single.command(cls=Command)(function)
    return RUNNER.invoke(single, list(arguments)).exit_code


def test_a_group_of_options_is_given_as_one_object() -> None:
    seen: list[Any] = []

    @command
    def work(terminal: Terminal, *, sizes: Sizes, times: Annotated[int, typer.Option("--times")] = 2) -> int:
        """Work."""
        seen.append((terminal.as_json, sizes, times))
        return 1

    assert outcome(work, "-w", "5", "--name", "a", "--name", "b", "--deep", "--json") == 1
    assert outcome(work, "--times", "7") == 1
    assert seen == [(True, Sizes(5, ["a", "b"], True), 2), (False, Sizes(), 7)]


def test_options_of_a_group_that_a_command_does_not_take_are_unknown_and_have_their_defaults() -> None:
    seen: list[Any] = []

    @command
    def work(terminal: Terminal, *, sizes: Annotated[Sizes, "deep"]) -> int:
        """Work."""
        seen.append(sizes)
        return 0

    assert outcome(work, "--deep") == 0
    assert outcome(work, "--width", "5") == 2
    assert seen == [Sizes(deep=True)]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_is_at_most_a_hundred_columns_wide(name: str) -> None:
    lines = RUNNER.invoke(app, [name, "--help"], env={"COLUMNS": "300"}).output.splitlines()
    examples = [line for line in lines if line.strip().startswith(("embgrad", "NO_COLOR", "cut"))]
    assert max(len(line) for line in lines if line not in examples) <= 100 - 2


def test_the_help_of_arguments_is_shown_and_no_completion_is_offered() -> None:
    assert any("one may be '-', which is stdin" in line for line in shown("compare", 200))
    assert "completion" not in RUNNER.invoke(app, ["--help"]).output
