"""A run of pytest without a word, and work in a process of its own that may take so long."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable

import pytest

#: Exit codes of a test process: no test failed, some did, and the change cannot be made in functions that are there already.
PASSED, FAILED, NOT_HERE = 0, 1, 77


def run_pytest(tests: list[str], plugins: list[object]) -> int:
    """Run pytest on files, in this process, with repeatable examples of Hypothesis and without a word."""
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutants", deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
    )
    settings.load_profile("mutants")
    with tempfile.TemporaryDirectory() as folder:
        # pytest would import the library in its own way, to rewrite asserts: a change would not get there.
        options = ["--assert=plain", "-p", "no:terminal", "-p", "no:xdist"]
        options += ["--basetemp", f"{folder}/pytest", "--rootdir", "."]
        return int(pytest.main([*options, *tests], plugins=plugins))


def in_child(work: Callable[[], int], limit: float) -> int:
    """Run work in a forked process and return its exit code; one that takes too long, or raises, has failed."""
    child = os.fork()
    if not child:
        code = FAILED
        with contextlib.suppress(BaseException):
            os.setsid()
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            code = work()
        os._exit(code)
    end, pause = time.monotonic() + limit, 0.001
    try:
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(pause := min(2 * pause, 0.05))
        return FAILED
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
