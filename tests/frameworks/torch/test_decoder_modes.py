"""Decoders as they are loaded: quantised, spread by a `device_map`, with PEFT's adapters. Each recorded cell is run again."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers

import embgrad
from embgrad.errors import AmbiguousPointError, PointError, UnsupportedError
from tests.decoders.architectures import DECODERS, MODES
from tests.decoders.cells import measure, own_gradients
from tests.decoders.inputs import Inputs, padded, relative
from tests.decoders.page import EXACT, ROUNDED, recorded

#: The modes that test_decoders.py runs for each decoder.
ELSEWHERE = ("float32", "bfloat16")


@pytest.mark.sampled(40)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ELSEWHERE])
@pytest.mark.parametrize("name", DECODERS)
def test_a_cell_of_the_table(name: str, mode: str, tmp_path: Path) -> None:
    if name == "Mamba" and "bit" in mode and int(transformers.__version__.partition(".")[0]) >= 5:
        with pytest.raises((RuntimeError, NotImplementedError)):  # of the model itself, whose code reads the weights
            measure(name, mode, tmp_path)
        return
    before = recorded()["torch"]["cells"][name][mode]
    cell = measure(name, mode, tmp_path)
    assert (cell.error, cell.inapplicable) == (before["error"], before["inapplicable"])
    assert cell.changed == ()
    if cell.error or cell.inapplicable:
        return
    assert cell.own < (1e-2 if MODES[mode].rounds else EXACT)
    assert cell.one_hot < ROUNDED if MODES[mode].rounds else cell.one_hot < EXACT
    assert cell.right < (ROUNDED if MODES[mode].rounds else 2 * EXACT)
    assert cell.from_float32 is None or 0 < cell.from_float32 < 1


def lora(**options: Any) -> Any:
    torch.manual_seed(2)
    settings = {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": False, "task_type": "CAUSAL_LM", **options}
    return peft.get_peft_model(DECODERS["Llama"].build(), peft.LoraConfig(**settings)).eval()


def values(model: Any, inputs: Inputs, **options: Any) -> Any:
    return embgrad.gradients(model, inputs.batch, embgrad.CrossEntropy(inputs.labels), **options).values


def test_adapted_tables_are_ambiguous() -> None:
    model, inputs = lora(target_modules=["embed_tokens", "q_proj"]), padded("right")
    with pytest.raises(AmbiguousPointError, match=r"word#0 = .*embed_tokens\.base_layer#0 \(320 rows × 64"):
        values(model, inputs)
    path = "base_model.model.model.embed_tokens"
    kept: list[torch.Tensor] = []
    handle = model.get_submodule(path).register_forward_hook(lambda module, args, returned: kept.append(returned))
    logits = model(**{name: torch.tensor(value) for name, value in inputs.batch.items()}).logits
    handle.remove()
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(inputs.labels).flatten(), reduction="sum"
    )
    own = torch.autograd.grad(loss, kept[0])[0].numpy()
    assert relative(values(model, inputs, at=path), own) < EXACT
    assert relative(values(model, inputs, at="word#0"), own) < EXACT  # the sum passes it on


@pytest.mark.parametrize(
    "options", [{"modules_to_save": ["embed_tokens"]}, {"use_dora": True}, {"trainable_token_indices": [7, 8]}]
)
def test_other_adapters(options: dict[str, Any]) -> None:
    model, inputs = lora(**options), padded("right")
    assert relative(values(model, inputs), own_gradients(model, inputs)[0]) < EXACT


def test_the_chosen_adapter_counts() -> None:
    model, inputs = lora(), padded("right")
    with model.disable_adapter():
        plain = values(model, inputs)
    assert relative(plain, values(DECODERS["Llama"].build(), inputs)) < EXACT
    assert relative(values(model, inputs), plain) > 0.01


PROMPTS = {
    "prompt tuning": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "p-tuning": peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8),
    "prefix tuning": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_objectives_and_output_tokens_behind_virtual_tokens(name: str) -> None:
    torch.manual_seed(2)
    model, inputs = peft.get_peft_model(DECODERS["Llama"].build(), PROMPTS[name]).eval(), padded("right")
    more = 0 if name == "prefix tuning" else 3

    def cut(model: Any, batch: Any) -> Any:
        return model(**batch).logits[:, more:]

    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        found = values(model, inputs)
        assert relative(found, values(model, inputs, call=cut)) == 0
        tokens, expected = (embgrad.attribute_tokens(model, inputs.batch, call=call).scores for call in (None, cut))
    np.testing.assert_allclose(tokens, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    kept: list[torch.Tensor] = []

    def keep(module: Any, args: Any, returned: torch.Tensor) -> None:
        if np.array_equal(args[0], inputs.batch["input_ids"]):
            kept.append(returned.requires_grad_())
            returned.retain_grad()

    handle = model.get_input_embeddings().register_forward_hook(keep)
    logits = cut(model, {name: torch.tensor(value) for name, value in inputs.batch.items()})
    handle.remove()
    labels = torch.tensor(inputs.labels)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").backward()
    assert kept[0].grad is not None
    assert relative(found, kept[0].grad.numpy()) < EXACT


@pytest.mark.parametrize("mode", ["device_map, last layer on disk", "all weights on disk"])
def test_calls_on_offloaded_weights(mode: str, tmp_path: Path) -> None:
    decoder, inputs = DECODERS["GPT-2"], padded("right")
    model, objective = MODES[mode].build(decoder, tmp_path), embgrad.CrossEntropy(inputs.labels)
    plain = decoder.build()
    assert relative(values(model, inputs, training=True), values(plain, inputs, training=True)) < 2  # dropout drops
    np.testing.assert_array_equal(
        embgrad.tables.embedding_table(model, inputs.batch), embgrad.tables.embedding_table(plain, inputs.batch)
    )
    assert embgrad.gradients(model, inputs.batch, objective, check=True).certificate is not None
    with pytest.raises(
        UnsupportedError,
        match=r"the trainable parameter 'transformer\..*' is on the device 'meta', so that its gradient cannot be read: a "
        r"device_map that offloads weights loads them anew for each pass\. Load the model without offloading",
    ):
        embgrad.tables.parameter_gradients(model, inputs.batch, objective)
    if mode.startswith("all"):
        with pytest.raises(PointError, match=r"is no parameter of the model: it is .* or loaded for it"):
            embgrad.tables.table_gradients(model, inputs.batch, objective)
        return
    ledger = embgrad.tables.table_gradients(model, inputs.batch, objective)
    assert ledger.own is None
    assert relative(ledger.total, embgrad.tables.table_gradients(plain, inputs.batch, objective).total) < 1e-5


@pytest.mark.parametrize("mode", ["8 bits, torchao", "4 bits, torchao"])
def test_quantised_weights_are_read_as_the_numbers_that_they_stand_for(mode: str, tmp_path: Path) -> None:
    from embgrad.engine.weights import substitute, weights_of

    model, name = MODES[mode].build(DECODERS["Llama"], tmp_path), "model.layers.0.self_attn.q_proj.weight"
    weights = {weight.name: weight for weight in weights_of(model)}
    quantised, plain = weights[name].get(), DECODERS["Llama"].build().get_parameter(name).detach().numpy()
    assert 0 < relative(quantised, plain) < 0.2
    with (
        pytest.raises(UnsupportedError, match=r"of shape \(64, 64\) is a quantised .*Tensor, which holds no other"),
        substitute(model, {name: plain}),
    ):
        pass


@pytest.mark.parametrize("kind", ["Embedding8bit", "Embedding4bit"])
def test_a_quantised_table_is_refused(kind: str) -> None:
    import bitsandbytes

    model, inputs = DECODERS["Llama"].build(), padded("right")
    table, rows = getattr(bitsandbytes.nn, kind)(320, 64), model.model.embed_tokens.weight.data.clone()
    if kind == "Embedding4bit":
        table.weight = bitsandbytes.nn.Params4bit(rows, requires_grad=False, quant_type="nf4", module=table)
    else:
        table.load_state_dict({"weight": rows})
    model.model.embed_tokens = table.to("cpu")
    with pytest.raises(UnsupportedError, match=r"holds torch\.u?int8, and gradients exist only for real floating"):
        values(model.eval(), inputs)
