"""The gradients of a model, pinned: in PyTorch by a golden file, and in TensorFlow by the same one."""

from pathlib import Path

import pytest
from bert import write_checkpoint

import embgrad

BATCH = embgrad.TokenBatch(
    ids=[[1, 7, 12, 30, 9, 2], [1, 25, 7, 2, 0, 0]],
    mask=[[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]],
)
OBJECTIVE = embgrad.Logit([3, 17], output="pooled")
POINTS = ["word", "layer.-1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def test_pytorch(folder, embgrad_golden):
    model = embgrad.zoo.load_bert(folder, "torch")
    results = embgrad.gradients(model, BATCH, OBJECTIVE, at=POINTS)
    embgrad_golden(results, models=model)


def test_tensorflow_gives_the_same(folder):
    golden = embgrad.golden(Path(__file__).parent / "goldens" / "test_gradients" / "test_pytorch.safetensors")
    model = embgrad.zoo.load_bert(folder, "tensorflow")
    results = embgrad.gradients(model, BATCH, OBJECTIVE, at=POINTS)
    golden.check(results, models=model)
