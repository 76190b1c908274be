"""`compile=True`: a model that writes into memory which several tensors share gives what it gives without a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import embgrad
from tests.torch.kept_traces import PROJECTION, Net, agree, falls_back

pytestmark = pytest.mark.usefixtures("one_by_one")

#: Ids without padding, and with it.
FULL = np.array([[5, 2, 9, 4, 1], [3, 8, 7, 6, 10], [6, 10, 11, 2, 2]])
PADDED = np.array([[5, 2, 9, 0, 0], [3, 8, 7, 6, 10], [6, 10, 11, 0, 2]])


class Padding(Net):
    """Writes at padding, of which the batch that a trace is made with may have none."""

    def __init__(self, write: Any) -> None:
        super().__init__()
        self.write = write

    def forward(self, input_ids: Any) -> Any:
        bent = self.body(self.rows(input_ids))
        bent = bent + bent.mean(1, keepdim=True)
        bent = self.write(bent, (input_ids == 0)[..., None])
        return self.outer(torch.tanh(bent)).mean(1)


def _by_data(bent: Any, pad: Any) -> Any:
    bent.data.masked_fill_(pad, 0.0)
    return bent


def _by_detach(bent: Any, pad: Any) -> Any:
    bent.detach()[:, 1:].masked_fill_(pad[:, 1:], 0.0)
    return bent


def _other_memory(bent: Any, pad: Any) -> Any:
    bent.data = bent.data * ~pad
    return bent


def _by_a_view(bent: Any, pad: Any) -> Any:
    with torch.no_grad():
        bent[:, -1].mul_(~pad[:, -1])
    return bent


def _by_setting_entries(bent: Any, pad: Any) -> Any:
    with torch.no_grad():
        bent[pad[..., 0]] = 0.0
    return bent


def _under_inference_mode(bent: Any, pad: Any) -> Any:
    with torch.inference_mode():
        bent.masked_fill_(pad, 0.0)
    return bent


def _by_copying(bent: Any, pad: Any) -> Any:
    copy = torch.zeros_like(bent)
    with torch.no_grad():
        copy.copy_(bent)
    return bent + copy * ~pad


def _below_what_was_detached(bent: Any, pad: Any) -> Any:
    fixed = bent.detach()
    bent = bent.masked_fill_(pad, 0.0)
    return bent + fixed


WRITES = {
    _by_data: "writes into memory that a tensor shares",
    _by_detach: "writes into memory that a tensor shares",
    _other_memory: "gives a tensor other memory",
    _by_a_view: "writes into memory that a tensor shares",
    _by_setting_entries: "writes into a tensor in place where gradients are switched off",
    _under_inference_mode: "writes into a tensor in place where gradients are switched off",
    _by_copying: "writes into a tensor in place where gradients are switched off",
    _below_what_was_detached: "writes into memory that a tensor shares",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("write", "why"), WRITES.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_writes_that_would_be_lost(write: Any, why: str) -> None:
    model = Padding(write)
    falls_back(model, why, FULL)
    falls_back(model, why, PADDED)


def test_outputs_that_share_memory() -> None:
    class Returning(Net):
        def forward(self, input_ids: Any) -> Any:
            bent = super().forward(input_ids)
            fixed = bent.detach()
            bent.mul_(2)
            return {"logits": bent, "fixed": fixed}

    falls_back(
        Returning(), "writes into memory", objective=lambda out: out["logits"][:, 0] * out["fixed"][:, 1], batch=FULL
    )


def _into_the_values_alone(bent: Any, pad: Any) -> Any:
    fixed = (bent * 2).detach()
    fixed.masked_fill_(pad, 0.0)
    return bent * fixed


def _into_a_copy(bent: Any, pad: Any) -> Any:
    fixed = bent.detach().clone()
    fixed[pad[..., 0]] = 0.0
    bent.mul_(2)
    return bent * fixed


def _into_what_was_computed(bent: Any, pad: Any) -> Any:
    with torch.no_grad():
        fixed = bent * 2
        fixed.masked_fill_(pad, 0.0)
        fixed[:, 0] += 1
    return bent * fixed


@pytest.mark.parametrize("write", [_into_the_values_alone, _into_a_copy, _into_what_was_computed])
def test_writes_that_others_do_not_see(write: Any) -> None:
    model = Padding(write)
    agree(model, FULL)
    agree(model, PADDED)
    assert embgrad.gradients(model, FULL, PROJECTION, compile=True).provenance["compiled"]
