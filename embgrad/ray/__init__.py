"""Gradients of a dataset on many machines, with Ray Data; needs the extra `ray`."""

from __future__ import annotations

from embgrad.errors import EmbgradError


class MissingPackageError(EmbgradError, ImportError):
    """A package of the extra `ray` is not installed, or does not work."""


try:
    import pyarrow  # noqa: F401
    import ray.data  # noqa: F401
except ImportError as error:
    raise MissingPackageError(
        f"embgrad.ray needs Ray Data, which cannot be imported ({error}): pip install 'embgrad[ray]'"
        + ("; or, with NumPy 1 as MXNet needs it, pip install 'pyarrow<26'" if "NumPy" in str(error) else "")
    ) from error

from embgrad.ray.run import Written, gradients, table, write  # noqa: E402
from embgrad.ray.settings import Options  # noqa: E402
from embgrad.ray.source import plain_errors  # noqa: E402

__all__ = ["MissingPackageError", "Options", "Written", "gradients", "plain_errors", "table", "write"]
