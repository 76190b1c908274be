"""PyTorch's tensors in the digests of a stream, also those of dtypes that NumPy lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from embgrad.streaming.digest import UnreadableError, digest_of

#: By what they are, tensors that hold a number, and others of another one.
KINDS: dict[str, Callable[[int], Any]] = {
    "bfloat16": lambda n: torch.tensor([n], dtype=torch.bfloat16),
    "a number in bfloat16": lambda n: torch.tensor(n, dtype=torch.bfloat16),
    "float8": lambda n: torch.tensor([float(n)]).to(torch.float8_e4m3fn),
    "half complex numbers": lambda n: torch.tensor([complex(n)]).to(torch.complex32),
    "a conjugate view": lambda n: torch.tensor([1 + n * 1j]).conj(),
    "a negative view": lambda n: torch.tensor([1 + n * 1j]).conj().imag,
    "quantized": lambda n: torch.quantize_per_tensor(torch.tensor([float(n)]), 0.5, 0, torch.qint8),
    "a tensor in a dict": lambda n: {"a": torch.tensor([n], dtype=torch.bfloat16)},
}


@pytest.mark.filterwarnings("ignore")  # of PyTorch, on kinds that are not finished
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_tensors_are_told_by_their_values(make: Callable[[int], Any]) -> None:
    assert digest_of(make(1)) == digest_of(make(1))
    assert digest_of(make(1)) != digest_of(make(2))


REFUSED: dict[str, Callable[[], Any]] = {
    "sparse by coordinates": lambda: torch.eye(3).to_sparse(),
    "sparse by rows": lambda: torch.eye(3).to_sparse_csr(),
    "lengths in one tensor": lambda: torch.nested.nested_tensor([torch.tensor([1.0, 1.0]), torch.tensor([2.0])]),
    "without values": lambda: torch.empty(1, device="meta"),
    "a layer": torch.nn.ReLU,
    "a random generator": torch.Generator,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_is_no_plain_tensor_has_no_digest(make: Callable[[], Any]) -> None:
    made = make()
    with pytest.raises(UnreadableError) as caught:
        digest_of({"a": made})
    assert caught.value.value is made
