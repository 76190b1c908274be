"""The pytest plugin: locates, checks and updates the golden files of tests. pytest loads it through `_embgrad_pytest`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from _embgrad_pytest import (
    PROPERTY,
    embgrad_golden,
    pytest_addoption,
    pytest_report_header,
    pytest_terminal_summary,
)
from embgrad.backend.protocol import Call
from embgrad.comparison.golden import Golden
from embgrad.comparison.result import Comparison, Comparisons
from embgrad.errors import EmbgradError, FileFormatError, GoldenError, brief
from embgrad.results.gradients import EmbeddingGradients

__all__ = [
    "GoldenFiles",
    "embgrad_golden",
    "file_stem",
    "pytest_addoption",
    "pytest_report_header",
    "pytest_terminal_summary",
]

#: The name components that are used unchanged: valid on every file system, and without the separators between components.
PLAIN: Final = re.compile(r"[A-Za-z0-9_.=,+]+(-[A-Za-z0-9_.=,+]+)*")
IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_]+")
#: Names that Windows reserves for devices, with any suffix.
DEVICES: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
#: The most characters of a file's stem: some file systems allow 143 bytes; the suffix takes 12 and a temporary file's name 15.
LONGEST: Final = 100

ACCEPT: Final = "run this test with --embgrad-update, look at what has changed, and commit the file"


class GoldenFiles:
    """The value of the fixture `embgrad_golden`: the golden files of one test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._node = request.node
        self._update = bool(request.config.getoption("embgrad_update"))
        self._root = request.config.rootpath
        self._used: set[Path] = set()

    def path(self, name: str | None = None) -> Path:
        """Return the path of this test's golden file, or of the one with a name."""
        if name is not None and (not isinstance(name, str) or not name):
            raise EmbgradError(f"name is {brief(name)}: expected text, for a file of its own within the test")
        chain = self._node.listchain()
        classes = [node.name for node in chain if isinstance(node, pytest.Class)]
        module = self._node.path
        folder = module.parent / "goldens" / file_stem([], module.stem)
        return Path(folder / f"{file_stem(classes, self._node.name, name)}.safetensors")

    def __call__(
        self,
        results: EmbeddingGradients | Mapping[str, EmbeddingGradients],
        name: str | None = None,
        *,
        models: Any = None,
        tolerance: float | None = None,
        call: Call | None = None,
    ) -> Comparison | Comparisons:
        """Check results against the test's golden file; with --embgrad-update, write the file where they differ.

        Args:
            results: a result of `embgrad.gradients`, or several by name.
            name: the name of a further golden file of the same test.
            models: see `embgrad.results.Golden.check`.
            tolerance: see `embgrad.results.Golden.check`.
            call: see `embgrad.results.Golden.check`.

        Raises:
            GoldenError: there is no file, or the results differ from it.
            FileFormatError: the file is incomplete, or was not written by embgrad.
            EmbgradError: another check of the test, or another test, uses the same file.
        """
        __tracebackhide__ = True
        path = self.path(name)
        if path in self._used:
            raise EmbgradError(
                f"this test has used its golden file {path.name} before: give each check a name of its own, "
                "embgrad_golden(results, 'name')"
            )
        self._used.add(path)
        _expect_no_twin(path.parent)
        _expect_no_twin(path)
        golden = Golden(path, ACCEPT)
        if self._update:
            return self._write_golden(golden, results, tolerance, call)
        return golden.check(results, models=models, tolerance=tolerance, call=call)

    def _write_golden(
        self, golden: Golden, results: Any, tolerance: float | None, call: Call | None
    ) -> Comparison | Comparisons:
        """Write the file if necessary; read it again and check it if it was written."""
        __tracebackhide__ = True
        outcome = "changed" if golden.exists else "written"
        try:
            comparison = golden.check(results, tolerance=tolerance, call=call)
            outcome = "unchanged"
        except (GoldenError, FileFormatError):
            golden.update(results)
            comparison = golden.check(results, tolerance=tolerance, call=call)
        shown = golden.path.relative_to(self._root) if golden.path.is_relative_to(self._root) else golden.path
        self._node.user_properties.append((PROPERTY, f"{outcome} {shown.as_posix()}"))
        return comparison


def file_stem(classes: Sequence[str], test: str, name: str | None = None) -> str:
    """Return the name of a test's golden file without its suffix: `Class.test-parameters--name`.

    No two tests share a name: characters that cannot be used in a file's name, and names that are too long, are replaced and
    followed by "@" and a digest of the full name. Other names contain no "@".

    Args:
        classes: the names of the test's classes, outermost first.
        test: the test's name, with its parameters in brackets where it has some.
        name: the name of a further golden file of the test.
    """
    function, bracket, parameters = test.partition("[")
    parameters = parameters.removesuffix("]")
    stem = (
        ".".join([*classes, function]) + (f"-{parameters}" if bracket else "") + ("" if name is None else f"--{name}")
    )
    further = [*([parameters] if bracket else []), *([] if name is None else [name])]
    plain = all(map(IDENTIFIER.fullmatch, classes)) and all(map(PLAIN.fullmatch, [function, *further]))
    if plain and "-" not in function and len(stem) <= LONGEST and not DEVICES.fullmatch(stem):
        return stem
    digest = hashlib.sha256(json.dumps([list(classes), test, name]).encode()).hexdigest()[:16]
    return f"{re.sub('[^A-Za-z0-9_.=,+-]+', '_', stem)[: LONGEST - 17]}@{digest}"


def _expect_no_twin(path: Path) -> None:
    """Raise an error for a name that differs from another only in case: on macOS and Windows both would be the same file."""
    if not path.parent.is_dir():
        return
    twins = [
        file.name for file in path.parent.iterdir() if file.name != path.name and file.name.lower() == path.name.lower()
    ]
    if twins:
        raise EmbgradError(
            f"{path} and {twins[0]} differ only in case, and are one file on macOS and Windows: expected another name; rename "
            f"the test, give the check a name, or delete {twins[0]} if its test is gone"
        )
