"""Gradients of PyTorch models by hand: the rows of the lookup become leaves, a hook keeps a module's output."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.zoo.hand import DECODER, WORD, Case, Pulled, Unchecked, place_of
from tests.zoo.state import shallow

__all__ = ["TorchHand"]


class TorchHand:
    """PyTorch's forward pass, `torch.autograd.grad` and a model's state."""

    def outputs(self, case: Case) -> dict[str, np.ndarray]:
        with torch.no_grad():
            named = _named(case.model(**_tensors(case.batch)))
        return {name: value.float().numpy() for name, value in named.items()}

    def pull(
        self,
        case: Case,
        output: str,
        respond: Callable[[np.ndarray], Sequence[np.ndarray]],
        points: Sequence[str] = (WORD,),
        scale: np.ndarray | None = None,
    ) -> Pulled:
        rows: dict[str, torch.Tensor] = {}
        modules: dict[str, list[torch.Tensor]] = {}
        with _frozen(case.model), _leaves(case, rows, scale), _kept(case.model, modules), torch.enable_grad():
            returned = _named(case.model(**_tensors(case.batch)))[output]
        if WORD not in rows:
            raise Unchecked("no call of torch.nn.functional.embedding has the batch's ids")
        at = {point: _at(point, rows, modules) for point in points}
        if not returned.requires_grad:
            raise Unchecked(f"the output {output!r} does not depend on the rows")
        gradients = []
        for cotangent in respond(returned.detach().float().numpy()):
            put = torch.tensor(cotangent, dtype=returned.dtype)
            pulled = torch.autograd.grad(returned, list(at.values()), put, retain_graph=True, allow_unused=True)
            gradients.append(
                {
                    point: (torch.zeros_like(value) if gradient is None else gradient).float().numpy()
                    for (point, value), gradient in zip(at.items(), pulled, strict=True)
                }
            )
        values = {point: value.detach().float().numpy() for point, value in at.items()}
        return Pulled(values, gradients, _last_layer(case.model, modules, case.batch[case.ids].shape))

    def state(self, model: Any) -> dict[str, Any]:
        """Return modes, hooks, methods, attributes, parameters and buffers with their flags, gradients and bits."""
        modules = {
            path: {name: _seen(value) for name, value in vars(module).items() if name != "_modules"}
            | {f"child {name}": id(child) for name, child in module._modules.items()}
            for path, module in model.named_modules(remove_duplicate=False)
        }
        return {
            "modules": modules,
            "configuration": repr(getattr(model, "config", None)),
            "gradients on": torch.is_grad_enabled(),
            "random numbers": torch.random.get_rng_state().numpy().tobytes(),
        }


def _seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        bits = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if not value.is_meta else b""
        return (id(value), value.requires_grad, value.grad is None, value.dtype, tuple(value.shape), hash(bits))
    return shallow(value, _seen)


def _tensors(batch: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in batch.items()}


def _named(returned: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of floating point numbers of a model's return value, by name."""
    if isinstance(returned, torch.Tensor):
        returned = {"": returned}
    elif not isinstance(returned, Mapping):
        returned = {str(number): value for number, value in enumerate(returned)}
    return {
        name: value for name, value in returned.items() if isinstance(value, torch.Tensor) and value.is_floating_point()
    }


@contextlib.contextmanager
def _frozen(model: Any) -> Iterator[None]:
    # As in embgrad's passes: PyTorch chooses other kernels where a bias is trainable, which round otherwise.
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def _leaves(case: Case, rows: dict[str, torch.Tensor], scale: np.ndarray | None) -> Iterator[None]:
    """Put leaves in the place of the rows of ids, while the block runs."""
    lookup = functional.embedding
    table = getattr(_input_embeddings(case.model), "weight", None)

    def embedding(input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        found = lookup(input, weight, *args, **kwargs)
        for name, ids in case.looked_up.items():
            turned = input.T if tuple(input.shape) == ids.shape[::-1] else input
            columns = place_of(turned.numpy(), ids)
            if columns is None or (name in rows and weight is not table):
                continue
            if turned is not input:
                found = found.transpose(0, 1)
            part = found[:, columns].detach()
            if name == WORD and scale is not None:
                part = part * torch.tensor(scale, dtype=part.dtype)[:, :, None]
            leaf = part.clone().requires_grad_()
            rows[name] = leaf
            joined = torch.cat([found[:, : columns.start], leaf, found[:, columns.stop :]], 1)
            return joined if turned is input else joined.transpose(0, 1)
        return found

    with mock.patch.object(functional, "embedding", embedding):
        yield


def _input_embeddings(model: Any) -> Any:
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError, TypeError):
        return None


@contextlib.contextmanager
def _kept(model: Any, modules: dict[str, list[torch.Tensor]]) -> Iterator[None]:
    """Keep the first tensor that each call of each module returns, by the module's path."""

    def keeper(path: str) -> Callable[[Any, Any, Any], None]:
        def keep(module: Any, given: Any, returned: Any) -> None:
            first = returned
            while isinstance(first, (tuple, list, Mapping)) and first:
                first = next(iter(first.values() if isinstance(first, Mapping) else first))
            if isinstance(first, torch.Tensor):
                modules.setdefault(path, []).append(first)

        return keep

    handles = [module.register_forward_hook(keeper(path)) for path, module in model.named_modules() if path]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _at(point: str, rows: Mapping[str, torch.Tensor], modules: Mapping[str, list[torch.Tensor]]) -> torch.Tensor:
    if point in (WORD, DECODER):
        if point not in rows:
            raise Unchecked(f"no call of torch.nn.functional.embedding has the {point}'s ids")
        return rows[point]
    path, _, occurrence = point.partition("#")
    if path not in modules:
        raise Unchecked(f"no module {path} returned a tensor")
    return modules[path][int(occurrence or 0)]


def _last_layer(model: Any, modules: Mapping[str, list[torch.Tensor]], shape: tuple[int, ...]) -> str | None:
    """Return the path of the last of the repeated blocks: the last member of a ModuleList that has outputs of the batch's axes.

    Of lists in one another the outer counts; of an encoder and a decoder the encoder, which stands first.
    """
    lists = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList):
            members = [f"{path}.{number}" for number in range(len(module))]
            outputs = [value for member in members for value in modules.get(member, ())]
            if len(outputs) > 1 and all(_maps_rows(value, shape) for value in outputs):
                lists.append((path, next(member for member in reversed(members) if member in modules)))
    outer = [last for path, last in lists if not any(path.startswith(f"{other}.") for other, _ in lists)]
    return outer[0] if outer else None


def _maps_rows(value: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Return whether a value has a row for each example and position, on either axis first, and depends on the leaves."""
    return value.ndim == 3 and tuple(value.shape[:2]) in (shape, shape[::-1]) and value.requires_grad
