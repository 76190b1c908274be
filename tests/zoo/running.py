"""Processes that examine models, each watched: one that takes too long or too much memory is ended, and begun again."""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo.frameworks import FRAMEWORKS

__all__ = ["Limits", "chosen", "families", "run"]

ROOT = Path(__file__).parents[2]

#: The longest that the import of a framework, or of all its models, may take, in seconds.
BEGINNING = 900.0

#: The command of a process, before the name of the framework.
COMMAND = (sys.executable, "-m", "tests.zoo.worker")


@dataclass(frozen=True)
class Limits:
    """What a model may take.

    Attributes:
        seconds: of time.
        gigabytes: of memory of its process.
        models: after so many a process is begun again, since frameworks keep what they compile.
    """

    seconds: float = 180.0
    gigabytes: float = 6.0
    models: int = 100


class _Ended(Exception):
    """A process that ended, or had to be ended; the message says why."""


class _Process:
    """A process of `tests.zoo.worker`."""

    def __init__(self, framework: str, limits: Limits) -> None:
        self.limits, self.examined = limits, 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  it is closed with the process
        paths = [str(ROOT), str(ROOT / "backends"), *filter(None, [os.environ.get("PYTHONPATH")])]
        settings = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = subprocess.Popen(
            [*COMMAND, framework],
            cwd=ROOT,
            env={**os.environ, **settings, **FRAMEWORKS[framework].environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._reply(BEGINNING)  # that it is ready

    def listed(self) -> dict[str, str]:
        """Return all models with their architectures."""
        return self._asked("", BEGINNING)

    def row(self, name: str, family: str) -> dict[str, Any]:
        """Return the row of a model."""
        self.examined += 1
        return self._asked(f"{name} {family}", self.limits.seconds)

    def _asked(self, line: str, seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        return self._reply(seconds)

    def _reply(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        while not select.select([self._process.stdout], [], [], 0.2)[0]:
            if time.monotonic() > end:
                raise _Ended(f"it took more than {seconds:.0f} seconds")
            if _gigabytes(self._process.pid) > self.limits.gigabytes:
                raise _Ended(f"it took more than {self.limits.gigabytes:g} GB of memory")
        line = self._process.stdout.readline()
        if not line:
            raise _Ended(f"the process ended with status {self._process.wait()}: {self._last_error()}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._errors.close()


def _gigabytes(pid: int) -> float:
    """Return the resident memory of a process, of Linux; zero for one that ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9


def families(framework: str) -> dict[str, str]:
    """Return the models of a framework with their architectures, in the order of the packages' own lists."""
    process = _Process(framework, Limits())
    try:
        return process.listed()
    finally:
        process.close()


def run(
    framework: str, names: Mapping[str, str], limits: Limits, processes: int, report: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of models as they come.

    Args:
        framework: of `FRAMEWORKS`.
        names: the models with their architectures.
        limits: what each may take.
        processes: how many processes there are.
        report: is called with the name of each model that is begun.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    rows: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()
    threads = [
        threading.Thread(target=_work, args=(framework, names, limits, waiting, rows, report, stopped), daemon=True)
        for _ in range(min(processes, len(names)))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in names:
            row = rows.get()
            if isinstance(row, BaseException):
                raise row
            yield row
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def _work(
    framework: str,
    names: Mapping[str, str],
    limits: Limits,
    waiting: queue.SimpleQueue[str],
    rows: queue.SimpleQueue[dict[str, Any] | BaseException],
    report: Callable[[str], None],
    stopped: threading.Event,
) -> None:
    process: _Process | None = None
    try:
        while not stopped.is_set():
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            if process is None or process.examined >= limits.models:
                if process is not None:
                    process.close()
                process = _Process(framework, limits)
            report(name)
            try:
                rows.put(process.row(name, names[name]))
            except (_Ended, BrokenPipeError) as reason:
                rows.put({"name": name, "family": names[name], "framework": framework, "ended": str(reason)})
                process.close()
                process = None
    except BaseException as error:  # the thread that yields raises it
        rows.put(error)
    finally:
        if process is not None:
            process.close()


def chosen(names: Mapping[str, str], only: Sequence[str]) -> dict[str, str]:
    """Return the models whose class or architecture is among some names; all if there are none."""
    return {name: family for name, family in names.items() if not only or name in only or family in only}
