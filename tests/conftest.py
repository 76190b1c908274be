"""Which backends are under test: EMBGRAD_TEST_BACKENDS names them, and a missing one fails the run.

Each test runs in one environment: those of the reference in `core`, a framework's in the framework's own, and what needs two
frameworks or Ray in `all`. Slow tests run with EMBGRAD_TEST_SLOW=1, and then no others do.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Hugging Face's TensorFlow classes need Keras 2, which must be said before TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

#: Backends that are under test only where EMBGRAD_TEST_BACKENDS names them: Keras, on the framework that KERAS_BACKEND names.
NAMED = {"keras": "keras"}
PACKAGES = {"torch": "torch", "tensorflow": "tensorflow", "gluon": "mxnet", "jax": "jax"}
#: What else EMBGRAD_TEST_BACKENDS may name.
BESIDE = {"ray": "ray"}
#: Backends that compute values only, which do not run the contract of those with gradients, and are under test where named.
VALUES_ONLY = {"onnx": "onnxruntime"}
REFERENCE = "reference"
HERE = Path(__file__).parent
SEED = 11
#: Every source of random numbers that a test may draw weights from, by the module that holds it.
SOURCES: dict[str, Callable[[Any], Any]] = {
    "torch": lambda torch: torch.manual_seed(SEED),
    "mxnet": lambda mxnet: mxnet.random.seed(SEED),
    "tensorflow": lambda tensorflow: tensorflow.random.set_seed(SEED),
    "tf_keras": lambda keras: keras.utils.set_random_seed(SEED),
    "keras": lambda keras: keras.utils.set_random_seed(SEED),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that a run of a whole environment has."""
    parser.addoption(
        "--every-message", action="store_true", help="fail where no test reads one of the library's messages"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Fail before anything runs where a framework that is named is missing."""
    backends_under_test()
    messages = import_module("tests.messages.plugin").Messages()
    messages.install()
    config.pluginmanager.register(messages)
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as in a shell's job in the background, and in all that it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "framework(name): run only where this backend is under test")
    config.addinivalue_line("markers", "slow: run only with EMBGRAD_TEST_SLOW=1, as `make test-slow` does")
    config.addinivalue_line("markers", "sampled(count): of its cases run so many, evenly spread; the others are slow")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin every test at the same random numbers, its fixtures included: weights that happen to lie at a kink (a tie in a
    maximum) would make a finite difference no slope, in one run of a hundred."""
    random.seed(SEED)
    np.random.seed(SEED)
    for name, seed in SOURCES.items():
        if name in sys.modules:
            seed(sys.modules[name])


def parameters_in(name: str) -> list[str]:
    return name.partition("[")[2].rstrip("]").split("-")


def installed(package: str) -> bool:
    """Whether the package is there, without importing it."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def backends_under_test() -> list[str]:
    """Return the backends of this run: those named, or else the reference and all whose framework is installed."""
    named = os.environ.get("EMBGRAD_TEST_BACKENDS")
    if named is None:
        return [REFERENCE, *(name for name, package in PACKAGES.items() if installed(package))]
    wanted = [name.strip() for name in named.split(",") if name.strip()]
    known = {**PACKAGES, **BESIDE, **NAMED, **VALUES_ONLY}
    for name in wanted:
        if name not in (*known, REFERENCE):
            raise pytest.UsageError(
                f"EMBGRAD_TEST_BACKENDS names {name!r}: expected some of {sorted([*known, REFERENCE])}"
            )
        if name != REFERENCE and not installed(known[name]):
            raise pytest.UsageError(f"EMBGRAD_TEST_BACKENDS names {name!r}, and {known[name]!r} is not installed")
    return [name for name in wanted if name in (*PACKAGES, *NAMED, REFERENCE)]


def beside_under_test() -> list[str]:
    """Return what else is under test: as named, or else what is installed."""
    named = os.environ.get("EMBGRAD_TEST_BACKENDS")
    if named is None:
        return [name for name, package in BESIDE.items() if installed(package)]
    return [name for name in BESIDE if name in (one.strip() for one in named.split(","))]


def values_only_under_test() -> list[str]:
    """Return the backends of this run that compute values only."""
    named = os.environ.get("EMBGRAD_TEST_BACKENDS", "").split(",")
    return [name for name in VALUES_ONLY if name in (one.strip() for one in named)]


def pytest_report_header() -> str:
    which = "slow tests" if slow_is_asked_for() else "backends"
    under_test = [*backends_under_test(), *values_only_under_test(), *beside_under_test()]
    return f"{which} under test: {', '.join(under_test)}"


def slow_is_asked_for() -> bool:
    """Return whether this run is one of the slow tests."""
    return os.environ.get("EMBGRAD_TEST_SLOW", "") not in ("", "0")


def skipped_backends() -> list[str]:
    under_test = {*backends_under_test(), *beside_under_test()}
    return [name for name in (REFERENCE, *PACKAGES, *BESIDE) if name not in under_test]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end what was not under test, and how many conformance checks each backend ran: the counts must be equal."""
    if skipped_backends():
        terminalreporter.write_line(f"not under test: {', '.join(skipped_backends())}")
    counts: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call" and "test_conformance.py" in report.nodeid:
            counts.update(set(backends_under_test()) & {*parameters_in(report.nodeid)})
    if counts:
        listed = ", ".join(f"{name} {counts[name]}" for name in backends_under_test() if name in counts)
        terminalreporter.write_line(f"conformance checks run: {listed}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """One thread in each worker, unless the environment says otherwise: those of several only wait for one another."""
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        os.environ.setdefault(name, "1")
    # A function that TensorFlow's graph calls may ask the model again: with one thread between operations it waits for ever.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `--dist loadfile` say which tests share a process."""
    from tests.workers import Scheduling

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Keep the frameworks' own objects, a million, out of what is searched for garbage, and for the user's tapes."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of backends that are not under test, and the slow ones or the others."""
    from tests.support.sampling import slow_items

    under_test, slow = [*backends_under_test(), *values_only_under_test()], slow_items(items)
    out = [
        item
        for item in items
        if any(mark.args[0] not in under_test for mark in item.iter_markers("framework"))
        or (item in slow) != slow_is_asked_for()
    ]
    if out:
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=out)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the folder of a framework that is not under test, what needs all of them, and the browser's unless it is named."""
    under_test = [*backends_under_test(), *values_only_under_test()]
    cross = HERE / "cross"
    needs_all = collection_path in (cross, HERE / "unit" / "page" / "test_minilm.py")
    if needs_all and not PACKAGES.keys() <= {*under_test}:
        return True
    if (
        collection_path.parent == HERE / "frameworks"
        and collection_path.name in (*PACKAGES, *VALUES_ONLY)
        and collection_path.name not in under_test
    ):
        return True
    if collection_path.parent == HERE / "unit" and collection_path.name in BESIDE:
        return True if collection_path.name not in beside_under_test() else None
    if collection_path == HERE / "unit" / "page" and not _asked_for(collection_path, config):
        return True
    return None


def _asked_for(folder: Path, config: pytest.Config) -> bool:
    given = (config.invocation_params.dir / one.partition("::")[0] for one in config.args)
    return any(path.resolve().is_relative_to(folder) for path in given)
