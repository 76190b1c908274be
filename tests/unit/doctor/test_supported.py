"""The versions that embgrad is tested with: the documentation, pyproject.toml and tox.ini agree with one table."""

from __future__ import annotations

import configparser
import re
import sys
from typing import Any

import pytest

from embgrad.doctor.supported import SETUPTOOLS, SUPPORTED, Supported, numbers, table
from tests.docs.pages import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings

PYTHON = SUPPORTED["core"]["python"]
TORCH = Supported("torch", "2.6", "2.13")
MXNET = Supported("mxnet", "1.9.1", "1.9.1")

#: By group the environments of tox.ini that pin the oldest and the newest.
ENVIRONMENTS = {
    "core": ("core-oldest", "core-py313"),
    "cli": ("core-oldest", "core-py313"),
    "torch": ("torch-oldest", "torch-newest"),
    "tensorflow": ("tensorflow-oldest", "tensorflow-newest"),
    "gluon": ("mxnet-oldest", "mxnet-newest"),
    "jax": ("jax-oldest", "jax-newest"),
    "onnx": ("onnx-oldest", "onnx-newest"),
    "keras": ("tensorflow-oldest", "tensorflow-newest"),
    "ray": ("ray-oldest", "ray-newest"),
}
#: By group the extras of pyproject.toml that name its packages.
EXTRAS = {
    "cli": ("cli",),
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "hub"),
    "gluon": ("mxnet",),
    "jax": ("jax",),
    "onnx": ("onnx",),
    "keras": ("keras",),
    "ray": ("ray",),
}


@pytest.mark.parametrize(
    ("package", "version", "trouble", "note", "mend"),
    [
        (TORCH, "2.13.0+cpu", "", "", ""),
        (TORCH, "2.6", "", "", ""),
        (TORCH, "2.3.1", "older than 2.6, the oldest that embgrad is tested with", "", "pip install 'torch>=2.6'"),
        (TORCH, "2.14.1", "", "newer than 2.13, the newest that",
            "it may work; if it does not, pip install 'torch==2.13.*'"),
        (TORCH, "3.0.0a1", "", "newer than 2.13, the newest that embgrad is tested with", "it may work"),
        (MXNET, "1.8.0.post0", "older than 1.9.1, the oldest that embgrad is", "", "pip install 'mxnet==1.9.1'"),
        (Supported("numpy", "1.24", "1.26", "2", "it cannot"), "1.26.4", "", "", ""),
        (Supported("numpy", "1.24", "1.26", "2", "it cannot"), "2.0.0", "expected a version below 2: it cannot", "",
            "pip"),
        (Supported("numpy", "1.24", "1.26", "2", "it cannot"), "1.27.0", "", "newer than 1.26, the newest that",
            "it may work"),
        (SETUPTOOLS, "65.5.0", "", "", ""),
        (PYTHON, "3.9.18", "older than 3.10, ", "", "use Python 3.10 to 3.13"),
        (PYTHON, "3.14.0", "", "newer than 3.13, ", "it may work; if it does not, use Python 3.13"),
    ],
)  # fmt: skip
def test_a_version_is_judged(package: Supported, version: str, trouble: str, note: str, mend: str) -> None:
    actual = package.standing(version)
    for text, expected in ((actual.trouble, trouble), (actual.note, note), (actual.mend, mend)):
        assert text.startswith(expected)
        assert bool(text) == bool(expected)


def test_advice_names_the_installed_distribution() -> None:
    mend = SUPPORTED["tensorflow"]["tensorflow-cpu"].standing("2.15.1", "tensorflow").mend
    assert mend == "pip install 'tensorflow>=2.16'"


def test_the_installation_page_has_the_table() -> None:
    text = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    assert table() in text, "docs/installation.md has another table than python -m embgrad.doctor.supported prints"


def test_the_readme_names_the_same_pythons() -> None:
    assert f"Python {PYTHON.oldest} to {PYTHON.newest}" in (ROOT / "README.md").read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        actual: dict[str, Any] = tomllib.load(file)["project"]
    return actual


def bounds(requirements: list[str]) -> dict[str, str]:
    actual = {}
    for item in requirements:
        matched = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?(.*)", item)
        assert matched is not None
        actual[matched[1]] = matched[2]
    return actual


def test_the_requirements_of_the_project_are_those_of_the_table() -> None:
    declared = project()
    required = {"core": {**bounds(declared["dependencies"]), "python": declared["requires-python"]}}
    for group, extras in EXTRAS.items():
        required[group] = bounds([item for extra in extras for item in declared["optional-dependencies"][extra]])
    for group, packages in SUPPORTED.items():
        for name, package in packages.items():
            if (group, name) == ("gluon", "python"):
                continue  # which nothing demands
            assert required[group][name] == package.requirement(), f"{name}, for {group}"
    for group in ("tensorflow", "gluon"):  # which import pkg_resources and distutils
        assert required[group]["setuptools"] == SETUPTOOLS.requirement()


def test_the_classifiers_name_each_python() -> None:
    first, last = (int(bound.partition(".")[2]) for bound in (PYTHON.oldest, PYTHON.newest))
    reported = [re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", item) for item in project()["classifiers"]]
    assert [int(item[1]) for item in reported if item] == list(range(first, last + 1))


def pins(environment: str) -> dict[str, str]:
    read = configparser.ConfigParser(interpolation=None)
    read.read(ROOT / "tox.ini", encoding="utf-8")
    (section,) = (item for item in read.sections() if environment in named_by(item))
    factor = environment.rpartition("-")[2]
    actual = {}
    for key in ("base_python", "deps"):
        for line in read[section].get(key, read["testenv"].get(key, "")).splitlines():
            given, _, what = line.strip().rpartition(": ")
            pinned = re.fullmatch(r"([\w-]+)(?:\[\w+\])?==([\d.]+)|(python)([\d.]+)", what)
            if pinned and given in ("", factor):
                actual[pinned[1] or pinned[3]] = pinned[2] or pinned[4]
    return actual


def named_by(section: str) -> list[str]:
    stem, _, factors = section.removeprefix("testenv:").partition("{")
    return [stem + item for item in factors.rstrip("}").split(",")]


@pytest.mark.parametrize("group", SUPPORTED)
def test_environments_install_the_oldest_and_the_newest(group: str) -> None:
    oldest, newest = (pins(environment) for environment in ENVIRONMENTS[group])
    for name, package in SUPPORTED[group].items():
        for bound, pinned in ((package.oldest, oldest), (package.newest, newest)):
            assert numbers(pinned[name])[: len(numbers(bound))] == numbers(bound), f"{name} {bound}: {pinned}"


@pytest.mark.parametrize(
    ("version", "parts"),
    [("2.13.0+cpu", (2, 13, 0)), ("1.2.3.4", (1, 2, 3)), ("2.0rc1", (2, 0, 1)), ("3", (3,)), ("1.5+7", (1, 5))],
)
def test_a_version_has_at_most_three_numbers(version: str, parts: tuple[int, ...]) -> None:
    assert numbers(version) == parts
