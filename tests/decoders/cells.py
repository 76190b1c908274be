"""One cell of the table: a decoder in a mode, compared with PyTorch's own gradients with respect to one-hot inputs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.nn import functional

import embgrad
from embgrad.testing.snapshot import Same, different
from tests.decoders.architectures import DECODERS, DIM, MODES, Decoder, Inapplicable
from tests.decoders.inputs import Cell, Inputs, alone, from_alone, padded, relative


def measure(name: str, mode: str, folder: Path) -> Cell:
    """Run a decoder in a mode."""
    decoder = DECODERS[name]
    try:
        model = MODES[mode].build(decoder, folder)
    except Inapplicable as reason:
        return Cell(inapplicable=str(reason))
    right = padded("right", encoder=decoder.encoder)
    _native(model, right)  # some weights are made ready in the first call
    before = _state(model)
    try:
        _gradients(model, right)
        own, one_hot = _compared(model, right, decoder)
    except embgrad.EmbgradError as error:
        return Cell(
            error=f"{type(error).__name__}: {error.message}", changed=tuple(different("", before, _state(model)))
        )
    singles = [_gradients(model, inputs).values[0] for inputs in alone(decoder.encoder)]
    left = padded("left", encoder=decoder.encoder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", embgrad.EmbgradWarning)
        from_left = from_alone(_gradients(model, left).values, left, singles)
    return Cell(
        own=own,
        one_hot=one_hot,
        right=from_alone(_gradients(model, right).values, right, singles),
        left=from_left,
        positions=from_alone(_gradients(model, left.with_positions()).values, left, singles)
        if _takes_positions(model)
        else None,
        warned=any("padded on the left" in str(warning.message) for warning in caught),
        changed=tuple(different("", before, _state(model))),
        from_float32=_from_float32(model, decoder, right) if MODES[mode].approximate else None,
    )


def _compared(model: Any, inputs: Inputs, decoder: Decoder) -> tuple[float, float]:
    """Return the largest difference from PyTorch's own gradients of rows, and that of the products with the table."""
    generator = np.random.default_rng(3)
    shape = (*inputs.mask.shape, DIM)
    added = (0.02 * generator.normal(size=shape)).astype(np.float32)
    put = generator.normal(size=shape).astype(np.float32)
    rows, one_hot, table = own_gradients(model, inputs)
    result = _gradients(model, inputs)
    last, _, _ = own_gradients(model, inputs, layer=f"{decoder.layers}.1")
    differences = [
        relative(result.values, rows),
        relative(_gradients(model, inputs, add={"word": added}).values, own_gradients(model, inputs, added=added)[0]),
        relative(_gradients(model, inputs, override={"word": put}).values, own_gradients(model, inputs, put=put)[0]),
        relative(_gradients(model, inputs, at="layer.-1").values, last),
    ]
    return max(differences), relative(result.values @ table.T, one_hot)


