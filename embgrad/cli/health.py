"""What is installed for each framework, what of it goes together, and what it takes to mend the rest."""

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
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from embgrad.backend.registry import list_backends
from embgrad.cli.supported import SETUPTOOLS, SUPPORTED, Standing, Supported, numbers

__all__ = ["Health", "Part", "core_parts", "examined"]

#: How long a framework may take to be imported and give one gradient, in seconds.
LIMIT: Final = 120.0

#: What is no framework of the user's.
OWN: Final = "reference"


@dataclass(frozen=True)
class Need:
    """A package that a backend uses.

    Attributes:
        module: what is imported.
        distributions: what pip calls it, in any of its forms, which have the same versions.
        what: what it is for.
        supported: the versions that it is tested in.
        install: what to do where it is missing.
        optional: it can be done without.
        former: names of pip's under which older versions are.
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
    """What was found of a need.

    Attributes:
        name: what pip calls it.
        what: what it is for.
        version: empty where it is missing.
        trouble: what is wrong with it; empty where nothing is.
        mend: what to do where there is trouble, or a note.
        optional: it can be done without.
        note: what is to be known of it where nothing is wrong, as far as is known: embgrad was never tested with it.
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
    """How one backend is.

    Attributes:
        name: the backend's.
        version: the framework's, empty where it is not installed.
        works: whether a gradient came out right; of a third party's backend whether its framework can be imported.
        tried: whether a gradient was taken.
        error: why not.
        seconds: how long that took, the import included.
        install: what installs it.
        parts: what else it uses.
        classes: what `embgrad.load_bert` builds, by name why it cannot be imported; an empty string where it can.
    """

    name: str
    version: str = ""
    works: bool = False
    tried: bool = False
    error: str = ""
    seconds: float = 0.0
    install: str = ""
    parts: tuple[Part, ...] = ()
    classes: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


#: What packages of 2022 need besides, which pip has no way to know of.
PKG_RESOURCES: Final = Need(
    "pkg_resources", ("setuptools",), "tensorflow-hub and gluonnlp import it", SETUPTOOLS, "pip install 'setuptools<81'"
)


def _need(group: str, name: str, what: str, install: str = "", *, optional: bool = True) -> Need:
    """A need whose module is called as its distribution is."""
    return Need(name.replace("-", "_"), (name,), what, SUPPORTED[group][name], install, optional)


