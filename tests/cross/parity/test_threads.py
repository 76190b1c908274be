"""What importing one framework does to another."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import numpy as np
if {torch_first}:
    import torch
    before = torch.get_num_threads()
import embgrad
from embgrad_gluon.importing import import_mxnet
mx = import_mxnet()
import torch
if not {torch_first}:
    before = 2
net = mx.gluon.nn.Embedding(5, 2)
net.initialize()
embgrad.gradients(net, np.array([[1, 2]]), embgrad.Sum())
print(before, torch.get_num_threads())
"""


@pytest.mark.parametrize("torch_first", [True, False])
def test_pytorch_keeps_its_threads_when_gluon_is_used(torch_first: bool) -> None:
    """MXNet's import sets OpenMP, and with it PyTorch imported before or after, to one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE.format(torch_first=torch_first)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "2"]
