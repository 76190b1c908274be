"""Reading of results from files or stdin, and the files that a command writes."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from embgrad.cli.describe import Result, Results, name_results
from embgrad.cli.options import of_output
from embgrad.cli.terminal import Terminal
from embgrad.errors import FileFormatError, did_you_mean, quote
from embgrad.loading.errors import UsageError
from embgrad.loading.texts import read_bytes
from embgrad.results.attribution import Attributions

__all__ = ["Files", "choose_results", "expect_writable", "load_results", "restrict"]

STDIN = "<stdin>"


def load_results(files: Sequence[str]) -> dict[str, Results]:
    """Load the results of each file, by file name; "-" is stdin, at most once. A file named twice gives two entries."""
    if list(files).count("-") > 1:
        raise UsageError("'-' stands for stdin, which can be read once: name the other file")
    results: dict[str, Results] = {}
    for number, file in enumerate(files):
        name = STDIN if file == "-" else file
        results[f"{name} (again, {number})" if name in results else name] = _load(file)
    return results


def choose_results(results: Results, at: Sequence[str], file: str) -> dict[str, Result]:
    """Return the results at the points, or by the methods, `at`; all results if `at` is empty."""
    by_point = name_results(results)
    for name in at:
        if name not in by_point:
            raise UsageError(
                f"{file} holds no result at {name!r}: expected one of {quote(by_point)}.{did_you_mean(name, by_point)}"
            )
    return {name: by_point[name] for name in at} if at else by_point


def restrict(results: Mapping[str, Results], at: Sequence[str]) -> dict[str, Results]:
    """Return the results of each file at the points `at`; all results if `at` is empty."""
    return {file: dict(choose_results(each, at, file)) if at else each for file, each in results.items()}


def expect_writable(output: str, option: str = "--output") -> None:
    """Check, before anything is computed, that a file can be written to the value of an option; "-" is stdout."""
    if output == "-":
        return
    path = Path(output)
    if not output or path.is_dir():
        raise UsageError(f"{option} {output!r} is {'a folder' if output else 'empty'}: expected the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {output!r}: there is no folder {str(path.parent)!r}; make it, or name another")


@dataclass(frozen=True)
class Files:
    """The files that a command writes beside what it prints."""

    output: Annotated[
        str | None,
        of_output("--output", "-o", metavar="FILE", help="The safetensors file to write, for embgrad.load."),
    ] = None
    html: Annotated[
        str | None,
        of_output("--html", metavar="PAGE", help="The HTML page to write, with the tokens coloured or marked."),
    ] = None

    def expect(self, printed: str, further: Mapping[str, str | None] | None = None) -> None:
        """Check that the files can be written, beside the output on stdout.

        Args:
            printed: what is printed on stdout.
            further: further options that name files, with their values.

        Raises:
            UsageError: a value is "-", or see `expect_writable`.
        """
        for option, path in {"--output": self.output, "--html": self.html, **(further or {})}.items():
            if path == "-":
                raise UsageError(
                    f"{option} is '-', but the {printed} are printed on stdout: expected the name of a file"
                )
            if path is not None:
                expect_writable(path, option)

    def write(self, results: Any) -> None:
        """Write the results, a single one of several as itself."""
        if self.output is not None:
            from embgrad.results.io import save

            alone = isinstance(results, Attributions) and len(results) == 1
            save(next(iter(results.values())) if alone else results, self.output)
        if self.html is not None:
            from embgrad.report.page import write_page

            write_page(self.html, results)

    def say_written(self, terminal: Terminal) -> None:
        """Print which files were written."""
        for path in (self.output, self.html):
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
