"""keras-hub's models on Keras's PyTorch backend, each against PyTorch's own gradient. `test_keras.py` runs these."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import keras_hub
import numpy as np
import pytest
import torch
from torch.nn import functional

import embgrad
from embgrad.testing.snapshot import different
from tests.contract.conformance import keras_on_torch
from tests.support import keras_hub_zoo as zoo

assert keras.backend.backend() == "torch"

#: Models that share their word table with the head.
TIED = ("BertMaskedLM", "RobertaMaskedLM", "DistilBertMaskedLM", "GPT2CausalLM", "GemmaCausalLM", "Gemma3CausalLM")


@pytest.fixture(autouse=True)
def _known_warnings_are_ignored() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the batch is padded on the left", embgrad.EmbgradWarning)
        yield


def total_of(name: str, mask: np.ndarray) -> Callable[[Any], Any]:
    """Return a function that computes the sum of the zoo's objective from what the model of that name returns."""
    task = zoo.MODELS[name].task
    if task == "TextClassifier":
        return lambda logits: functional.cross_entropy(logits, torch.tensor(zoo.CLASSES), reduction="sum")
    if task == "CausalLM":
        words = torch.tensor(np.where(mask == 1, zoo.WORDS, -100))
        return lambda logits: functional.cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="sum")
    if task == "MaskedLM":
        return lambda logits: (logits.reshape(len(mask), -1) * torch.tensor(zoo.MASKED)).sum()

    def projected(returned: Any) -> Any:
        hidden = returned["sequence_output"] if isinstance(returned, dict) else returned
        return (hidden * torch.tensor(zoo.HIDDEN) * torch.tensor(mask)[..., None]).sum()

    return projected


def native(batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: torch.tensor(value) for name, value in batch.items()}


