"""The table of versions that embgrad is tested with, for `embgrad doctor`, the documentation and the tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["SETUPTOOLS", "SUPPORTED", "Standing", "Supported", "numbers", "table"]


@dataclass(frozen=True)
class Standing:
    """The assessment of an installed version."""

    trouble: str = ""
    note: str = ""
    mend: str = ""


@dataclass(frozen=True)
class Supported:
    """The versions of one package.

    Attributes:
        name: its name on PyPI; `python` is Python itself.
        oldest: the oldest version that passes all tests of its framework, and the bound of pyproject.toml; empty if there is
            no such bound.
        newest: the newest version that passes them, shortened to the digits that matter: 2.13 means every 2.13.
        below: the first version that does not work; empty if none is known.
        why: the problem from version `below` on.
    """

    name: str
    oldest: str
    newest: str
    below: str = ""
    why: str = ""

    def standing(self, version: str, name: str = "") -> Standing:
        """Return the assessment of an installed version.

        Args:
            name: the name on PyPI under which it is installed, if that differs from `self.name`.
        """
        installed = numbers(version)
        if installed < numbers(self.oldest):
            return Standing(
                f"older than {self.oldest}, the oldest that embgrad is tested with", mend=self._install(name)
            )
        if self.below and installed >= numbers(self.below):
            return Standing(f"expected a version below {self.below}: {self.why}", mend=self._install(name))
        newest = numbers(self.newest)
        if installed[: len(newest)] <= newest:
            return Standing()
        return Standing(
            note=f"newer than {self.newest}, the newest that embgrad is tested with",
            mend=f"it may work; if it does not, {self._newest(name)}",
        )

    def requirement(self) -> str:
        """Return the bounds in the syntax of pip: >=4.44,<5, or ==1.9.1 if there is only one version."""
        if self.oldest == self.newest:
            return f"=={self.oldest}"
        return ",".join(f"{sign}{bound}" for sign, bound in ((">=", self.oldest), ("<", self.below)) if bound)

    def _install(self, name: str) -> str:
        if self.name == "python":
            return f"use Python {self.oldest} to {self.newest}"
        return f"pip install '{name or self.name}{self.requirement()}'"

    def _newest(self, name: str) -> str:
        if self.name == "python":
            return f"use Python {self.newest}"
        return f"pip install '{name or self.name}=={self.newest}.*'"


def _by_name(*packages: Supported) -> Mapping[str, Supported]:
    return {package.name: package for package in packages}


#: The packages by name, the framework first, for each that needs them: embgrad itself, its command, a backend, embgrad.ray.
SUPPORTED: Final[Mapping[str, Mapping[str, Supported]]] = {
    "core": _by_name(
        Supported("python", "3.10", "3.13"),
        Supported("numpy", "1.24", "2.5"),
        Supported("safetensors", "0.4.3", "0.8"),
    ),
    "cli": _by_name(
        Supported("typer", "0.16", "0.29"),
        Supported("rich", "13", "15"),
        Supported("tokenizers", "0.19", "0.23"),
    ),
    "torch": _by_name(Supported("torch", "2.6", "2.13"), Supported("transformers", "4.44", "5.23")),
    "tensorflow": _by_name(
        Supported("tensorflow-cpu", "2.16", "2.21"),
        Supported("tf-keras", "2.16", "2.21"),
        Supported("tensorflow-hub", "0.16.0", "0.16"),
        Supported("transformers", "4.44", "4.57", "5", "transformers 5 has no TensorFlow classes any more"),
    ),
    "gluon": _by_name(
        Supported("mxnet", "1.9.1", "1.9.1"),
        Supported("gluonnlp", "0.10.0", "0.10.0"),
        Supported(
            "numpy",
            "1.24",
            "1.26",
            "2",
            "while it is imported, MXNet reads names that NumPy 2.0 removed, np.PZERO the first of them",
        ),
        Supported("python", "3.10", "3.12", "3.13", "no NumPy below 2, which MXNet needs, has a wheel for Python 3.13"),
    ),
    "jax": _by_name(Supported("jax", "0.6.2", "0.12"), Supported("flax", "0.11.2", "0.12")),
    "onnx": _by_name(Supported("onnxruntime", "1.22", "1.32"), Supported("onnx", "1.18", "1.23")),
    "keras": _by_name(Supported("keras", "3.8", "3.15"), Supported("keras-hub", "0.16.1", "0.32")),
    "ray": _by_name(Supported("ray", "2.55", "2.60")),
}

#: The bound on setuptools, which tensorflow-hub and gluonnlp need for pkg_resources.
SETUPTOOLS: Final = Supported("setuptools", "", "80", "81", "it has no pkg_resources any more")

#: The rows of the table: each group of packages and its title.
_ROWS: Final[Mapping[str, str]] = {
    "core": "embgrad itself",
    "cli": "the command `embgrad`",
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "gluon": "MXNet Gluon",
    "jax": "JAX",
    "onnx": "ONNX, values only",
    "keras": "Keras 3, on TensorFlow",
    "ray": "embgrad.ray",
}


def table() -> str:
    """Return the table as Markdown, for docs/installation.md."""
    lines = ["| | oldest tested | newest tested |", "|---|---|---|"]
    for group, title in _ROWS.items():
        packages = SUPPORTED[group].values()
        labels = [each.name.capitalize() if each.name in ("python", "keras") else each.name for each in packages]
        oldest = ", ".join(f"{label} {each.oldest}" for label, each in zip(labels, packages, strict=True))
        newest = ", ".join(f"{label} {each.newest}" for label, each in zip(labels, packages, strict=True))
        lines.append(f"| {title} | {oldest} | {newest} |")
    return "\n".join(lines)


def numbers(version: str) -> tuple[int, ...]:
    """Return the version as a tuple of at most three numbers, for comparisons: (2, 13, 0) for 2.13.0+cpu."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])[:3])


if __name__ == "__main__":
    print(table())
