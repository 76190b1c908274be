"""Every Python block of the README runs as a reader would paste it, in order, and prints what the README shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, Snippet, difference, snippets

README, INDEX = "../README.md", "index.md"  # below docs
#: A line between the output of two blocks.
BOUNDARY = "-" * 30


def test_every_block_runs_in_order_in_a_fresh_process(tmp_path: Path) -> None:
    """The blocks become one script, without anything before them; no warning of embgrad's is printed."""
    blocks = snippets(README)
    script = tmp_path / "pasted.py"
    script.write_text(f"\nprint('{BOUNDARY}')\n".join(block.code for block in blocks), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path, env=as_of_a_reader(), capture_output=True, encoding="utf-8", timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "EmbgradWarning" not in ended.stderr
    printed = ended.stdout.split(f"{BOUNDARY}\n")
    assert len(printed) == len(blocks)
    for block, text in zip(blocks, printed, strict=True):
        assert (wrong := difference(block.printed or "", text)) is None, f"README.md, line {block.line + 1}: {wrong}"


def as_of_a_reader() -> dict[str, str]:
    """Return the environment without the variables that the tests set for TensorFlow and Keras."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "KERAS_", "EMBGRAD_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONIOENCODING": "utf-8"}


@pytest.fixture(scope="module")
def quick_start() -> dict[str, Any]:
    names: dict[str, Any] = {}
    execute(snippets(README)[0], names)
    return names


@pytest.mark.slow  # all blocks run above; what one needs changes with the text alone
@pytest.mark.parametrize("block", snippets(README)[1:], ids=lambda block: f"line {block.line + 1}")
def test_each_block_needs_the_quick_start_alone(block: Snippet, quick_start: dict[str, Any]) -> None:
    names = quick_start.copy()
    execute(block, names)
    if "classifier" in block.code:  # the call in each framework
        assert names["h"].shape == (2, 3, 16)
        assert names["h"].values.any()
        libraries = {"torch.": "torch", "keras.": "tensorflow", "mx.": "gluon"}
        assert [names["h"].provenance["backend"]] == [libraries[one] for one in libraries if one in block.code]


def execute(block: Snippet, names: dict[str, Any]) -> None:
    exec(compile(block.code, "README.md", "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", [README, INDEX])
def test_no_block_is_skipped_and_nothing_runs_that_is_not_shown(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert "<!--" not in text
    opened = list(fences(text))
    assert {*opened} <= {"python", "text", "console", "{toctree}"}
    assert opened.count("python") == len(snippets(page)) > 0
    assert opened.count("text") == sum(snippet.printed is not None for snippet in snippets(page))


def fences(text: str) -> Iterator[str]:
    """Yield the language of each fence, whatever its indentation."""
    inside = False
    for language in re.findall(r"^\s*(?:```|~~~)(.*)$", text, flags=re.MULTILINE):
        if not inside:
            yield language.strip()
        inside = not inside


def test_the_documentation_begins_with_the_same_quick_start() -> None:
    """So that its front page runs where the README does."""
    (own,) = snippets(INDEX)
    first = snippets(README)[0]
    assert (own.code, own.printed) == (first.code, first.printed)
