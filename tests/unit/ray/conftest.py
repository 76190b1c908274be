"""A local Ray with two CPUs that all tests share that need it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.ray.cluster import local_ray
from tests.unit.ray.models import VOCAB, WORDS, Observed


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    with local_ray():
        yield


@pytest.fixture
def items() -> Callable[..., list[dict[str, Any]]]:
    """Return a function that makes rows of ids of different lengths with a text, a label and a key."""

    def make(count: int, shortest: int = 2, longest: int = 9) -> list[dict[str, Any]]:
        random = np.random.default_rng(5)
        rows = []
        for number in range(count):
            words = random.integers(4, VOCAB, random.integers(shortest, longest + 1) - 2)
            ids = [2, *(int(item) for item in words), 3]
            text = " ".join(WORDS[item] for item in ids[1:-1])
            rows.append(
                {"key": number, "ids_": ids, "text": text, "label": int(random.integers(3)), "kept": f"k{number}"}
            )
        return rows

    return make


@pytest.fixture
def observed(tmp_path: Path) -> Callable[..., Observed]:
    def make(**options: Any) -> Observed:
        folder = tmp_path / "observed"
        folder.mkdir()
        return Observed(folder, **options)

    return make
