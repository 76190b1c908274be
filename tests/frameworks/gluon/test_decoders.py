"""GPT-2 in Gluon, against MXNet's gradients with respect to one-hot inputs."""

from __future__ import annotations

import pytest

from tests.decoders.gluon_models import MODELS, measure
from tests.decoders.page import EXACT, recorded


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_mxnets_own_and_padding_on_the_right_changes_nothing(name: str) -> None:
    cell = measure(name)
    assert cell.changed == ()
    assert max(cell.own, cell.one_hot, cell.right) < EXACT
    assert cell.left > 0.01  # it takes no mask
    assert recorded()["gluon"]["cells"][name]["float32"]["error"] == ""
