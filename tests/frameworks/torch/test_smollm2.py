"""A decoder that was trained, SmolLM2 with 135 million parameters: gradients and attributions beside `torch.autograd`."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import embgrad
from tests.benchmarks.measuring import distance
from tests.docs.pages import DOCS, difference
from tests.support.llama_by_hand import llama_by_hand
from tests.support.smollm2 import load_smollm2, smollm2_folder

pytestmark = pytest.mark.slow

PROMPTS = ["The keys to the cabinet", "Water boils at one hundred"]
#: A layer before and one after the first that has the outlying values of the first position.
LAYERS = (1, 20)


@pytest.fixture(scope="module")
def loaded() -> Any:
    """The model in float64, and its tokenizer."""
    return load_smollm2("float64")


def leaves(model: Any, batch: embgrad.TokenBatch) -> dict[str, Any]:
    """Return the rows of the table and some layers' outputs, and the logits that were computed from them."""
    mask = torch.tensor(batch.real.astype(np.int64))
    kept = {"word": model.model.embed_tokens.weight[torch.tensor(batch.ids)].detach().requires_grad_(True)}

    def keep(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            kept[name] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [model.model.layers[number].register_forward_hook(keep(f"layer.{number}")) for number in LAYERS]
    kept["logits"] = model(inputs_embeds=kept["word"], attention_mask=mask).logits
    for handle in handles:
        handle.remove()
    return kept


def test_the_weights_know_a_capital(loaded: Any) -> None:
    model, tokenizer = loaded
    made = model.generate(
        **tokenizer("The capital of France is", return_tensors="pt"), max_new_tokens=2, do_sample=False
    )
    assert tokenizer.decode(made[0]) == "The capital of France is Paris."


def test_the_logits_are_those_of_the_arithmetic(loaded: Any) -> None:
    model, _ = loaded
    weights = {
        name: array.astype(np.float64) for name, array in load_file(smollm2_folder() / "model.safetensors").items()
    }
    config = {**model.config.to_dict(), "rope_theta": 100000.0}
    ids = np.array([[504, 8889, 288, 260, 19565]])
    with torch.no_grad():
        logits = model(torch.tensor(ids)).logits.numpy()
    # transformers computes the angles of its rotations in float32.
    np.testing.assert_allclose(
        logits, llama_by_hand(np, weights, config, ids), rtol=0, atol=1e-4 * np.abs(logits).max()
    )


def test_gradients_at_the_words_and_at_layers_are_those_of_autograd(loaded: Any) -> None:
    model, tokenizer = loaded
    batch = embgrad.encode(PROMPTS, tokenizer)
    names = ["word", *(f"layer.{number}" for number in LAYERS)]
    results = embgrad.gradients(model, batch, embgrad.LogProbability(batch.ids), at=names)
    kept = leaves(model, batch)
    log_p = kept["logits"][:, :-1].log_softmax(-1).gather(-1, torch.tensor(batch.ids)[:, 1:, None])[..., 0]
    objective = (log_p * torch.tensor(batch.real[:, 1:])).sum(-1)
    expected = torch.autograd.grad(objective.sum(), [kept[name] for name in names])
    for name, gradient in zip(names, expected, strict=True):
        np.testing.assert_allclose(results[name].objective, objective.detach().numpy(), rtol=1e-9)
        assert distance(results[name].values, gradient.numpy()) < 1e-9
        assert distance(results[name].activations, kept[name].detach().numpy()) < 1e-12


def test_output_tokens_have_the_input_x_gradient_of_autograd(loaded: Any) -> None:
    model, tokenizer = loaded
    a = embgrad.attribute_tokens(model, [f"{PROMPTS[0]} are"], targets=[-1], contrast=" is", tokenizer=tokenizer)
    batch = embgrad.encode(PROMPTS[:1], tokenizer)
    kept = leaves(model, batch)
    are, is_ = (tokenizer(word).input_ids[-1] for word in (" are", " is"))
    difference = kept["logits"][0, -1, are] - kept["logits"][0, -1, is_]
    (gradient,) = torch.autograd.grad(difference, kept["word"])
    expected = (gradient * kept["word"]).sum(-1)[0].detach().numpy()
    np.testing.assert_allclose(a.objective[0, 0], difference.item(), rtol=1e-9)
    np.testing.assert_allclose(a.scores[0, 0, :-1], expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    assert difference.item() > 0, "the model finds the verb's form"


def contributions(model: Any, ids: list[int], start: np.ndarray, right: int, wrong: int) -> np.ndarray:
    """Return the integrated gradients of a difference of logits by 24 parts of 8 steps each, (position,)."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    rows, origin = model.model.embed_tokens.weight[ids].detach(), torch.tensor(start)
    total = torch.zeros_like(rows)
    for part in range(24):
        places = torch.tensor((part + (nodes + 1) / 2) / 24, dtype=rows.dtype)[:, None, None]
        values = (origin + places * (rows - origin)).requires_grad_(True)
        logits = model.lm_head(model.model(inputs_embeds=values).last_hidden_state[:, -1])
        (gradient,) = torch.autograd.grad((logits[:, right] - logits[:, wrong]).sum(), values)
        total += torch.einsum("s,spd->pd", torch.tensor(weights / 48, dtype=rows.dtype), gradient)
    return (total * (rows - origin)).sum(-1).numpy()


def test_integrated_gradients_keep_the_first_token_and_their_error_bounds_what_they_miss() -> None:
    """From zeros the line wanders, and its error says so: every position loses the states of a first one on the way."""
    model, tokenizer = load_smollm2()
    asked = {"targets": [-1], "contrast": " is", "tokenizer": tokenizer}
    texts, ids = [f"{PROMPTS[0]} are"], tokenizer(PROMPTS[0]).input_ids
    are, is_ = (tokenizer(word).input_ids[-1] for word in (" are", " is"))
    with pytest.warns(embgrad.EmbgradWarning, match="with 50 steps the contributions to 1 of 1 output tokens miss"):
        zero = embgrad.attribute_tokens(
            model, texts, method=embgrad.methods.IntegratedGradients(baseline="zero"), **asked
        )
    assert zero.error is not None
    assert zero.error[0, 0] > abs(zero.objective - zero.baseline_objective)[0, 0], "it bounds nothing"
    assert zero.error[0, 0] >= abs(zero.delta[0, 0])

    a = embgrad.attribute_tokens(model, texts, method=embgrad.methods.IntegratedGradients(tolerance=0.01), **asked)
    method, end = a.provenance["method"], tokenizer.pad_token_id
    assert (method["first_kept"], method["baseline_taken"]) == ([True], [end])
    assert method["reason"][0].startswith(
        "the error from zeros is larger than a quarter of the difference of L: the first token in place"
    )
    difference = (a.objective - a.baseline_objective)[0, 0]
    assert a.error is not None
    assert a.error[0, 0] <= 0.01 * difference

    rows = model.model.embed_tokens.weight[[ids[0]] + [end] * (len(ids) - 1)].detach().numpy()
    exact = contributions(model, ids, rows, are, is_)
    np.testing.assert_allclose(exact.sum(), difference, rtol=1e-3)
    assert abs(a.scores[0, 0].sum() - exact.sum()) <= a.error[0, 0] + 1e-3 * difference
    np.testing.assert_allclose(a.scores[0, 0, : len(ids)], exact, rtol=0, atol=a.error[0, 0])
    assert exact.argmax() == 1, "the keys are many"


def test_the_page_on_generation_shows_what_the_model_says() -> None:
    """Its fences are not run with the others of the page, which has a model of its own."""
    section = (DOCS / "generation.md").read_text(encoding="utf-8").partition("## A model that was trained\n")[2]
    code, shown = re.findall(r"```(?:py|text)\n(.*?)```", section.partition("\n## ")[0], flags=re.DOTALL)
    stream, (model, tokenizer) = io.StringIO(), load_smollm2()
    with contextlib.redirect_stdout(stream):
        exec(code, {"embgrad": embgrad, "model": model, "tokenizer": tokenizer})
    assert difference(shown, stream.getvalue()) is None
