"""What pytest loads of embgrad at its start: an option, a fixture and a summary.

It is no part of the package `embgrad`, since that would be imported with it, and NumPy, in every run of pytest wherever embgrad
is installed. Both wait until a test uses the fixture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from embgrad.pytest_plugin import GoldenFiles

__all__ = ["embgrad_golden", "pytest_addoption", "pytest_report_header", "pytest_terminal_summary"]

#: The name of a test's property that says what became of a golden file: "written", "changed" or "unchanged", and its path.
PROPERTY = "embgrad_golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--embgrad-update`."""
    parser.getgroup("embgrad").addoption(
        "--embgrad-update",
        action="store_true",
        default=False,
        help="write the golden files of the tests that run where they are missing or their gradients differ",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say where golden files may be written."""
    return ["embgrad: golden files are updated"] if config.getoption("embgrad_update") else []


@pytest.fixture
def embgrad_golden(request: pytest.FixtureRequest) -> GoldenFiles:
    """Pin gradients: `embgrad_golden(results)` fails where they are not those of the test's golden file.

    The file is `goldens/<test module>/<test>.safetensors` beside the test module. `--embgrad-update` writes it; commit it.
    `embgrad_golden(results, "name")` has a file of its own for each name. `models=`, `tolerance=` and `call=` are those of
    `embgrad.results.Golden.check`, whose comparison is returned.
    """
    from embgrad.pytest_plugin import GoldenFiles

    return GoldenFiles(request)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which golden files were written; of those of all processes, since they come with the tests' reports."""
    became = dict(_golden_files(terminalreporter))
    if not became:
        return
    terminalreporter.write_sep("=", "embgrad golden files")
    for path, outcome in sorted(became.items()):
        if outcome != "unchanged":
            terminalreporter.write_line(f"{outcome:9} {path}")
    counts = Counter(became.values())
    terminalreporter.write_line(", ".join(f"{counts[name]} {name}" for name in ("written", "changed", "unchanged")))


def _golden_files(reporter: Any) -> Iterator[tuple[str, str]]:
    """Each golden file with what became of it."""
    for reports in reporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == PROPERTY:
                    outcome, _, path = str(value).partition(" ")
                    yield path, outcome
