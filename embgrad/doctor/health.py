"""Checks of the installation: versions, packages that fit together, and whether each framework can be imported."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from embgrad.backend.registry import list_backends
from embgrad.doctor.supported import SETUPTOOLS, SUPPORTED, Standing, Supported, numbers
from embgrad.keras.choice import KERAS, keras_choice

__all__ = ["Health", "Part", "core_parts", "examine"]

#: The default time limit, in seconds, for importing a framework.
LIMIT: Final = 120.0

#: The built-in NumPy backend, which `doctor` does not list because it is not a framework.
REFERENCE: Final = "reference"


@dataclass(frozen=True)
class Need:
    """A package that a backend uses.

    Attributes:
        distributions: the names on PyPI of its variants, which share their version numbers.
        supported: the versions that embgrad is tested with.
        optional: whether the backend also works without it.
        former: the names on PyPI under which older versions were published.
    """

    module: str
    distributions: tuple[str, ...]
    what: str
    supported: Supported | None = None
    install: str = ""
    optional: bool = False
    former: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """The state of one package that a backend uses.

    Attributes:
        version: the installed version; empty if it is missing.
        trouble: the problem with it; empty if there is none.
        mend: the remedy for the trouble, or the advice that belongs to the note.
        optional: whether the backend also works without it.
        note: a remark on a version without known problems that embgrad was never tested with; else empty.
    """

    name: str
    what: str
    version: str
    trouble: str = ""
    mend: str = ""
    optional: bool = False
    note: str = ""


@dataclass(frozen=True)
class Health:
    """The state of one backend.

    Attributes:
        parts: the states of the packages that the backend uses, the framework first.
        classes: for each class that `embgrad.zoo.load_bert` builds, the reason why it cannot be imported; empty if it can.
    """

    name: str
    version: str = ""
    works: bool = False
    error: str = ""
    seconds: float = 0.0
    install: str = ""
    parts: tuple[Part, ...] = ()
    classes: dict[str, str] = field(default_factory=dict)


#: An undeclared requirement of packages from 2022, which pip therefore does not install.
PKG_RESOURCES: Final = Need(
    "pkg_resources", ("setuptools",), "tensorflow-hub and gluonnlp import it", SETUPTOOLS, "pip install 'setuptools<81'"
)


def _need(group: str, name: str, what: str, install: str = "", *, optional: bool = True) -> Need:
    """Return a need whose module has the name of its distribution."""
    return Need(name.replace("-", "_"), (name,), what, SUPPORTED[group][name], install, optional)


#: By backend, the packages that it uses, the framework first.
NEEDS: Final[dict[str, tuple[Need, ...]]] = {
    "torch": (
        _need("torch", "torch", "the framework", "pip install 'embgrad[torch]'", optional=False),
        _need("torch", "transformers", "Hugging Face's models, embgrad.zoo.load_bert", "pip install 'embgrad[torch]'"),
    ),
    "tensorflow": (
        Need(
            "tensorflow",
            ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly"),
            "the framework",
            SUPPORTED["tensorflow"]["tensorflow-cpu"],
            "pip install 'embgrad[tensorflow]'",
        ),
        _need("tensorflow", "tf-keras", "Keras 2, for Hugging Face's models", "pip install tf-keras"),
        _need(
            "tensorflow",
            "transformers",
            "Hugging Face's models, embgrad.zoo.load_bert",
            "pip install 'transformers>=4.44,<5'",
        ),
        _need("tensorflow", "tensorflow-hub", "models of TF Hub", "pip install 'embgrad[hub]'"),
        Need(
            "tensorflow_text",
            ("tensorflow-text",),
            "TF Hub's preprocessing models",
            install="pip install --no-deps tensorflow-text, in the version of TensorFlow",
            optional=True,
        ),
    ),
    "gluon": (
        Need(
            "mxnet",
            ("mxnet",),
            "the framework",
            SUPPORTED["gluon"]["mxnet"],
            "pip install 'embgrad[mxnet]'",
            former=("mxnet-mkl", "mxnet-native"),
        ),
        _need("gluon", "numpy", "required by MXNet", "pip install 'numpy<2'", optional=False),
        _need("gluon", "gluonnlp", "gluonnlp's models, embgrad.zoo.load_bert", "pip install gluonnlp==0.10.0"),
    ),
    "jax": (
        _need("jax", "jax", "the framework", "pip install 'embgrad[jax]'", optional=False),
        _need("jax", "flax", "Flax's models, embgrad.zoo.load_bert", "pip install 'embgrad[jax]'"),
        Need("equinox", ("equinox",), "Equinox's models", install="pip install equinox", optional=True),
    ),
    "onnx": (
        _need("onnx", "onnxruntime", "the framework", "pip install 'embgrad[onnx]'", optional=False),
        _need("onnx", "onnx", "reads graphs", "pip install 'embgrad[onnx]'", optional=False),
    ),
    KERAS: (
        _need("keras", "keras", "the library", "pip install 'embgrad[keras]'", optional=False),
        _need("keras", "keras-hub", "keras-hub's models, embgrad.zoo.load_bert", "pip install 'embgrad[keras]'"),
    ),
}

#: The packages that embgrad itself, its command and `embgrad.ray` use.
CORE: Final = (
    _need("core", "numpy", "arrays", "pip install embgrad", optional=False),
    _need("core", "safetensors", "files", "pip install embgrad", optional=False),
    *(_need("cli", name, "the command embgrad", "pip install 'embgrad[cli]'") for name in SUPPORTED["cli"]),
    _need("ray", "ray", "embgrad.ray", "pip install 'embgrad[ray]'"),
)


def core_parts() -> tuple[Part, ...]:
    """Return the states of Python and of the installed packages that embgrad itself uses."""
    return (_python("core", "required by embgrad"), *(part for need in CORE if (part := _part(need)).version))


def examine(limit: float = LIMIT) -> list[Health]:
    """Test each backend except the reference, and Keras 3, in a separate process, so that a crash or a hang is only reported."""
    names = sorted({*list_backends(), KERAS} - {REFERENCE})
    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        return list(pool.map(lambda name: _health(name, limit), names))


def _health(name: str, limit: float) -> Health:
    backend = list_backends().get(name)  # None for Keras
    package, extra = (name, name) if backend is None else (backend.package, backend.extra)
    install = f"pip install 'embgrad[{extra}]'" if extra else f"pip install {package}"
    parts = _parts(name)
    if not _is_installed(package):
        return Health(name, error=f"{package} is not installed", install=install, parts=parts)
    outcome = _run_trial(name, limit)
    version = outcome["versions"].get(package) or _version((package,))[1]
    return Health(
        name,
        version,
        works=outcome["works"],
        error=outcome["error"],
        seconds=outcome["seconds"],
        install=install,
        parts=parts,
        classes=dict(outcome["classes"]),
    )


def _parts(name: str) -> tuple[Part, ...]:
    needs = list(NEEDS.get(name, ()))
    if any(need.module in ("tensorflow_hub", "gluonnlp") and _is_installed(need.module) for need in needs):
        needs.append(PKG_RESOURCES)
    parts = [_part(need) for need in needs]
    if name == "gluon" and (python := _python(name, "required by MXNet 1.9.1")).trouble:
        parts.append(python)
    if name == "tensorflow":
        parts += _keras_of(parts)
    if name == KERAS:
        parts.append(_choose())
    return tuple(parts)


def _part(need: Need) -> Part:
    name, version = (
        _version((*need.distributions, *need.former))
        if _is_installed(need.module) or need is PKG_RESOURCES
        else ("", "")
    )
    if not version:
        standing = Standing("not installed", mend=need.install)
    elif need.supported is None:
        standing = Standing()
    else:
        standing = need.supported.standing(version, name if name in need.distributions else "")
    return Part(need.distributions[0], need.what, version, **vars(standing), optional=need.optional)


def _python(group: str, what: str) -> Part:
    """Return the state of the Python version for embgrad or a framework."""
    version = platform.python_version()
    return Part("python", what, version, **vars(SUPPORTED[group]["python"].standing(version)))


def _keras_of(parts: Sequence[Part]) -> list[Part]:
    """Return the problems of Keras 2: a version unlike TensorFlow's, or `TF_USE_LEGACY_KERAS` not set."""
    versions = {part.name: part.version for part in parts}
    tensorflow, keras = versions.get("tensorflow", ""), versions.get("tf-keras", "")
    problems = []
    if tensorflow and keras and numbers(tensorflow)[:2] != numbers(keras)[:2]:
        release = ".".join(tensorflow.split(".")[:2])
        problems.append(
            Part(
                "tf-keras and tensorflow",
                "their versions must match",
                f"{keras}, {tensorflow}",
                "do not match",
                f"pip install 'tf-keras=={release}.*'",
            )
        )
    if keras and os.environ.get("TF_USE_LEGACY_KERAS") != "1":
        problems.append(
            Part(
                "TF_USE_LEGACY_KERAS",
                "makes TensorFlow use Keras 2, for Hugging Face's models; this command sets it itself",
                os.environ.get("TF_USE_LEGACY_KERAS", "not set"),
                "not 1",
                "os.environ['TF_USE_LEGACY_KERAS'] = '1' before TensorFlow is imported",
                optional=True,
            )
        )
    return problems


