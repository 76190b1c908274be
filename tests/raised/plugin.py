"""The plugin of all tests that notes what they raise, fails one that is listed and does not raise its error, and keeps the notes.

With EMBGRAD_RAISED_TO=FOLDER the notes are written there, a file a process, for `python -m tests.raised FOLDER`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.raised.ledger import read
from tests.raised.recording import Recorder

_recorder = Recorder()
_listed: dict[str, list[str]] = {}


def pytest_configure() -> None:
    """Begin."""
    _recorder.install()
    for key, row in read().items():
        _listed.setdefault(row.test, []).append(key)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note what the test's own call raises, not its fixtures, and compare that with the list."""
    if item.nodeid in _listed or "EMBGRAD_RAISED_TO" in os.environ:  # reading the library's source takes its time
        _recorder.test = item.nodeid
    try:
        yield
    except BaseException:
        _recorder.forget(item.nodeid)
        raise
    finally:
        _recorder.test = ""
    for key in _listed.get(item.nodeid, ()):
        if item.nodeid not in _recorder.raised.get(key, ()) and "EMBGRAD_RAISED_TO" not in os.environ:
            pytest.fail(
                f"the list of errors (tests/raised/raised.json) says that this test raises\n  {key}\nwhich it did not: put "
                "another test in its place there, or make the list anew (python -m tests.raised)",
                pytrace=False,
            )


def pytest_sessionfinish() -> None:
    """Write the notes where they are wanted."""
    if to := os.environ.get("EMBGRAD_RAISED_TO"):
        folder = Path(to)
        folder.mkdir(parents=True, exist_ok=True)
        _recorder.write(str(folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}.json"))
