"""Say at the end how many checks each backend has passed: the counts must be the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.conftest import backends_under_test


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line with the count of checks for each backend."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call" and "test_conformance.py" in report.nodeid:
            parameters = report.nodeid.partition("[")[2].rstrip("]").split("-")
            counts.update(name for name in backends_under_test() if name in parameters)
    if counts:
        terminalreporter.write_line("conformance checks run: " + ", ".join(f"{n} {c}" for n, c in counts.items()))
