"""The doctor: what works, what is broken, what does not go together."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from embgrad import registry
from tests.core.cli.commands import child


def test_doctor_in_a_process_of_its_own() -> None:
    done = child("doctor", "--json", "--timeout", "5")
    found = json.loads(done.out)
    assert set(found["backends"]) >= {"torch", "tensorflow", "gluon"}
    assert found["works"] == any(one["works"] for one in found["backends"].values())
    assert done.code == (0 if found["works"] else 1)
    for one in found["backends"].values():
        assert one["works"] or one["error"]
        assert one["install"].startswith("pip install 'embgrad[")


def backend(name: str, package: str = "numpy") -> Any:
    members = {
        "extra": None,
        "supports": frozenset(),
        "owns": lambda part: False,
        "versions": dict,
        "points": None,
        "run": None,
    }
    return SimpleNamespace(name=name, package=package, **members)


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(found: dict[str, Any], failures: dict[str, str]) -> None:
        monkeypatch.setattr(registry, "_discovered", lambda: registry.Discovery(found, failures))

    return put


def test_doctor_shows_what_is_broken_and_what_is_not_installed(command: Any, backends: Any) -> None:
    backends({"absent": backend("absent", "no_such_package")}, {"bad": "bad 1.0 (bad:Backend) raised ImportError: oh"})
    done = command("doctor")
    assert done.code == 1
    assert "no_such_package is not installed" in done.out
    assert "pip install no_such_package" in done.out
    assert "bad: broken" in done.out
    assert "raised ImportError: oh" in done.out
    assert "embgrad works with no framework here" in done.out


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import os; os.abort()", "was ended by SIGABRT"),
        ("import sys; print('why', file=sys.stderr); sys.exit(3)", "left with exit code 3: why"),
        ("import time; time.sleep(60)", "took longer than 1 s"),
    ],
)
def test_doctor_survives_what_a_framework_does(
    command: Any, backends: Any, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    backends({"wild": backend("wild")}, {})
    monkeypatch.setattr("embgrad.cli.health._SCRIPT", script)
    done = command("doctor", "--timeout", "1")
    assert done.code == 1
    assert said in done.out


def test_doctor_names_what_does_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from embgrad.cli import health

    versions = {
        "numpy": "2.2.6",
        "tensorflow": "2.21.0",
        "tf-keras": "2.18.0",
        "transformers": "5.1.0",
        "torch": "2.1.0+cpu",
    }
    versions |= {"setuptools": "82.0.0", "tensorflow-hub": "0.16.1", "mxnet": "1.9.1"}
    monkeypatch.setattr(health, "_version", lambda names: next((versions[one] for one in names if one in versions), ""))
    monkeypatch.setattr(health, "_found", lambda module: module != "pkg_resources")
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    troubles = {
        name: {part.name: part.trouble for part in health._parts(name) if part.trouble}
        for name in ("torch", "tensorflow", "gluon")
    }
    assert troubles["torch"] == {"torch": "too old, expected 2.4 or later"}
    assert troubles["tensorflow"] == {
        "transformers": "too new, expected a version below 5",
        "tensorflow-text": "not installed",
        "setuptools": "has no pkg_resources",
        "tf-keras and tensorflow": "do not go together",
        "TF_USE_LEGACY_KERAS": "not 1",
    }
    assert troubles["gluon"]["numpy"] == "too new, expected a version below 2"
    assert troubles["gluon"]["setuptools"] == "has no pkg_resources"
    mends = [part.mend for part in health._parts("gluon") if part.trouble]
    assert "pip install 'numpy<2'" in mends
