"""A command of its function: groups of options in its signature, `--json` and `--debug`, and its help in panels."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import typer
import typer.core

from embgrad.cli.run import execute
from embgrad.cli.terminal import Terminal
from embgrad.loading.errors import UsageError

__all__ = ["Command", "command", "pairs_from"]

#: The panels of the help for arguments, and for options without a panel of their own, which is the last.
ARGUMENTS: Final = "Arguments"
OTHERS: Final = "Options"


@dataclasses.dataclass(frozen=True)
class Shown:
    """The options of what a command prints, which every command has."""

    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON on stdout, and nothing else.", rich_help_panel="Output"),
    ] = False
    debug: Annotated[
        bool, typer.Option("--debug", help="Show errors with their traceback, and the frameworks' warnings.")
    ] = False


def command(function: Callable[..., int]) -> Callable[..., None]:
    """Return the function that typer makes a command of.

    Args:
        function: the work of the command: a function of the terminal and the command's options, which returns the exit code.
            A parameter that is annotated by a dataclass stands for a group of options, one for each of its fields; annotated by
            `Annotated[dataclass, "name", ...]`, for those of the fields that are named, and the others have their defaults.
    """
    hints = get_type_hints(function, include_extras=True)
    _, *own = inspect.signature(function).parameters.values()  # the first is the terminal
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in own:
        group, names = _group(hints[parameter.name])
        if group is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))
        else:
            groups[parameter.name] = (group, names)
            parameters += _options(group, names)

    def run(*, as_json: bool, debug: bool, **values: Any) -> None:
        def work(terminal: Terminal) -> int:
            grouped = {
                name: group(**{field: values.pop(field) for field in names}) for name, (group, names) in groups.items()
            }
            return function(terminal, **grouped, **values)

        execute(work, as_json=as_json, debug=debug)

    shown, names = _group(Shown)
    parameters += _options(shown, names)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def _group(hint: Any) -> tuple[Any, list[str]]:
    """Return the dataclass of a group of options and the names of the fields that are taken; None for a single option."""
    group, *names = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not dataclasses.is_dataclass(group):
        return None, []
    return group, list(names) or [field.name for field in dataclasses.fields(group)]


def _options(group: Any, names: Sequence[str]) -> list[inspect.Parameter]:
    """Return the parameters of typer for fields of a group."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(group)
        if field.name in names
    ]


class Command(typer.core.TyperCommand):  # type: ignore[misc]  # typer is not installed where types are checked
    """A command whose help has panels, and whose option --pair takes two arguments and may be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with each `--pair A B` joined to one argument."""
        rest: list[str] = super().parse_args(ctx, _join_pairs(args))
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name in the line of its usage; all arguments are optional."""
        arguments = [param.metavar for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return ["[OPTIONS]", *(f"[{name}]" for name in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options, by panel; their explanations stand below each other in all panels."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                # typer 0.16 loses the help of arguments with newer versions of click
                panels.setdefault(ARGUMENTS, []).append((param.metavar, param.help or ""))
            else:
                panel = getattr(param, "rich_help_panel", None) or OTHERS
                panels.setdefault(panel, []).append((param.get_help_record(ctx)[0], param.help))
        panels[OTHERS] = panels.pop(OTHERS)  # the last
        width = max(len(name) for rows in panels.values() for name, _ in rows)
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in rows])


def pairs_from(values: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the pairs of --pair, which `Command` has joined as JSON."""
    return [(pair[0], pair[1]) for pair in map(json.loads, values or ())]


def _join_pairs(args: Sequence[str]) -> list[str]:
    joined: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--":
            return [*joined, arg, *rest]
        if arg != "--pair" and not arg.startswith("--pair="):
            joined.append(arg)
            continue
        pair = [arg.removeprefix("--pair=")] if arg != "--pair" else []
        while rest and len(pair) < 2:
            pair.append(rest.pop(0))
        if len(pair) < 2:
            raise UsageError(
                f"--pair has {len(pair)} text{'s' if not pair else ''}: expected two, as --pair 'A man plays.' 'A song is heard.'"
            )
        joined.append("--pair=" + json.dumps(pair))
    return joined
