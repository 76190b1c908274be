"""Import MXNet with current versions of NumPy and the other frameworks, and leave both unchanged."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from embgrad.errors import BackendError
from embgrad.toolkit import process_lock

__all__ = ["import_gluonnlp", "import_mxnet"]


def import_mxnet() -> Any:
    """Return the module `mxnet`, imported unless the user has imported it already."""
    return _import("mxnet")


def import_gluonnlp() -> Any:
    """Return the module `gluonnlp`, which imports `mxnet`."""
    import_mxnet()
    return _import("gluonnlp")


def _import(name: str) -> Any:
    if name not in sys.modules:
        _expect_numpy_1()
        with process_lock, _numpy_bool(), _preserve_thread_counts(), _explain_missing_setuptools(name):
            importlib.import_module(name)
    return sys.modules[name]


def _expect_numpy_1() -> None:
    """Refuse NumPy 2, which lacks some ten names that MXNet reads while it is imported, first np.PZERO."""
    if int(np.__version__.partition(".")[0]) > 1:
        raise BackendError(
            f"MXNet cannot be imported with NumPy {np.__version__}, which lacks np.PZERO and other names that it reads. "
            "Run pip install 'numpy>=1.24,<2', and restart Python"
        )


@contextlib.contextmanager
def _explain_missing_setuptools(name: str) -> Iterator[None]:
    """Explain the failed import of a module that Python or setuptools once had, and that MXNet and gluonnlp import."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("distutils", "pkg_resources"):
            raise
        raise BackendError(
            f"{name} cannot be imported without {error.name}, which Python 3.12 and setuptools 81 have removed. "
            "Run pip install 'setuptools<81', and restart Python"
        ) from error


@contextlib.contextmanager
def _numpy_bool() -> Iterator[None]:
    """Give NumPy 1.24 to 1.26 during the import the name `numpy.bool`, which MXNet 1.9 reads."""
    if "bool" in vars(np):
        yield
        return
    vars(np)["bool"] = bool
    try:
        yield
    finally:
        del vars(np)["bool"]


@contextlib.contextmanager
def _preserve_thread_counts() -> Iterator[None]:
    """Restore the number of OpenMP's threads, which MXNet's import sets to 1, for PyTorch too."""
    openmp = _openmp()
    torch = sys.modules.get("torch")
    before = openmp.omp_get_max_threads() if openmp is not None else 0
    torch_before = torch.get_num_threads() if torch is not None else 0
    try:
        yield
    finally:
        if openmp is not None:
            openmp.omp_set_num_threads(before)
        if torch is not None and torch.get_num_threads() != torch_before:
            torch.set_num_threads(torch_before)


def _openmp() -> Any:
    """Return GNU's OpenMP, which MXNet and PyTorch share on Linux; None elsewhere."""
    try:
        return ctypes.CDLL("libgomp.so.1")
    except OSError:
        return None
