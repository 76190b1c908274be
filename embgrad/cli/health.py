"""What is installed for each framework, what of it goes together, and what it takes to mend the rest."""

from __future__ import annotations

import importlib.util
import json
import os
import re
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

from embgrad.registry import list_backends

__all__ = ["Health", "Part", "examined"]

#: How long a framework may take to be imported and give one gradient, in seconds.
LIMIT: Final = 120.0

#: What is no framework of the user's.
OWN: Final = "reference"


@dataclass(frozen=True)
class Need:
    """A package that a backend uses.

    Attributes:
        module: what is imported.
        distributions: what pip calls it, in any of its forms.
        what: what it is for.
        least: the oldest version that works, as numbers.
        below: the first version that does not.
        mend: what to do where it is missing or of a wrong version.
        optional: it can be done without.
    """

    module: str
    distributions: tuple[str, ...]
    what: str
    least: tuple[int, ...] = ()
    below: tuple[int, ...] = ()
    mend: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Part:
    """What was found of a need: its version (empty where it is missing), and what is wrong with it."""

    name: str
    what: str
    version: str
    trouble: str = ""
    mend: str = ""
    optional: bool = False


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


SETUPTOOLS: Final = Need(
    "pkg_resources",
    ("setuptools",),
    "read by packages of 2022, dropped by setuptools 81",
    below=(81,),
    mend="pip install 'setuptools<81'",
)

#: By backend the framework, and what else it uses.
NEEDS: Final[dict[str, tuple[Need, ...]]] = {
    "torch": (
        Need("torch", ("torch",), "the framework", least=(2, 4), mend="pip install 'embgrad[torch]'"),
        Need(
            "transformers",
            ("transformers",),
            "Hugging Face's models, embgrad.load_bert",
            least=(4, 44),
            mend="pip install 'embgrad[torch]'",
            optional=True,
        ),
    ),
    "tensorflow": (
        Need(
            "tensorflow",
            ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly"),
            "the framework",
            least=(2, 16),
            mend="pip install 'embgrad[tensorflow]'",
        ),
        Need(
            "tf_keras", ("tf-keras",), "Keras 2, for Hugging Face's models", mend="pip install tf-keras", optional=True
        ),
        Need(
            "transformers",
            ("transformers",),
            "Hugging Face's models, embgrad.load_bert; version 5 has no TensorFlow classes",
            least=(4, 44),
            below=(5,),
            mend="pip install 'transformers>=4.44,<5'",
            optional=True,
        ),
        Need(
            "tensorflow_hub", ("tensorflow-hub",), "models of TF Hub", mend="pip install 'embgrad[hub]'", optional=True
        ),
        Need(
            "tensorflow_text",
            ("tensorflow-text",),
            "TF Hub's preprocessing models",
            mend="pip install --no-deps tensorflow-text, of TensorFlow's version",
            optional=True,
        ),
    ),
    "gluon": (
        Need("mxnet", ("mxnet", "mxnet-mkl", "mxnet-native"), "the framework", mend="pip install 'embgrad[mxnet]'"),
        Need("numpy", ("numpy",), "MXNet 1.9.1 is of NumPy 1", below=(2,), mend="pip install 'numpy<2'"),
        Need(
            "gluonnlp",
            ("gluonnlp",),
            "gluonnlp's models, embgrad.load_bert",
            mend="pip install gluonnlp==0.10.0",
            optional=True,
        ),
    ),
}


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
    version = tried["versions"].get(backend.package) or _version((backend.package,))
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
        needs.append(SETUPTOOLS)
    parts = [_part(need) for need in needs]
    if name == "gluon" and sys.version_info >= (3, 12):
        version = ".".join(map(str, sys.version_info[:3]))
        parts.append(Part("python", "MXNet 1.9.1 is of Python up to 3.11", version, "too new", "use Python 3.11"))
    if name == "tensorflow":
        parts += _keras_of(parts)
    return tuple(parts)


def _part(need: Need) -> Part:
    version = _version(need.distributions) if _found(need.module) else ""
    trouble = ""
    if not version:
        trouble = "not installed"
        if need.module == SETUPTOOLS.module and (own := _version(need.distributions)):
            version, trouble = own, "has no pkg_resources"
    elif need.least and _numbers(version) < need.least:
        trouble = f"too old, expected {'.'.join(map(str, need.least))} or later"
    elif need.below and _numbers(version) >= need.below:
        trouble = f"too new, expected a version below {'.'.join(map(str, need.below))}"
    return Part(need.distributions[0], need.what, version, trouble, need.mend if trouble else "", need.optional)


def _keras_of(parts: Sequence[Part]) -> list[Part]:
    """Whether Keras 2 is TensorFlow's own version, and whether it is asked for."""
    versions = {part.name: part.version for part in parts}
    ours, keras = versions.get("tensorflow", ""), versions.get("tf-keras", "")
    found = []
    if ours and keras and _numbers(ours)[:2] != _numbers(keras)[:2]:
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


def _version(distributions: Sequence[str]) -> str:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", version.partition("+")[0])[:3])
