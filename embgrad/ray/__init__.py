"""Gradients of a dataset on many machines, with Ray Data; needs the extra `ray`."""

from __future__ import annotations

from embgrad.ray.imports import MissingPackageError, expect_ray

expect_ray()

from embgrad.ray.failures import plain_errors  # noqa: E402
from embgrad.ray.run import Written, gradients, table, write  # noqa: E402
from embgrad.ray.settings import Options  # noqa: E402

__all__ = ["MissingPackageError", "Options", "Written", "gradients", "plain_errors", "table", "write"]
