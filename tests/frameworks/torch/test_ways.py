"""Ways in which a model is run: grad modes, frozen, compiled, exported, checkpointed, in half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import embgrad
from tests.frameworks.torch.checks import IDS, VOCAB, finite_differences, own_gradient, tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.inner = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
        self.recurrent = nn.LSTM(4, 3, batch_first=True)
        self.head = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.inner(self.table(x)))[0].mean(1))


def net(kind: type[nn.Module] = Net) -> Any:
    torch.manual_seed(0)
    return kind().double().eval()


@pytest.fixture
def expected() -> np.ndarray:
    model = net()
    return finite_differences(lambda: model(tensor())[:, 1].sum(), model.table.weight)


def check(model: Any, expected: np.ndarray, **options: Any) -> None:
    result = embgrad.gradients(model, IDS, embgrad.Logit(1), **options)
    np.testing.assert_allclose(result.values, expected, rtol=1e-6, atol=1e-9)


def test_inside_no_grad_and_inference_mode(expected: np.ndarray) -> None:
    model = net()
    with torch.no_grad():
        check(model, expected)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        check(model, expected)
        np.testing.assert_allclose(
            embgrad.gradients(model, {"input_ids": tensor()}, lambda logits: logits[:, 1]).values, expected, atol=1e-9
        )
        assert torch.is_inference_mode_enabled()


def test_a_model_made_under_inference_mode(expected: np.ndarray) -> None:
    with torch.inference_mode():
        model = net()
        check(model, expected)
    weights = dict(model.named_parameters())
    check(model, expected)
    assert all(weight.is_inference() for weight in model.parameters())
    assert all(weights[name] is weight for name, weight in model.named_parameters())
    assert model.recurrent._flat_weights[0] is model.recurrent.weight_ih_l0
    ordinary = net()
    ordinary(tensor())[:, 1].sum().backward()
    gradients = embgrad.tables.parameter_gradients(model, IDS, embgrad.Logit(1))
    assert len(gradients) == len(weights)
    for name, weight in ordinary.named_parameters():
        np.testing.assert_allclose(gradients[name], weight.grad, rtol=1e-9, atol=1e-12)
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    mixed = net()
    mixed.inner = model.inner
    check(mixed, expected)


def test_weights_made_under_inference_mode_are_no_state_that_examples_share() -> None:
    calls: list[bool] = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            model = nn.Sequential(nn.Embedding(VOCAB, 4), nn.Linear(4, 3))
        model.register_forward_hook(lambda *_, mode=mode: calls.append(mode))
        embgrad.gradients(model, IDS, embgrad.Sum(), batch_size=1)
    assert calls == [False] * len(IDS) + [True] * len(IDS)  # a state would be compared in further passes


def test_inputs_made_under_inference_mode() -> None:
    class Weighted(Net):
        def forward(self, x: Any, weights: Any) -> Any:
            return self.head(self.recurrent(self.inner(self.table(x) * weights[..., None]))[0].mean(1))

    model = net(Weighted)
    with torch.inference_mode():
        weights = torch.linspace(-1, 1, 8).view(2, 4).double()
    result = embgrad.gradients(model, {"input_ids": IDS, "weights": weights}, embgrad.Logit(1))
    expected = finite_differences(lambda: model(tensor(), weights)[:, 1].sum(), model.table.weight)
    np.testing.assert_allclose(result.values, expected, rtol=1e-6, atol=1e-9)


def test_recurrent_layers_on_a_gpu_do_without_cudnn_in_evaluation_mode() -> None:
    from embgrad_torch.state import preserve
    from embgrad_torch.walk import Structure as structure

    device, result = torch.device("cuda"), structure([net()])
    with preserve(result, device, training=False):
        assert not torch.backends.cudnn.enabled
        with preserve(result, device, training=False):
            assert not torch.backends.cudnn.enabled
        assert not torch.backends.cudnn.enabled
    assert torch.backends.cudnn.enabled
    for model, training in ((net(), True), (nn.Linear(2, 2), False)):
        with preserve(structure([model]), device, training=training):
            assert torch.backends.cudnn.enabled


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("places", [0, 1, 2])
def test_exported_with_arguments_by_name(places: int) -> None:
    class Masked(Net):
        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.head(self.inner(self.table(input_ids) * attention_mask[..., None])[..., :3].mean(1))

    model, batch = net(Masked), {"input_ids": IDS, "attention_mask": IDS % 2}
    native = [torch.tensor(one) for one in batch.values()]
    by_name = dict(zip([*batch][places:], native[places:], strict=True))
    exported = torch.export.export(model, tuple(native[:places]), by_name).module()
    result, expected = (embgrad.gradients(one, batch, embgrad.Logit(1)) for one in (exported, model))
    np.testing.assert_allclose(result.values, expected.values, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_exported(expected: np.ndarray) -> None:
    class Bare(Net):
        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                rows = self.table.weight[x]
            return self.head(self.recurrent(self.inner(rows))[0].mean(1))

    for kind in (Net, Bare):
        model = torch.export.export(net(kind), (tensor(),)).module()
        check(model, expected)
        with pytest.raises(
            embgrad.errors.UnsupportedError, match=r"training=True failed, .* the mode in which it was exported"
        ):
            embgrad.gradients(model, IDS, embgrad.Logit(1), training=True)


@pytest.mark.parametrize("kind", ["trace", "script"])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torchscript_is_refused(kind: str, inside: bool) -> None:
    model = net()
    script = torch.jit.trace(model, (tensor(),)) if kind == "trace" else torch.jit.script(model)
    model = nn.Sequential(script) if inside else script
    message = r"lookups seen: none\. .* is a TorchScript module .*pass the torch\.nn\.Module that it was made from"
    with pytest.raises(embgrad.errors.PointNotReachedError, match=message):
        embgrad.gradients(model, IDS, embgrad.Logit(1))


def test_the_compute_dtype_is_the_coarsest_of_points_outputs_and_autocast() -> None:
    class Halved(Net):
        def forward(self, x: Any) -> Any:
            return super().forward(x).to(torch.float16)

    for model, dtype in ((net(), "float64"), (net(Halved), "float16"), (net(CastingItself).float(), "bfloat16")):
        result = embgrad.gradients(model, IDS, embgrad.Logit(1))
        assert result.provenance["compute_dtype"] == dtype


@pytest.mark.parametrize("by", [1.0, -1.0])
def test_torch_cond_runs_uncompiled(by: float) -> None:
    """Functions that give a tensor alone, and that use weights and modules."""

    class Choosing(Net):
        def forward(self, x: Any) -> Any:
            rows = self.table(x)
            bent = torch.cond(self.by > 0, lambda rows: self.inner(rows), lambda rows: rows.sin(), (rows,))
            return self.head(self.recurrent(bent)[0].mean(1))

    model = net(Choosing)
    model.register_buffer("by", torch.tensor(by))
    own = finite_differences(lambda: model(tensor())[:, 1].sum(), model.table.weight)
    check(model, own)
    assert embgrad.tables.parameter_gradients(model, IDS, embgrad.Logit(1))["inner.0.weight"].any() == (by > 0)
    assert ("inner.0#0" in [point.name for point in embgrad.points(model, IDS)]) == (by > 0)


class CastingItself(Net):
    @torch.autocast("cpu", torch.bfloat16)
    def forward(self, x: Any) -> Any:
        return super().forward(x)


class Checkpointing(Net):
    def forward(self, x: Any) -> Any:
        return self.head(checkpoint(self.inner, self.table(x), use_reentrant=False)[..., :3].mean(1))


@pytest.mark.parametrize("kind", [Net, CastingItself])
@pytest.mark.parametrize(
    "call", [embgrad.gradients, embgrad.tables.parameter_gradients, embgrad.tables.table_gradients]
)
def test_weights_may_change_in_a_block_of_autocast(call: Any, kind: type[Net]) -> None:
    """A cast that PyTorch keeps to the block's end is neither taken nor left."""
    model, changed = net(kind).float(), net(kind).float()
    with torch.no_grad():
        changed.head.weight.mul_(-2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        call(model, IDS, embgrad.Logit(1))
        model.head.weight.mul_(-2)
        own = model(tensor())
        result = embgrad.gradients(model, IDS, embgrad.Logit(1))
        assert torch.is_autocast_cache_enabled()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(own, changed(tensor()))
        expected = embgrad.gradients(changed, IDS, embgrad.Logit(1))
    np.testing.assert_array_equal(result.values, expected.values)


@pytest.mark.parametrize("kind", [Net, Checkpointing])
def test_casts_of_the_user_in_a_block_of_autocast_are_kept(kind: type[Net]) -> None:
    """Those of one cast are added up in its precision: a call drops no cast of the user's."""

    def own(between: Any) -> list[Any]:
        model = net(kind).float()
        with torch.autocast("cpu", torch.bfloat16):
            first = model(tensor())
            between(model)
            (first + 3 * model(tensor().flip(1))).pow(2).sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    expected = own(lambda model: None)
    for call in (embgrad.gradients, embgrad.tables.parameter_gradients):
        result = own(lambda model, call=call: call(model, IDS, embgrad.Logit(1)))
        assert all(map(torch.equal, result, expected))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    "call", [embgrad.gradients, embgrad.tables.parameter_gradients, embgrad.tables.table_gradients]
)
def test_weights_that_parametrize_caches_are_neither_used_nor_replaced(call: Any, before: bool) -> None:
    """A weight that PyTorch keeps to the block's end, with its graph, is neither taken nor left."""
    model = net()
    parametrizations.weight_norm(model.head)
    expected = own_gradient(lambda: model(tensor())[:, 1].sum(), model.table.weight)
    with parametrize.cached():
        kept = model.head.weight if before else None
        result = call(model, IDS, embgrad.Logit(1))
        assert kept is None or model.head.weight is kept
        own = model(tensor())[:, 1].sum()
    own.backward()
    if call is embgrad.gradients:
        np.testing.assert_allclose(result.values, expected, rtol=1e-9)
    assert not parametrize._cache


def test_a_table_that_is_cast_goes_by_its_name() -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCAB, 4)

        def forward(self, ids: Any) -> Any:
            return nn.functional.embedding(ids, self.table.weight.to(torch.bfloat16)).float().sum(1)

    assert embgrad.gradients(Cast(), [[1, 2, 3]], embgrad.Logit(1)).provenance["path"] == "table#0"
