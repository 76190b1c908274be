"""The pages on comparing runs and on streams run as they stand, and print what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from embgrad.cli.demo import minilm_folder

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def printed(request: pytest.FixtureRequest, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Run the snippets of a page in one namespace, with MiniLM's checkpoint as `folder`, and return what each prints."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / request.param).read_text(encoding="utf-8")
    names: dict[str, Any] = {"folder": minilm_folder()}
    printed = []
    for number, snippet in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)):
        exec(compile(snippet, f"{request.param}, snippet {number}", "exec"), names)
        printed.append(capsys.readouterr().out)
    return printed


@pytest.mark.parametrize("printed", ["comparing.md"], indirect=True)
def test_the_page_on_comparing(printed: list[str]) -> None:
    _, numbers_alone, with_a_model, parted, pinned = printed
    assert re.match(
        r"99\.\d+ % of the difference is a factor .* b took the mean over the batch of 2 examples", numbers_alone
    )
    assert "100 % of the difference is the activation: GELU by the tanh approximation in b and GELU by" in with_a_model
    assert "encoder.layer.0.intermediate activation" in parted
    assert "The values diverge at 'layer.0'" in parted
    assert "is the activation: GELU by the error function in a and GELU by the tanh approximation in b" in pinned
    assert re.search(r"the golden file was made with .*tensorflow \d.*, and these results with .*torch \d", pinned)


@pytest.mark.parametrize("printed", ["streaming.md"], indirect=True)
def test_the_page_on_streaming(printed: list[str]) -> None:
    longest, labels, agree, interrupted, total, tables = printed
    assert re.fullmatch(r"the longest gradient: \d+\.\d+\n", longest)
    assert labels == "[0, 1, 0, 1, 0, 1, 0, 1]\n"
    assert agree == "True\n"
    assert interrupted == "StreamFolder('run', 8 results of 60 examples, keep='all', complete)\n8\n"
    assert re.fullmatch(r"RowSparse\(\d\d of 30522 rows × 384, float32\)\n", total)
    assert re.fullmatch(r"\(32,\)\n\(32, 28\)\nRowSparse\(\d\d of 30522 rows × 384, float32\)\n", tables)
