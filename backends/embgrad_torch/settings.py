"""For the modules of kept traces, until they are made anew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import torch

from embgrad_torch.state import Shared

__all__ = ["operands_kept"]


@contextlib.contextmanager
def _keeping() -> Iterator[None]:
    from torch._inductor import config  # which takes long to import

    functorch = torch._functorch.config
    donated = (
        functorch.patch(donated_buffer=False) if hasattr(functorch, "donated_buffer") else contextlib.nullcontext()
    )
    with donated, config.patch(inplace_buffers=False):
        yield


#: Compiled backward passes leave their operands to the next one. Those do that are compiled, with the forward pass, while this
#: is in force: at the backward pass alone it would but silence what tells that the operands are gone. The second setting is
#: part of what PyTorch keeps compiled code under, which the first is not.
operands_kept: Final = Shared(_keeping)
