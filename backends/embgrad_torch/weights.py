"""The weights of a model: its parameters and floating buffers, each with a way to read it and to write it in place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from embgrad.arrays import owned
from embgrad.backend import Weight
from embgrad.calling import as_parts
from embgrad.checkpoint import bert_names
from embgrad.locks import held
from embgrad_torch.inputs import dtype_name
from embgrad_torch.walk import Structure, place_of, spelled, walk

__all__ = ["alone", "putter", "weights"]


def weights(model: Any) -> list[Weight]:
    """The parameters and the floating buffers by attribute path, each once, in the model's order."""
    walked = walk(as_parts(model))
    canonical = _canonical(walked)
    seen: set[Any] = set()
    found = []
    for path, module in walked:
        owner = spelled(path)
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or not _has_values(tensor) or place_of(tensor) in seen:
                continue
            seen.add(place_of(tensor))
            found.append(_weight(f"{owner}.{name}" if owner else name, owner, tensor, canonical.get(id(tensor))))
    return found


def alone(model: Any) -> AbstractContextManager[None]:
    """Meanwhile no other thread runs the model, or a part of it."""
    return held(Structure(as_parts(model)).locks)


def putter(tensor: Any) -> Callable[[np.ndarray], None]:
    """What takes values into a tensor's own memory."""

    def put(value: np.ndarray) -> None:
        # By `data`, since a graph that the user holds would else take its saved tensors for overwritten.
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.data.copy_(torch.tensor(np.asarray(value), device="cpu"))

    return put


def _weight(name: str, owner: str, tensor: Any, canonical: str | None) -> Weight:
    def get() -> np.ndarray:
        with torch.inference_mode(False), torch.no_grad():
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            return owned(tensor.detach().to("cpu", wide).numpy())

    dtype = dtype_name(tensor.dtype)
    return Weight(name, owner, tuple(tensor.shape), dtype, get, putter(tensor), canonical)


def _has_values(tensor: Any) -> bool:
    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        return False
    return bool(tensor.is_floating_point() and tensor.layout is torch.strided)


def _canonical(walked: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """By the identity of an encoder's parameter the checkpoint's name of it, where the model holds one BERT."""
    # Where nobody has a BERT, asking transformers for the class would import it, and TensorFlow with it.
    kind = getattr(sys.modules.get("transformers.models.bert.modeling_bert"), "BertModel", None)
    encoders: Sequence[Any] = [module for _, module in walked if kind is not None and isinstance(module, kind)]
    if len(encoders) != 1:
        return {}
    own = dict(encoders[0].named_parameters())
    known = set(bert_names(encoders[0].config.num_hidden_layers))
    return {id(parameter): name for name, parameter in own.items()} if own.keys() <= known else {}