def _choose() -> Part:
    """Return Keras's choice of a backend, with a remark on what determined it."""
    choice = keras_choice()
    advice = "KERAS_BACKEND changes it"
    return Part("Keras's backend:", "the framework that computes", choice.name, note=choice.source, mend=advice)


def _run_trial(name: str, limit: float) -> dict[str, Any]:
    """Import the framework in a separate process; return the outcome as a dictionary."""
    default: dict[str, Any] = {"works": False, "error": "", "versions": {}, "classes": {}, "seconds": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        try:
            process = subprocess.run(
                # Pass this process's import path without the empty entry, which stands for the current folder.
                [sys.executable, "-c", _SCRIPT, json.dumps([folder for folder in sys.path if folder]), name, str(out)],
                env={"TF_USE_LEGACY_KERAS": "1", **os.environ} if _is_installed("tf_keras") else dict(os.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {**default, "seconds": limit, "error": f"it took longer than {limit:.0f} s; --timeout allows more"}
        try:
            return {**default, **json.loads(out.read_text(encoding="utf-8"))}
        except (OSError, ValueError):
            lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
            return {
                **default,
                "error": f"it {_describe_exit(process.returncode)}" + (f": {lines[-1][:300]}" if lines else ""),
            }


#: The program of the separate process.
_SCRIPT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from embgrad.doctor.trial import main; main(*sys.argv[2:4])"
)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was terminated by {signal.Signals(-code).name}"
    except ValueError:
        return f"was terminated by signal {-code}"


def _is_installed(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _version(distributions: Sequence[str]) -> tuple[str, str]:
    """Return the first of these names that is installed, and its version; two empty strings if none is."""
    for name in distributions:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "", ""
