"""Tests in a process of their own, in which Keras 3 runs on a framework: it reads KERAS_BACKEND when it is imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["OF_KERAS", "conformance_checks", "passed"]

ROOT = Path(__file__).parents[2]

#: All checks but those of what is the framework's part, or the same for each, which run with the framework's own models:
#: what a call leaves behind, slopes, certificates, several objectives, perturbed passes, threads and messages.
_OF_ALL = "no_trace_of_a_call finite_diff certificate several perturb objective has_one_message threads zeros"
OF_KERAS = f"not ({' or '.join(_OF_ALL.split())})"

#: The longest that such a process may take, in seconds.
LONGEST = 900


def conformance_checks(framework: str, which: str = "") -> int:
    """Run the conformance suite on Keras's models on a framework; print and return how many checks ran, all of which passed.

    Args:
        framework: the framework that Keras runs on.
        which: the expression by which pytest chooses checks; all where it is empty.
    """
    file = ROOT / "tests/contract/conformance/test_conformance.py"
    output = _run(framework, file, "-k", which, EMBGRAD_TEST_BACKENDS="keras")
    checks = _number(r"conformance checks run: keras (\d+)", output)
    print(f"conformance checks run: keras on {framework} {checks}")
    assert _number(r"(\d+) passed", output) == checks
    return checks


def passed(framework: str, file: Path, which: str = "", **settings: str) -> int:
    """Run a file of tests with Keras on a framework, and return how many passed; none may fail or be skipped.

    Args:
        framework: the framework that Keras runs on.
        file: the file of tests.
        which: the expression by which pytest chooses tests; all where it is empty.
        settings: environment variables of the process.
    """
    return _number(r"(\d+) passed", _run(framework, file, "-k", which, **settings))


def _run(framework: str, file: Path, *options: str, **settings: str) -> str:
    # TensorFlow 2.21 multiplies half precision wrongly by oneDNN on processors with AVX512-FP16, without any part of embgrad.
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0", "KERAS_BACKEND": framework, **settings}
    others = ("PYTEST_CURRENT_TEST", "EMBGRAD_TEST_SLOW")
    for name in [name for name in environment if name.startswith("PYTEST_XDIST") or name in others]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *options, str(file)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout
    return done.stdout


def _number(pattern: str, output: str) -> int:
    found = re.search(pattern, output)
    assert found is not None, output[-2000:]
    return int(found[1])
