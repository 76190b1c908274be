"""Checks of ports of PyTorch models in other precisions, and with fewer layers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import embgrad

IDS = np.random.default_rng(0).integers(1, 60, (2, 14))
BATCH = embgrad.TokenBatch(IDS, np.ones_like(IDS))


@pytest.fixture(scope="module")
def bert() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    return BertModel(config).eval()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_precision_of_a_port_is_a_cause_by_itself(bert: BertModel, dtype: str) -> None:
    port = copy.deepcopy(bert).to(getattr(torch, dtype))
    report = embgrad.check_port(bert, port, BATCH)
    assert report.verdict == f"the port differs: a computes in float32 and b in {dtype}"
    assert (report.floor, report.first) == (dtype, report.causes[0].sites[0])
    assert report.causes[0].cause == "half-precision"
    assert f"pass floor={dtype!r} to accept that precision" in report.notes[-1]
    assert embgrad.check_port(bert, port, BATCH, floor=dtype).agrees
    assert embgrad.check_port(port, copy.deepcopy(port), BATCH).agrees