@contextlib.contextmanager
def watched(model: Any) -> Iterator[dict[str, Any]]:
    """Keep what the model's layers return meanwhile, by role; PyTorch's own hooks see it."""
    kept: dict[str, Any] = {}
    handles = []

    def keep(layer: Any, role: str) -> None:
        def hook(module: Any, args: Any, returned: Any) -> None:
            kept.setdefault(role, returned)

        handles.append(layer.register_forward_hook(hook))

    def keep_first(module: Any, args: Any) -> None:
        kept["embeddings"] = args[0]

    backbone = getattr(model, "backbone", model)
    for layer in backbone._flatten_layers():
        if isinstance(layer, keras.layers.ReversibleEmbedding):
            keep(layer, "word")
        elif isinstance(layer, keras_hub.layers.PositionEmbedding):
            keep(layer, "position")
        elif layer.name == "segment_embedding":
            keep(layer, "type")
    for number, layer in enumerate(backbone.transformer_layers):
        keep(layer, f"layer.{number}")
        if number == 0:
            handles.append(layer.register_forward_pre_hook(keep_first))
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def own_gradients(model: Any, batch: Any, total: Callable[[Any], Any]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by role the values that the layers returned, and PyTorch's gradients there."""
    with watched(model) as kept:
        value = total(model(native(batch), training=False))
    gradients = torch.autograd.grad(value, list(kept.values()))
    found = {
        role: (tensor.detach().numpy(), gradient.numpy())
        for (role, tensor), gradient in zip(kept.items(), gradients, strict=True)
    }
    return {**found, "layer.-1": found[f"layer.{zoo.LAYERS - 1}"]}


def close(actual: np.ndarray, expected: np.ndarray, bound: float = 2e-6) -> None:
    np.testing.assert_allclose(actual, expected, rtol=bound, atol=bound * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "side"), [(name, zoo.SIDES[number % len(zoo.SIDES)]) for number, name in enumerate(zoo.MODELS)]
)
def test_every_role_has_pytorchs_value_and_gradient(name: str, side: str | None) -> None:
    model = zoo.build(name)
    batch = zoo.batch(model, side)
    objective, total = zoo.objective(name, batch["padding_mask"]), total_of(name, batch["padding_mask"])
    roles = {role for point in embgrad.points(model, batch) for role in point.roles}
    assert roles == zoo.MODELS[name].roles
    expected = own_gradients(model, batch, total)
    assert expected.keys() == roles
    found = embgrad.gradients(model, batch, objective, at=sorted(roles))
    for role, result in found.items():
        close(result.activations, expected[role][0])
        close(result.values, expected[role][1])
        assert result.provenance["unused"] == []


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_form_of_the_batch_gives_the_same(name: str) -> None:
    model = zoo.build(name)
    batch = zoo.batch(model)
    extras = {key: value for key, value in batch.items() if key == "mask_positions"}
    tokens = embgrad.TokenBatch(batch["token_ids"], batch["padding_mask"], batch.get("segment_ids"), extras=extras)
    forms = [batch, native(batch), tokens, {**tokens.to_huggingface(), **extras}]
    objective = zoo.objective(name, batch["padding_mask"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, *others = [embgrad.gradients(model, form, objective) for form in forms]
    for other in others:
        np.testing.assert_array_equal(other.values, first.values)
        np.testing.assert_array_equal(other.objective, first.objective)
    pieces = embgrad.gradients(model, batch, objective, batch_size=2)
    close(pieces.values, first.values, 1e-5)


@pytest.mark.parametrize("name", zoo.MODELS)
def test_parameters_go_by_keras_paths_and_have_pytorchs_gradients(name: str) -> None:
    model = zoo.build(name)
    batch = zoo.batch(model)
    objective, total = zoo.objective(name, batch["padding_mask"]), total_of(name, batch["padding_mask"])
    found = embgrad.tables.parameter_gradients(model, batch, objective)
    variables = model.trainable_variables
    expected = torch.autograd.grad(
        total(model(native(batch), training=False)), [variable.value for variable in variables], allow_unused=True
    )
    assert list(found) == [variable.path for variable in variables]
    assert set(found.unreached) == {
        one.path for one, gradient in zip(variables, expected, strict=True) if gradient is None
    }
    largest = max(float(gradient.abs().max()) for gradient in expected if gradient is not None)
    for variable, gradient in zip(variables, expected, strict=True):
        own = np.zeros(variable.shape) if gradient is None else gradient.numpy()
        np.testing.assert_allclose(found[variable.path], own, rtol=1e-5, atol=2e-6 * largest)


@pytest.mark.parametrize("name", ["BertBackbone", "LlamaCausalLM", *TIED])
def test_the_ledger_of_the_word_table(name: str) -> None:
    """Llama's head is another variable of the same layer."""
    model = zoo.build(name)
    batch = zoo.batch(model)
    ledger = embgrad.tables.table_gradients(model, batch, zoo.objective(name, batch["padding_mask"]))
    table = getattr(model, "backbone", model).token_embedding.embeddings
    value = total_of(name, batch["padding_mask"])(model(native(batch), training=False))
    close(ledger.total, torch.autograd.grad(value, table.value)[0].numpy())
    assert ledger.tied is (name in TIED)
    assert ledger.names == (table.path,)
    np.testing.assert_array_equal(embgrad.tables.embedding_table(model, batch), table.numpy())


@pytest.mark.parametrize("name", ["BertTextClassifier", "GPT2CausalLM", "GemmaCausalLM", "LlamaCausalLM"])
def test_values_and_gradients_are_replaced(name: str) -> None:
    model = zoo.build(name)
    batch = zoo.batch(model)
    objective = zoo.objective(name, batch["padding_mask"])
    plain = embgrad.gradients(model, batch, objective, at=["word", "layer.0"])
    same = embgrad.gradients(model, batch, objective, override={"layer.0": plain["layer.0"].activations}, at="layer.0")
    close(same.values, plain["layer.0"].values)
    nothing = embgrad.gradients(model, batch, objective, edit={"layer.0": lambda gradient: gradient * 0})
    assert not nothing.values.any()
    shift = 0.1 * np.random.default_rng(1).normal(size=zoo.DIM)
    moved = embgrad.evaluate(model, batch, objective, add={"layer.0": shift})
    changed = embgrad.gradients(model, batch, objective, add={"layer.0": shift})
    close(moved, changed.objective)
    assert np.abs(moved - plain["word"].objective).max() > 1e-4
    alone = embgrad.gradients(model, batch, objective, split=True)
    close(alone.values, plain["word"].values, 1e-5)


@pytest.mark.parametrize("name", ["BertTextClassifier", "GPT2CausalLM"])
@pytest.mark.parametrize("way", ["jit_compile", "torch.compile"])
def test_a_model_that_the_user_has_compiled(name: str, way: str) -> None:
    """Also in training mode, in which Keras's layers are called with an argument that says so."""
    model = zoo.build(name)
    batch = zoo.batch(model)
    objective = zoo.objective(name, batch["padding_mask"])

    def results(each: Any) -> list[Any]:
        values = [embgrad.gradients(each, batch, objective, at=at) for at in ("word", "layer.0", "layer.-1")]
        keras_on_torch.seed(1)
        return [*values, embgrad.gradients(each, batch, objective, training=True)]

    points = embgrad.points(model, batch)
    plain = results(model)
    if way == "torch.compile":
        compiled = torch.compile(model, backend="eager")
    else:
        compiled = model
        model.compile(optimizer="sgd", loss="mse", jit_compile=True)
    before = keras_on_torch.state(model)
    assert [(point.name, point.roles) for point in embgrad.points(compiled, batch)] == [
        (point.name, point.roles) for point in points
    ]
    for actual, expected in zip(results(compiled), plain, strict=True):
        np.testing.assert_array_equal(actual.values, expected.values)
    assert np.abs(plain[-1].values - plain[0].values).max() > 0
    assert different("", before, keras_on_torch.state(model)) == {}


def trained(model: Any, batch: Any, total: Callable[[Any], Any], steps: int = 3) -> list[bytes]:
    """Train the model as a user of PyTorch does, with dropout, and return its weights."""
    optimiser = torch.optim.SGD([variable.value for variable in model.trainable_variables], 0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        total(model(native(batch), training=True)).backward()
        optimiser.step()
    return [weight.numpy().tobytes() for weight in model.weights]


@pytest.mark.parametrize("name", ["BertTextClassifier", "GPT2CausalLM", "GemmaCausalLM"])
@pytest.mark.parametrize("at", ["word", "layer.0"])
def test_a_capture_changes_nothing_in_a_loop_with_dropout(name: str, at: str) -> None:
    def model_and_batch() -> tuple[Any, Any]:
        keras.utils.set_random_seed(4)  # of the layers' own generators
        model = zoo.build(name)
        return model, zoo.batch(model)

    model, batch = model_and_batch()
    total = total_of(name, batch["padding_mask"])
    alone = trained(model, batch, total)
    model, batch = model_and_batch()
    with embgrad.capture(model, at=at) as tap:
        captured = trained(model, batch, total)
    assert captured == alone
    assert tap.count == 3
    assert np.abs(tap.steps[0].values).max() > 0
    np.testing.assert_array_equal(tap.steps[0].ids, batch["token_ids"])
    model, batch = model_and_batch()
    with embgrad.perturbed(model, {at: np.full(zoo.DIM, 0.5)}):
        assert trained(model, batch, total) != alone


def test_what_a_capture_sees_is_the_gradient_of_the_users_loss() -> None:
    model = zoo.build("BertTextClassifier")
    batch = zoo.batch(model)
    total = total_of("BertTextClassifier", batch["padding_mask"])
    with embgrad.capture(model) as tap:
        (total(model(native(batch))) / 3).backward()
    expected = embgrad.gradients(model, batch, zoo.objective("BertTextClassifier", batch["padding_mask"]))
    close(tap.steps[0].values, expected.values / 3)
