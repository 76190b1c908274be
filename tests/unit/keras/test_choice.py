"""Which backend Keras uses, what determined it, and the errors where embgrad cannot use it. Keras itself is not imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import embgrad
from embgrad.backend import registry
from embgrad.keras import choice as module
from embgrad.keras.choice import KerasChoice, framework_named, keras_choice
from tests.unit.refusals import refused


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return an empty home for Keras's settings, where no Keras is imported and nothing is set."""
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    return tmp_path


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the backends of a registry in which PyTorch and JAX are installed, and TensorFlow is not."""
    packages = {"torch": "numpy", "tensorflow": "no_such_framework", "jax": "numpy"}
    fakes = {
        name: SimpleNamespace(name=name, package=package, extra=name, supports=frozenset({"load_bert"}))
        for name, package in packages.items()
    }
    monkeypatch.setattr(registry, "_discover", lambda: registry.Discovery(fakes, {}))
    monkeypatch.setattr(module, "is_installed", lambda package: True)
    return fakes


def test_what_determines_the_choice(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "keras.json"
    assert keras_choice() == KerasChoice(
        "tensorflow", f"its default, as neither KERAS_BACKEND nor {path} says otherwise"
    )
    path.write_text(json.dumps({"backend": "torch"}))
    assert keras_choice() == KerasChoice("torch", f"as {path} says")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert keras_choice() == KerasChoice("jax", "as the environment variable KERAS_BACKEND says")
    keras = SimpleNamespace(config=SimpleNamespace(backend=lambda: "openvino"))
    monkeypatch.setitem(sys.modules, "keras", keras)
    assert keras_choice() == KerasChoice("openvino", "with which it was imported")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"backend": 3}'])
def test_settings_that_name_no_backend_are_passed_over(home: Path, text: str) -> None:
    (home / "keras.json").write_text(text)
    assert keras_choice().name == "tensorflow"


def test_the_settings_are_in_the_users_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KERAS_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text(json.dumps({"backend": "jax"}))
    assert keras_choice().name == "jax"


def test_keras_means_the_backend_that_owns_its_models(backends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "jax"):
        monkeypatch.setenv("KERAS_BACKEND", name)
        assert framework_named("keras") is backends[name]
        assert framework_named(name) is backends[name]


def test_a_backend_of_keras_whose_framework_is_missing(backends: Any, home: Path) -> None:
    with refused(
        embgrad.errors.BackendError,
        "Keras uses its backend 'tensorflow', its default, as neither KERAS_BACKEND nor ",
        "keras.json says otherwise. But the backend 'tensorflow' needs the package 'no_such_framework', which is not installed: "
        "pip install 'embgrad[tensorflow]'; or set KERAS_BACKEND to 'torch' or 'jax' before keras is imported\n",
    ):
        framework_named("keras")
    del backends["torch"], backends["jax"]
    with refused(embgrad.errors.BackendError, "not installed: pip install 'embgrad[tensorflow]'\n"):
        framework_named("keras")


def test_a_backend_of_keras_that_computes_no_gradients(backends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "openvino")
    with refused(
        embgrad.errors.BackendError,
        "Keras uses its backend 'openvino', as the environment variable KERAS_BACKEND says, which embgrad does not support. Set "
        "KERAS_BACKEND to 'tensorflow', 'torch' or 'jax' before keras is imported",
    ):
        framework_named("keras")


def test_keras_is_not_installed(backends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_installed", lambda package: package != "keras")
    with refused(
        embgrad.errors.BackendError,
        "'keras' needs the package 'keras', which is not installed: pip install 'embgrad[keras]'",
    ):
        framework_named("keras")


def test_a_name_that_is_near(backends: Any) -> None:
    with refused(
        embgrad.errors.BackendError,
        "there is no backend 'kera': expected one of 'torch', 'tensorflow', 'jax', 'keras'. Did you mean 'keras'?",
    ):
        framework_named("kera")
