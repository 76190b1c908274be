"""GPT-2 of Hugging Face and of keras-hub, against the tape's gradients with respect to one-hot inputs."""

from __future__ import annotations

import pytest

from tests.decoders.page import EXACT, recorded
from tests.decoders.tensorflow_models import MODELS, measure


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_tensorflows_own_and_padding_changes_nothing(name: str) -> None:
    cell = measure(name)
    assert cell.changed == ()
    assert max(cell.own, cell.one_hot, cell.right) < EXACT
    assert cell.warned
    assert cell.left > 0.01
    assert (cell.positions is None) is (not MODELS[name].positions)
    assert cell.positions is None or cell.positions < EXACT
    assert recorded()["tensorflow"]["cells"][name]["float32"]["error"] == ""
