"""The private names on which the backend relies exist; a failure names PyTorch's version. All other tests show what they do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tests.frameworks.torch.private_names import PRIVATE_NAMES
from tests.unit.backend_files import private_names


def test_the_list_is_complete() -> None:
    assert sorted(PRIVATE_NAMES) == sorted(private_names("embgrad_torch"))


def holders() -> list[Any]:
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    function = torch.compile(torch.sin, backend="eager")
    tensor = torch.ones(2, requires_grad=True)
    product = tensor * 2
    exported = torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)).module()
    product.register_hook(lambda gradient: None)
    tensor.register_post_accumulate_grad_hook(lambda leaf: None)
    names = "torch torch._C torch.autograd torch.autograd.Variable torch.nn.modules.module torch.overrides torch.utils"
    names += " torch.utils.checkpoint torch._dynamo.eval_frame"
    modules = [eval(name, {"torch": torch}) for name in names.split()]
    return [*modules, compiled, function, tensor, product.grad_fn, nn.Linear(2, 2), parametrize, exported.graph]


@pytest.mark.parametrize("name", [name for name in PRIVATE_NAMES if name != "_getframe"])
def test_a_private_name_exists(name: str) -> None:
    own = name.rpartition(".")[2]
    assert any(hasattr(holder, own) for holder in [*holders(), torch._C._dynamo]), (
        f"PyTorch {torch.__version__} has no {name} any more: {PRIVATE_NAMES[name]}"
    )
