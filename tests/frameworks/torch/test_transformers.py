"""Hugging Face's models of small random configurations: the call by name, and the gradient at the word lookup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad
from tests.frameworks.torch.architectures import ARCHITECTURES, IDS, native
from tests.frameworks.torch.checks import own_gradient

#: The classes of models with a head, and those that compute parts of a float64 model in float32.
CLASSES = {
    **dict.fromkeys(("Bert", "Roberta", "DistilBert", "Electra", "DebertaV2", "GPT2"), "ForSequenceClassification"),
    **dict.fromkeys(("Llama", "Gemma"), "ForCausalLM"),
    **dict.fromkeys(("T5", "Bart"), "ForConditionalGeneration"),
}


def build(name: str, **changes: Any) -> Any:
    torch.manual_seed(1)
    architecture = ARCHITECTURES[name]
    settings = {**architecture.settings, architecture.layers: 2, **changes}
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, name + CLASSES[name])(config).double().eval()
    if hasattr(model, "lm_head"):  # or the table's own gradient would hold the head's too
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def weighted(out: Any) -> torch.Tensor:
    logits = out.logits.flatten(1)
    return logits @ torch.linspace(-1, 1, logits.shape[1], dtype=logits.dtype)


@pytest.mark.parametrize("name", CLASSES)
def test_the_word_lookup(name: str) -> None:
    model = build(name)
    table = model.get_input_embeddings().weight
    inputs = ARCHITECTURES[name].batch()
    tensors = native(inputs)
    result = embgrad.gradients(model, inputs, weighted)
    assert result.provenance["path"].endswith(f"{ARCHITECTURES[name].word}#0")
    assert result.provenance["unused"] == []
    np.testing.assert_array_equal(result.activations, table.detach().numpy()[IDS])
    np.testing.assert_allclose(result.objective, weighted(model(**tensors)).detach().numpy(), rtol=1e-12)
    own = own_gradient(lambda: weighted(model(**tensors)).sum(), table, IDS)
    assert model.get_input_embeddings().padding_idx not in IDS  # PyTorch leaves that row out
    np.testing.assert_allclose(result.values, own, rtol=1e-12, atol=1e-15)


def test_no_input_is_passed_that_the_batch_does_not_have() -> None:
    model = build("GPT2")
    recorded: list[dict[str, Any]] = []
    model.transformer.register_forward_pre_hook(lambda module, args, kwargs: recorded.append(kwargs), with_kwargs=True)
    plain = embgrad.gradients(model, {"input_ids": IDS}, embgrad.Logit(0))
    assert recorded[0]["token_type_ids"] is None
    assert recorded[0]["attention_mask"] is None
    types = embgrad.gradients(
        model, {"input_ids": IDS, "token_type_ids": np.zeros_like(IDS)}, embgrad.Logit(0), at="word#0"
    )
    assert not np.allclose(plain.values, types.values)


def test_other_inputs_pass_through() -> None:
    model = build("GPT2")
    places = np.array([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]])
    result = embgrad.gradients(model, {"input_ids": IDS, "position_ids": places.tolist()}, embgrad.Logit(0))
    table = model.transformer.wte.weight
    loss = lambda: model(input_ids=torch.tensor(IDS), position_ids=torch.tensor(places)).logits[:, 0].sum()  # noqa: E731
    np.testing.assert_allclose(result.values, own_gradient(loss, table, IDS), rtol=1e-12, atol=1e-15)


def gpt2() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).double().eval()
    return model, torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


@pytest.mark.parametrize("options", [{}, {"at": "layer.0"}, {"override": {"word": lambda rows: rows}}])
def test_a_cache_in_the_batch_does_not_change(options: dict[str, Any]) -> None:
    """A pass makes it longer: each gets one of its own, and so does the next call."""
    model, ids = gpt2()
    cache = model(ids[:, :3], use_cache=True).past_key_values
    rows = model.transformer.wte(ids[:, 3:]).detach().requires_grad_()
    past = model(ids[:, :3], use_cache=True).past_key_values
    logits = model(inputs_embeds=rows, past_key_values=past).logits
    expected = torch.autograd.grad(logits[:, -1, 7].sum(), rows)[0].numpy()
    for _ in range(2):
        batch = {"input_ids": ids[:, 3:].numpy(), "past_key_values": cache}
        given = {"at": "word", **options}
        result = embgrad.gradients(model, batch, embgrad.Logit(7, position=-1), **given)
        assert cache.get_seq_length() == 3
        if given["at"] == "word":
            np.testing.assert_allclose(result.values, expected, rtol=1e-9, atol=1e-14)
        else:
            np.testing.assert_array_equal(result.objective, logits[:, -1, 7].detach().numpy())


@pytest.mark.parametrize("kind", ["T5", "Bart"])
def test_encoder_outputs_in_the_batch_do_not_change(kind: str) -> None:
    """A mapping that counts its entries, too, as users give it to a decoder."""
    model, ids = build(kind), torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 3, 5]])
    encoded = model.get_encoder()(ids[:, :3])
    table = model.get_input_embeddings()
    rows = (torch.nn.functional.embedding(ids, table.weight) * getattr(table, "embed_scale", 1.0)).detach()
    logits = model(decoder_inputs_embeds=rows.requires_grad_(), encoder_outputs=encoded).logits
    expected = torch.autograd.grad(logits[:, -1, 7].sum(), rows)[0].numpy()

    def call(model: Any, inputs: Any) -> Any:
        return model(decoder_input_ids=inputs["input_ids"], encoder_outputs=inputs["encoder_outputs"]).logits

    batch = {"input_ids": ids.numpy(), "encoder_outputs": encoded}
    result = embgrad.gradients(model, batch, embgrad.Logit(7, position=-1), call=call)
    np.testing.assert_allclose(result.values, expected, rtol=1e-9, atol=1e-14)
    result = embgrad.gradients(model, batch, embgrad.Logit(7, position=-1), call=call, batch_size=1)
    np.testing.assert_allclose(result.values, expected, rtol=1e-9, atol=1e-14)
    assert encoded.last_hidden_state.grad_fn is not None
    assert len(encoded.last_hidden_state) == 2


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"split": True, "at": "transformer.h.0"}])
def test_a_cache_cannot_be_cut_into_sub_batches(options: dict[str, Any]) -> None:
    model, ids = gpt2()
    batch = {"input_ids": ids[:, 3:].numpy(), "past_key_values": model(ids[:, :3]).past_key_values}
    with pytest.raises(
        embgrad.errors.BatchError,
        match=r"takes all 2 examples at once, and raised RuntimeError for 1 of them.*'past_key",
    ):
        embgrad.gradients(model, batch, embgrad.Logit(7, position=-1), **options)
