"""The README's snippets run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import embgrad
from embgrad.demo import minilm_folder

README = Path(__file__).parents[2] / "README.md"


def snippets() -> list[str]:
    section = README.read_text(encoding="utf-8").split("## The same call")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)


def test_there_is_one_for_each_framework_and_one_for_bert() -> None:
    for snippet, text in zip(snippets(), ("torch.nn", "keras.layers", "mx.gluon", "load_bert"), strict=True):
        assert text in snippet


@pytest.mark.parametrize("number", range(4))
def test_snippet_runs(number: int) -> None:
    names: dict[str, Any] = {"folder": minilm_folder()}
    exec(compile(snippets()[number], str(README), "exec"), names)
    if number < 3:
        result = names["g"]
        assert isinstance(result, embgrad.EmbeddingGradients)
        assert result.shape == (2, 3, 16)
        assert result.values.any()
    else:
        assert embgrad.compare(names["a"], names["b"]).figures.relative_l2 < 5e-6
