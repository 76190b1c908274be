"""Reading of results from files or stdin, and checks of output paths."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embgrad.cli.describe import Result, Results, named
from embgrad.cli.errors import UsageError
from embgrad.cli.terminal import Terminal
from embgrad.cli.texts import read_bytes
from embgrad.errors import FileFormatError, did_you_mean, listed
from embgrad.results.attribution import Attributions

__all__ = [
    *("chosen", "expect_files", "expect_writable", "loaded_results", "restricted"),
    *("say_written", "write_files"),
]

STDIN = "<stdin>"


def loaded_results(files: Sequence[str]) -> dict[str, Results]:
    """Load the results of each file, by file name; "-" is stdin, at most once. A file named twice gives two entries.

    Raises:
        UsageError: stdin is named twice, or nothing is piped to it.
        FileFormatError: a file was not written by embgrad.
    """
    if list(files).count("-") > 1:
        raise UsageError("'-' stands for stdin, which can be read once: name the other file")
    results: dict[str, Results] = {}
    for number, file in enumerate(files):
        name = STDIN if file == "-" else file
        results[f"{name} (again, {number})" if name in results else name] = _load(file)
    return results


def chosen(results: Results, at: Sequence[str], file: str) -> dict[str, Result]:
    """Return the results at the points, or by the methods, `at`; all results if `at` is empty.

    Raises:
        UsageError: the file holds no result at one of the points.
    """
    by_point = named(results)
    for name in at:
        if name not in by_point:
            raise UsageError(
                f"{file} holds no result at {name!r}: expected one of {listed(by_point)}.{did_you_mean(name, by_point)}"
            )
    return {name: by_point[name] for name in at} if at else by_point


def restricted(results: Mapping[str, Results], at: Sequence[str]) -> dict[str, Results]:
    """Return the results of each file at the points `at`; all results if `at` is empty.

    Raises:
        UsageError: a file holds no result at one of the points.
    """
    return {file: dict(chosen(each, at, file)) if at else each for file, each in results.items()}


def expect_writable(output: str, option: str = "--output") -> None:
    """Check, before anything is computed, that a file can be written to the value of an option; "-" is stdout.

    Raises:
        UsageError: the path is empty, is a folder, or lies in a folder that does not exist.
    """
    if output == "-":
        return
    path = Path(output)
    if not output or path.is_dir():
        raise UsageError(f"{option} {output!r} is {'a folder' if output else 'empty'}: expected the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {output!r}: there is no folder {str(path.parent)!r}; make it, or name another")


def expect_files(paths: Mapping[str, str | None], printed: str) -> None:
    """Check that files can be written to the values of options, beside the output on stdout.

    Args:
        paths: by option its value; None where it is not given.
        printed: what is printed on stdout.

    Raises:
        UsageError: a value is "-", or see `expect_writable`.
    """
    for option, path in paths.items():
        if path == "-":
            raise UsageError(f"{option} is '-', but the {printed} are printed on stdout: expected the name of a file")
        if path is not None:
            expect_writable(path, option)


def write_files(results: Any, output: str | None, html: str | None) -> None:
    """Write results to the files of --output, a single one of several as itself, and of --html, where these are given."""
    if output is not None:
        from embgrad.results.io import save

        save(
            next(iter(results.values())) if isinstance(results, Attributions) and len(results) == 1 else results, output
        )
    if html is not None:
        from embgrad.report.page import write_page

        write_page(html, results)


def say_written(terminal: Terminal, *paths: str | None) -> None:
    """Say which files were written; None for those that were not asked for."""
    for path in paths:
        if path is not None:
            terminal.say(f"written to {path}")


def _load(file: str) -> Results:
    from embgrad.results.io import load

    if file != "-":
        results: Results = load(file)
        return results
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stdin.safetensors"
        _spool(path)
        try:
            piped: Results = load(path)
        except FileFormatError as error:
            raise FileFormatError(error.message.replace(str(path), STDIN)) from error
        return piped


def _spool(path: Path) -> None:
    """Copy stdin to a file in chunks, because it may be as long as any file of results."""
    if sys.stdin is None or sys.stdin.isatty() or not hasattr(sys.stdin, "buffer"):
        path.write_bytes(read_bytes("-"))  # raises the error that explains the problem
        return
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
