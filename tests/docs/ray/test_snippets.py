"""The pages on Ray run as they stand, on a local Ray with two CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.conftest import pages_here
from tests.docs.pages import needs
from tests.docs.test_snippets import expect_as_said
from tests.unit.ray.cluster import local_ray


@pytest.mark.parametrize("page", [page for page in pages_here() if "ray" in needs(page)])
def test_the_page_runs_and_prints_what_it_says(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import ray

    ray.shutdown()  # that of the tests in tests/unit/ray, where this process has run them: it began in another folder
    monkeypatch.chdir(tmp_path)  # before Ray starts: its processes begin in the same folder, from which paths are read
    with local_ray():
        expect_as_said(page)