def own_gradients(
    model: Any,
    inputs: Inputs,
    *,
    added: np.ndarray | None = None,
    put: np.ndarray | None = None,
    layer: str | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return PyTorch's own gradient of the rows, or of a layer's output, and of one-hot inputs, and the table.

    The lookup of the ids is replaced by a product of one-hot vectors with the table. The weights are frozen meanwhile, as they
    are in embgrad's passes: PyTorch chooses other kernels of attention where a bias of it is trainable, which round otherwise.
    """
    kept: dict[str, Any] = {}
    ids = torch.tensor(inputs.batch["input_ids"])
    lookup = functional.embedding

    def embedding(input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        if "one_hot" in kept or input.shape != ids.shape or not torch.equal(input, ids):
            return lookup(input, weight, *args, **kwargs)
        kept["one_hot"] = functional.one_hot(ids, len(weight)).to(weight.dtype).requires_grad_()
        kept["table"] = weight.detach()
        rows = kept["one_hot"] @ kept["table"]
        if added is not None:
            rows = rows + torch.tensor(added, dtype=rows.dtype)
        if put is not None:
            rows = rows * 0 + torch.tensor(put, dtype=rows.dtype)
        kept["rows"] = rows
        return rows

    hook = contextlib.nullcontext() if layer is None else _layer_output(model, layer, kept)
    with mock.patch.object(functional, "embedding", embedding), hook, _frozen(model):
        logits = model(**{name: torch.tensor(value) for name, value in inputs.batch.items()}).logits
    loss = functional.cross_entropy(
        logits.double().flatten(0, 1), torch.tensor(inputs.labels).flatten(), reduction="sum"
    )
    point = kept["rows" if layer is None else "layer"]
    of_point, of_one_hot = torch.autograd.grad(loss, (point, kept["one_hot"]), allow_unused=put is not None)
    return tuple(
        value.detach().float().numpy() if value is not None else np.zeros(())
        for value in (of_point, of_one_hot, kept["table"])
    )


@contextlib.contextmanager
def _frozen(model: Any) -> Iterator[None]:
    # By name: accelerate makes new parameters of those that it loads.
    trainable = [name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.requires_grad]
    for name in trainable:
        model.get_parameter(name).requires_grad_(False)
    try:
        yield
    finally:
        for name in trainable:
            model.get_parameter(name).requires_grad_(True)


@contextlib.contextmanager
def _layer_output(model: Any, path: str, kept: dict[str, Any]) -> Iterator[None]:
    module = next(module for name, module in model.named_modules() if name.endswith(path))

    def keep(module: Any, args: Any, returned: Any) -> None:
        kept["layer"] = returned[0] if isinstance(returned, tuple) else returned

    handle = module.register_forward_hook(keep)
    try:
        yield
    finally:
        handle.remove()


def _native(model: Any, inputs: Inputs) -> None:
    with torch.no_grad():
        model(**{name: torch.tensor(value) for name, value in inputs.batch.items()})


def _gradients(model: Any, inputs: Inputs, **options: Any) -> Any:
    return embgrad.gradients(model, inputs.batch, embgrad.CrossEntropy(inputs.labels), **options)


def _from_float32(model: Any, decoder: Decoder, inputs: Inputs) -> float:
    return relative(_gradients(model, inputs).values, _gradients(decoder.build(), inputs).values)


def _takes_positions(model: Any) -> bool:
    """Return whether the model takes `position_ids`, which one that takes any keyword may ignore."""
    batch = {name: torch.tensor(value) for name, value in alone()[0].batch.items()}
    places = torch.zeros_like(batch["input_ids"])
    decoder = bool(getattr(model.config, "is_encoder_decoder", False))
    if decoder:
        return False
    with torch.no_grad():
        try:
            there = model(**batch, position_ids=places).logits
        except TypeError:
            return False
        return not torch.equal(there, model(**batch).logits)


def _state(model: Any) -> dict[str, Any]:
    """Return what a call must leave as it was: modes, hooks, methods, parameters, flags, gradients, bits."""
    return {path: _module_state(module) for path, module in model.named_modules()}


def _module_state(module: Any) -> dict[str, Any]:
    tensors = {**module._parameters, **module._buffers}
    return {
        "training": module.training,
        "forward": Same(vars(module).get("forward")),
        "hooks": {name: list(value) for name, value in vars(module).items() if name.endswith("_hooks")},
        "tensors": {name: _tensor_state(tensor) for name, tensor in tensors.items() if tensor is not None},
    }


def _tensor_state(tensor: Any) -> tuple[Any, ...]:
    if tensor.is_meta:  # it is another tensor after each pass, of accelerate's
        return ("meta", tensor.shape, tensor.requires_grad)
    plain = tensor.dequantize() if type(tensor).__module__.startswith("torchao") else tensor
    values = plain.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return (Same(tensor), tensor.requires_grad, tensor.grad is None, values)
