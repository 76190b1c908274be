"""The machine, as the page describes it, and the rivals' environment, which is built when it is missing."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PINS: Final = Path(__file__).with_name("rivals.txt")
RIVALS: Final = ROOT / ".tox" / "rivals"

DISTRIBUTIONS: Final = {
    "torch": ("torch", "transformers", "keras", "keras-hub"),
    "tensorflow": ("tensorflow-cpu", "tf-keras", "transformers", "keras", "keras-hub"),
    "gluon": ("mxnet", "gluonnlp"),
    "jax": ("jax", "flax", "keras", "keras-hub"),
}


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(framework: str) -> str:
    """Return the processor, cores and versions in one line."""
    names = ("embgrad", "numpy", *DISTRIBUTIONS.get(framework, ()))
    versions = [f"{name} {installed}" for name in names if (installed := _version(name))]
    return f"{_processor()}, {cores()} cores, {platform.system()}, Python {platform.python_version()}; {', '.join(versions)}"


def rivals_python() -> str:
    """Return the interpreter of the rivals' environment, with embgrad from this checkout.

    Raises:
        RuntimeError: it cannot be built.
    """
    python, built = RIVALS / "bin" / "python", RIVALS / "built"
    wanted = hashlib.sha256(PINS.read_bytes() + str(ROOT).encode()).hexdigest()
    if python.exists() and built.exists() and built.read_text(encoding="ascii") == wanted:
        return str(python)
    print(f"building the rivals' environment, {RIVALS.relative_to(ROOT)}", file=sys.stderr, flush=True)
    _do([sys.executable, "-m", "venv", "--clear", str(RIVALS)])
    _do([str(python), "-m", "pip", "install", "--quiet", "-r", str(PINS)])
    _do([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-e", str(ROOT)])
    built.write_text(wanted, encoding="ascii")
    return str(python)


def _do(command: Sequence[str]) -> None:
    # The constraints of the benchmarks' environment do not apply to the rivals.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = [line for line in done.stderr.strip().splitlines() if line.strip()][-1:]
        raise RuntimeError(f"{' '.join(command[1:4])} ended with {done.returncode}: {' '.join(last)[:300]}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    fields = dict(tuple(part.strip() for part in line.partition(":")[::2]) for line in lines)
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "flags" not in fields:
        return name
    # TensorFlow computes products by oneDNN on CPUs with these instructions, otherwise by Eigen
    return f"{name} {'with' if 'avx512_vnni' in fields['flags'].split() else 'without'} AVX-512 VNNI"