#: By backend the framework, and what else it uses.
NEEDS: Final[dict[str, tuple[Need, ...]]] = {
    "torch": (
        _need("torch", "torch", "the framework", "pip install 'embgrad[torch]'", optional=False),
        _need("torch", "transformers", "Hugging Face's models, embgrad.load_bert", "pip install 'embgrad[torch]'"),
    ),
    "tensorflow": (
        Need(
            "tensorflow",
            ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly"),
            "the framework",
            SUPPORTED["tensorflow"]["tensorflow-cpu"],
            "pip install 'embgrad[tensorflow]'",
        ),
        _need("tensorflow", "keras", "Keras 3", "pip install keras"),
        _need("tensorflow", "tf-keras", "Keras 2, for Hugging Face's models", "pip install tf-keras"),
        _need(
            "tensorflow",
            "transformers",
            "Hugging Face's models, embgrad.load_bert",
            "pip install 'transformers>=4.44,<5'",
        ),
        _need("tensorflow", "tensorflow-hub", "models of TF Hub", "pip install 'embgrad[hub]'"),
        Need(
            "tensorflow_text",
            ("tensorflow-text",),
            "TF Hub's preprocessing models",
            install="pip install --no-deps tensorflow-text, of TensorFlow's version",
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
        _need("gluon", "numpy", "MXNet is written for NumPy 1", "pip install 'numpy<2'", optional=False),
        _need("gluon", "gluonnlp", "gluonnlp's models, embgrad.load_bert", "pip install gluonnlp==0.10.0"),
    ),
}

#: What embgrad itself and its command use, and embgrad.ray where it is there.
CORE: Final = (
    _need("core", "numpy", "arrays", "pip install embgrad", optional=False),
    _need("core", "safetensors", "files", "pip install embgrad", optional=False),
    *(_need("cli", name, "the command embgrad", "pip install 'embgrad[cli]'") for name in SUPPORTED["cli"]),
    _need("ray", "ray", "embgrad.ray", "pip install 'embgrad[ray]'"),
)


def core_parts() -> tuple[Part, ...]:
    """What embgrad itself uses, of what is there, and Python."""
    return (_python("core", "which embgrad is written for"), *(one for need in CORE if (one := _part(need)).version))


def examined(limit: float = LIMIT) -> list[Health]:
    """Each backend but the reference, tried in a process of its own, so that a crash or a hang is only told of.

    Args:
        limit: how many seconds each may take.
    """
    names = sorted(name for name in list_backends() if name != OWN)
    with ThreadPoolExecutor(max_workers=max(len(names), 1)) as pool:
        return list(pool.map(lambda name: _health(name, limit), names))


def _health(name: str, limit: float) -> Health:
    backend = list_backends()[name]
    install = f"pip install 'embgrad[{backend.extra}]'" if backend.extra else f"pip install {backend.package}"
    parts = _parts(name)
    if not _found(backend.package):
        return Health(name, error=f"{backend.package} is not installed", install=install, parts=parts)
    tried = _tried(name, limit)
    version = tried["versions"].get(backend.package) or _version((backend.package,))[1]
    return Health(
        name,
        version,
        works=tried["works"],
        tried=tried["tried"],
        error=tried["error"],
        seconds=tried["seconds"],
        install=install,
        parts=parts,
        classes=dict(tried["classes"]),
    )


def _parts(name: str) -> tuple[Part, ...]:
    needs = list(NEEDS.get(name, ()))
    if any(need.module in ("tensorflow_hub", "gluonnlp") and _found(need.module) for need in needs):
        needs.append(PKG_RESOURCES)
    parts = [_part(need) for need in needs]
    if name == "gluon" and (python := _python(name, "which MXNet 1.9.1 runs on")).trouble:
        parts.append(python)
    if name == "tensorflow":
        parts += _keras_of(parts)
    return tuple(parts)


def _part(need: Need) -> Part:
    name, version = (
        _version((*need.distributions, *need.former)) if _found(need.module) or need is PKG_RESOURCES else ("", "")
    )
    if not version:
        standing = Standing("not installed", mend=need.install)
    elif need.supported is None:
        standing = Standing()
    else:
        standing = need.supported.standing(version, name if name in need.distributions else "")
    trouble, note, mend = standing.trouble, standing.note, standing.mend
    return Part(need.distributions[0], need.what, version, trouble, mend, need.optional, note)


def _python(group: str, what: str) -> Part:
    """Python itself, as embgrad or a framework needs it."""
    version = platform.python_version()
    standing = SUPPORTED[group]["python"].standing(version)
    return Part("python", what, version, standing.trouble, standing.mend, note=standing.note)


def _keras_of(parts: Sequence[Part]) -> list[Part]:
    """Whether Keras 2 is TensorFlow's own version, and whether it is asked for."""
    versions = {part.name: part.version for part in parts}
    ours, keras = versions.get("tensorflow", ""), versions.get("tf-keras", "")
    found = []
    if ours and keras and numbers(ours)[:2] != numbers(keras)[:2]:
        wanted = ".".join(ours.split(".")[:2])
        found.append(
            Part(
                "tf-keras and tensorflow",
                "of one version",
                f"{keras}, {ours}",
                "do not go together",
                f"pip install 'tf-keras=={wanted}.*'",
            )
        )
    if keras and os.environ.get("TF_USE_LEGACY_KERAS") != "1":
        found.append(
            Part(
                "TF_USE_LEGACY_KERAS",
                "tells TensorFlow to use Keras 2, for Hugging Face's models; this command says it by itself",
                os.environ.get("TF_USE_LEGACY_KERAS", "not set"),
                "not 1",
                "os.environ['TF_USE_LEGACY_KERAS'] = '1' before TensorFlow is imported",
                optional=True,
            )
        )
    return found


def _tried(name: str, limit: float) -> dict[str, Any]:
    """What came of a gradient in a process of its own."""
    nothing: dict[str, Any] = {
        "works": False,
        "tried": False,
        "error": "",
        "versions": {},
        "classes": {},
        "seconds": 0.0,
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        try:
            done = subprocess.run(
                # The process's own path, and not that of the folder it happens to be in.
                [sys.executable, "-c", _SCRIPT, json.dumps([one for one in sys.path if one]), name, str(out)],
                env={"TF_USE_LEGACY_KERAS": "1", **os.environ} if _found("tf_keras") else dict(os.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {**nothing, "seconds": limit, "error": f"it took longer than {limit:.0f} s; --timeout allows more"}
        try:
            return {**nothing, **json.loads(out.read_text(encoding="utf-8"))}
        except (OSError, ValueError):
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            return {**nothing, "error": f"it {_end(done.returncode)}" + (f": {said[-1][:300]}" if said else "")}


_SCRIPT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from embgrad.cli.trial import main; main(*sys.argv[2:4])"
)


def _end(code: int) -> str:
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _found(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _version(distributions: Sequence[str]) -> tuple[str, str]:
    """The first of these names under which something is installed, and its version; empty where none is."""
    for name in distributions:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "", ""
