"""A local Ray with two CPUs, for the tests here and for `python -m tests.unit.ray.demo`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

# Ray reads both as it is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

ROOT = Path(__file__).parents[3]


@contextmanager
def local_ray(logging_level: int = logging.ERROR) -> Iterator[None]:
    """Start Ray with two CPUs, whose actors can import `tests.unit.ray.models`, and shut it down at the end."""
    import ray
    import ray.data

    # An environment for the actors alone would leave Ray's waiting processes unused, and each actor would start one of its own.
    # Processes of Ray have the environment as it is when Ray starts; the tests that follow in this one must not have it.
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    without_tensorflow = {"PYTHONPATH": path, "USE_TF": "0"}  # which transformers would import in each of them
    try:
        with patch.dict(os.environ, without_tensorflow):
            ray.init(
                address="local",
                num_cpus=2,
                object_store_memory=200_000_000,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging_level,
            )
        logging.getLogger("ray.data").setLevel(logging_level)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield
    finally:
        ray.shutdown()
