"""The check that Ray Data is installed, made before any other module of this package imports it."""

from __future__ import annotations

from embgrad.errors import EmbgradError

__all__ = ["MissingPackageError", "expect_ray"]


class MissingPackageError(EmbgradError, ImportError):
    """A package of the extra `ray` is not installed, or does not work."""


def expect_ray() -> None:
    """Check that Ray Data can be imported.

    Raises:
        MissingPackageError: Ray or pyarrow cannot be imported.
    """
    try:
        import pyarrow  # noqa: F401
        import ray.data  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"embgrad.ray needs Ray Data, which cannot be imported ({error}): pip install 'embgrad[ray]'"
            + ("; or, with NumPy 1 as MXNet needs it, pip install 'pyarrow<26'" if "NumPy" in str(error) else "")
        ) from error
