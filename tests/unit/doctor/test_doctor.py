"""The command `doctor`: backends that work or are broken, and incompatible versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from embgrad.backend import registry
from embgrad.doctor import health
from embgrad.doctor.supported import SUPPORTED
from tests.unit.cli.commands import child


def test_doctor_in_its_own_process() -> None:
    done = child("doctor", "--json", "--timeout", "5")
    actual = json.loads(done.out)
    assert set(actual["backends"]) >= {"torch", "tensorflow", "gluon", "jax", "keras"}
    assert actual["works"] == any(item["works"] for item in actual["backends"].values())
    assert done.code == (0 if actual["works"] else 1)
    for item in actual["backends"].values():
        assert item["works"] or item["error"]
        assert item["install"].startswith("pip install 'embgrad[")


def backend(name: str, package: str = "numpy") -> Any:
    members = {"extra": None, "supports": frozenset(), "versions": dict, "points": None, "run": None}
    return SimpleNamespace(name=name, package=package, owns=lambda part: False, **members)


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(actual: dict[str, Any], failures: dict[str, str]) -> None:
        monkeypatch.setattr(registry, "_discover", lambda: registry.Discovery(actual, failures))

    return put


def test_broken_and_missing_backends(command: Any, backends: Any) -> None:
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
        ("import os; os.abort()", "was terminated by SIGABRT"),
        ("import sys; print('why', file=sys.stderr); sys.exit(3)", "exited with code 3: why"),
        ("import time; time.sleep(60)", "took longer than 1 s"),
    ],
)
def test_a_framework_that_crashes_or_hangs(
    command: Any, backends: Any, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    backends({"wild": backend("wild")}, {})
    monkeypatch.setattr("embgrad.doctor.health._SCRIPT", script)
    done = command("doctor", "--timeout", "1")
    assert done.code == 1
    assert said in done.out


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(**versions: str) -> None:
        actual = {name.replace("_", "-"): version for name, version in versions.items()}
        monkeypatch.setattr(
            health, "_version", lambda names: next(((n, actual[n]) for n in names if n in actual), ("", ""))
        )
        monkeypatch.setattr(health, "_is_installed", lambda module: module != "pkg_resources")

    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    return put


def troubles(name: str) -> dict[str, str]:
    return {part.name: part.trouble for part in health._parts(name) if part.trouble}


def test_versions_that_are_incompatible(installed: Any) -> None:
    installed(
        numpy="2.2.6",
        tensorflow="2.21.0",
        keras="3.15.1",
        tf_keras="2.18.0",
        transformers="5.1.0",
        torch="2.1.0+cpu",
        setuptools="82.0.0",
        tensorflow_hub="0.16.1",
        mxnet="1.9.1",
    )
    assert troubles("torch") == {"torch": "older than 2.6, the oldest that embgrad is tested with"}
    assert troubles("tensorflow") == {
        "transformers": "expected a version below 5: transformers 5 has no TensorFlow classes any more",
        "tensorflow-text": "not installed",
        "setuptools": "expected a version below 81: it has no pkg_resources any more",
        "tf-keras and tensorflow": "do not match",
        "TF_USE_LEGACY_KERAS": "not 1",
    }
    actual = troubles("gluon")
    assert actual["numpy"].startswith("expected a version below 2: while it is imported, MXNet reads names")
    assert "np.PZERO" in actual["numpy"]
    assert actual["setuptools"] == "expected a version below 81: it has no pkg_resources any more"
    mends = [part.mend for part in health._parts("gluon") if part.trouble]
    assert {"pip install 'numpy>=1.24,<2'", "pip install 'setuptools<81'"} <= {*mends}


def test_keras_2_is_of_the_release_of_tensorflow(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tensorflow="2.21.0", tf_keras="2.21.1", transformers="4.57.6")
    assert "tf-keras and tensorflow" not in troubles("tensorflow")
    (flag,) = [part for part in health._parts("tensorflow") if part.name == "TF_USE_LEGACY_KERAS"]
    assert (flag.version, flag.optional) == ("not set", True)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert "TF_USE_LEGACY_KERAS" not in troubles("tensorflow")
    installed(tensorflow="2.21.0", tf_keras="2.20.1")
    (match,) = [part for part in health._parts("tensorflow") if part.name == "tf-keras and tensorflow"]
    assert (match.version, match.mend, match.optional) == ("2.20.1, 2.21.0", "pip install 'tf-keras==2.21.*'", False)


def test_what_is_required_and_what_is_optional(installed: Any) -> None:
    installed()
    required = {
        name: [part.name for part in health._parts(name) if not part.optional and part.trouble == "not installed"]
        for name in health.NEEDS
    }
    assert required == {
        "torch": ["torch"],
        "tensorflow": ["tensorflow", "setuptools"],
        "gluon": ["mxnet", "numpy", "setuptools"],
        "jax": ["jax"],
        "onnx": ["onnxruntime", "onnx"],
        "keras": ["keras"],
    }
    assert [need.distributions[0] for need in health.CORE if not need.optional] == ["numpy", "safetensors"]
    mends = {part.name: part.mend for part in health._parts("jax")}
    assert mends == {
        "jax": "pip install 'embgrad[jax]'",
        "flax": "pip install 'embgrad[jax]'",
        "equinox": "pip install equinox",
    }


def test_the_outcome_of_a_process_that_reports_nothing(backends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backends({"quiet": backend("quiet"), "absent": backend("absent", "no_such_package")}, {})
    monkeypatch.setattr(health, "_SCRIPT", "pass")
    assert health._run_trial("quiet", 20.0) == {
        "works": False,
        "error": "it exited with code 0",
        "versions": {},
        "classes": {},
        "seconds": 0.0,
    }
    absent = next(state for state in health.examine(20.0) if state.name == "absent")
    assert (absent.works, absent.seconds, absent.error) == (False, 0.0, "no_such_package is not installed")
    assert absent.install == "pip install no_such_package"


def test_the_backend_of_keras_is_named(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(keras="3.2.0", keras_hub="0.33.1")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras, hub, chosen = health._parts("keras")
    assert keras.trouble == "older than 3.8, the oldest that embgrad is tested with"
    assert hub.note == "newer than 0.32, the newest that embgrad is tested with"
    assert (chosen.version, chosen.note) == ("torch", "as the environment variable KERAS_BACKEND says")


def test_parts_of_jax(installed: Any) -> None:
    installed(jax="0.5.0", flax="0.12.8")
    assert troubles("jax") == {
        "jax": "older than 0.6.2, the oldest that embgrad is tested with",
        "equinox": "not installed",
    }


def test_advice_names_the_installed_distribution(installed: Any) -> None:
    installed(tensorflow_cpu="2.15.1", mxnet_mkl="1.6.0")
    assert health._parts("tensorflow")[0].mend.startswith("pip install 'tensorflow-cpu>=")
    assert health._parts("gluon")[0].mend == "pip install 'mxnet==1.9.1'"  # which is not called mxnet-mkl any more


def test_a_version_newer_than_tested(installed: Any) -> None:
    installed(torch="2.99.0", transformers="4.57.6")
    torch, transformers = health._parts("torch")
    assert (torch.trouble, transformers.trouble, transformers.note) == ("", "", "")
    newest = SUPPORTED["torch"]["torch"].newest
    assert torch.note == f"newer than {newest}, the newest that embgrad is tested with"
    assert torch.mend == f"it may work; if it does not, pip install 'torch=={newest}.*'"


@pytest.mark.parametrize(
    ("python", "core", "gluon"),
    [
        ("3.11.7", "", ""),
        ("3.9.18", "older than 3.10", "older than 3.10"),
        ("3.13.0", "", "expected a version below 3.13: no NumPy below 2"),
    ],
)
def test_versions_of_python(
    installed: Any, monkeypatch: pytest.MonkeyPatch, python: str, core: str, gluon: str
) -> None:
    installed(numpy="1.26.4", safetensors="0.8.0", mxnet="1.9.1", gluonnlp="0.10.0", setuptools="80.9.0")
    monkeypatch.setattr("platform.python_version", lambda: python)
    own = {part.name: part for part in health.core_parts()}
    assert [*own] == ["python", "numpy", "safetensors"]
    assert own["python"].trouble.startswith(core)
    assert own["python"].mend == ("use Python 3.10 to 3.13" if core else "")
    assert bool(own["python"].trouble) == bool(core)
    assert troubles("gluon").get("python", "").startswith(gluon)
    assert ("python" in troubles("gluon")) == bool(gluon)
    monkeypatch.setattr("platform.python_version", lambda: "3.14.0")
    assert health.core_parts()[0].note == "newer than 3.13, the newest that embgrad is tested with"


def test_the_output_lists_old_and_new_versions(
    command: Any, backends: Any, installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(numpy="1.20.0", safetensors="0.99", typer="0.16.0", torch="2.3.1", transformers="5.99.0")
    backends({"torch": backend("torch")}, {})
    tried = {"works": True, "error": "", "versions": {}, "classes": {}, "seconds": 1.0}
    monkeypatch.setattr(health, "_run_trial", lambda name, limit: tried)
    done = command("doctor")
    reported = " ".join(done.out.split())
    assert done.code == 0
    for line in (
        "✗ numpy 1.20.0: older than 1.24, the oldest that embgrad is tested with (arrays); pip install 'numpy>=1.24'",
        "✓ safetensors 0.99: newer than 0.8, the newest that embgrad is tested with; it may work; if it does not, "
        "pip install 'safetensors==0.8.*'",
        "✗ torch 2.3.1: older than 2.6, the oldest that embgrad is tested with (the framework); pip install 'torch>=2.6'",
        "✓ transformers 5.99.0: newer than",
    ):
        assert line in reported
    assert "typer" not in reported
    actual = json.loads(command("doctor", "--json").out)
    assert [part["name"] for part in actual["core"]] == ["python", "numpy", "safetensors", "typer"]
    assert actual["backends"]["torch"]["parts"][1]["note"].startswith("newer than")
