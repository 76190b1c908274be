"""Attributions of output tokens in small language models of Hugging Face, and LogProbability beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

import embgrad
from embgrad import EmbgradWarning, LogProbability, TokenBatch, attribute_tokens

VOCAB = 60
RANDOM = np.random.default_rng(3)
IDS = RANDOM.integers(3, VOCAB, (3, 8))
MASK = np.array([[1] * 8, [0] * 3 + [1] * 5, [1] * 6 + [0] * 2])
BATCH = TokenBatch(IDS, MASK)
EXACT = {"rtol": 0, "atol": 1e-12}


def gpt2(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": VOCAB, "n_positions": 32}
    ends = {"eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **ends, "initializer_range": 0.4, **options})).double().eval()


def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB, **sizes, initializer_range=0.4, max_position_embeddings=32, pad_token_id=0)
    return LlamaForCausalLM(config).double().eval()


def t5() -> Any:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    config = T5Config(vocab_size=VOCAB, **sizes, decoder_start_token_id=0, eos_token_id=1, pad_token_id=0)
    return T5ForConditionalGeneration(config).double().eval()


def bart() -> Any:
    torch.manual_seed(0)
    halves = {f"{half}_{what}": 2 for half in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes = {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32, "init_std": 0.3}
    ends = {"decoder_start_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 2}
    config = BartConfig(vocab_size=VOCAB, d_model=16, **halves, **sizes, **ends, forced_eos_token_id=None)
    return BartForConditionalGeneration(config).double().eval()


def tokenizer(side: str = "right") -> Any:
    """Return a fast tokenizer whose tokens are words, w3 to w59."""
    words = {"<pad>": 0, "<end>": 1, "<start>": 2, **{f"w{number}": number for number in range(3, VOCAB)}}
    fast = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="<pad>", eos_token="<end>", bos_token="<start>", padding_side=side
    )


def alone(example: int) -> np.ndarray:
    return IDS[example : example + 1, MASK[example] == 1]


def log_softmax(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor(ids)).logits, -1)[0].numpy()


# The objective.


@pytest.mark.parametrize("against", [None, (IDS + 1) % VOCAB], ids=["alone", "against"])
def test_the_log_probability_and_its_gradient_are_those_of_pytorch(against: Any) -> None:
    model = gpt2()
    labels = np.where(MASK, IDS, -100)
    labels[0, 3] = -100
    positions = np.maximum(MASK.cumsum(1) - 1, 0)
    batch = {"input_ids": IDS, "attention_mask": MASK, "position_ids": positions}
    result = embgrad.gradients(model, batch, LogProbability(labels, against=against))
    native = {name: torch.tensor(value) for name, value in batch.items()}
    rows = model.transformer.wte.weight.detach()[native.pop("input_ids")].requires_grad_()
    each = torch.log_softmax(model(inputs_embeds=rows, **native).logits[:, :-1], -1)
    counts = (labels[:, 1:] != -100) & (MASK[:, :-1] == 1)
    chosen = torch.tensor(np.where(labels == -100, 0, labels))[:, 1:, None]
    value = each.gather(-1, chosen)
    if against is not None:
        value = value - each.gather(-1, torch.tensor(against)[:, 1:, None])
    values = (value[..., 0] * torch.tensor(counts)).sum(1)
    np.testing.assert_allclose(result.objective, values.detach().numpy(), rtol=1e-10)
    np.testing.assert_allclose(result.values, torch.autograd.grad(values.sum(), rows)[0].numpy(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_continuation_of_prompts_is_counted_in_the_texts(side: str) -> None:
    model, words = llama(), tokenizer(side)
    texts = ["w5 w6 w7 w8 w9", "w11 w8 w9"]
    batch = embgrad.encode(texts, words)
    result = embgrad.gradients(model, batch, LogProbability.of(" w8 w9", words))
    for example, text in enumerate(texts):
        ids = np.array([[int(word[1:]) for word in text.split()]])
        each = log_softmax(model, ids)
        # Llama computes its rotations in float32, and padding on the left moves the positions.
        assert result.objective[example] == pytest.approx(each[-3, 8] + each[-2, 9], rel=1e-6)


def test_the_labels_of_training_count_in_a_masked_language_model() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForMaskedLM(BertConfig(vocab_size=VOCAB, **sizes)).double().eval()
    labels = np.full(IDS.shape, -100)
    labels[:, 4] = [5, 6, 7]
    values = embgrad.evaluate(model, {"input_ids": IDS}, LogProbability(labels, shift=False))
    loss = model(torch.tensor(IDS), labels=torch.tensor(labels)).loss
    assert values.mean() == pytest.approx(-loss.item(), rel=1e-12)


# Causal language models.


@pytest.mark.parametrize("generate", [4, {"max_new_tokens": 4, "do_sample": False, "num_beams": 2}])
@pytest.mark.parametrize("build", [gpt2, llama])
def test_prompts_of_different_lengths_are_continued(build: Any, generate: Any) -> None:
    model = build()
    result = attribute_tokens(model, BATCH, generate=generate)
    arguments = generate if isinstance(generate, dict) else {"max_new_tokens": generate, "do_sample": False}
    assert (result.outputs[:, 0] == 8).all()
    for example in range(3):
        ids = model.generate(torch.tensor(alone(example)), **arguments).numpy()
        prompt = int(MASK[example].sum())
        real = result.real[example]
        np.testing.assert_array_equal(result.ids[example][real], ids[0])
        single = attribute_tokens(model, ids, targets=slice(prompt, None))
        count = single.shape[1]
        np.testing.assert_allclose(result.scores[example, :count][:, real], single.scores[0], **EXACT)


def test_texts_are_continued_up_to_the_end_of_a_text() -> None:
    model, words = gpt2(), tokenizer()
    prompts = ["w5 w6 w7", "w9"]
    plain = attribute_tokens(model, prompts, generate=5, tokenizer=words)
    assert plain.output_tokens is not None
    assert plain.output_tokens[0] == tuple(f"w{id_}" for id_ in plain.output_ids[0])
    end = int(plain.output_ids[0, 2])
    for options in ({"max_new_tokens": 5, "do_sample": False, "eos_token_id": end}, 5):
        if options == 5:
            model.generation_config.eos_token_id = [end, 1]
        result = attribute_tokens(model, prompts, generate=options, tokenizer=words)
        count = int((plain.output_ids[0] == end).argmax()) + 1
        np.testing.assert_array_equal(result.output_ids[0][result.outputs[0] >= 0], plain.output_ids[0, :count])
        np.testing.assert_allclose(result.scores[0, 0, :3], plain.scores[0, 0, :3], **EXACT)


def test_a_configuration_of_the_generation_and_its_whole_output_are_accepted() -> None:
    model = gpt2()
    plain = attribute_tokens(model, BATCH, generate=5)
    end = int(plain.output_ids[0, 2])
    config = GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=end, pad_token_id=0)
    result = attribute_tokens(model, BATCH, generate={"generation_config": config, "return_dict_in_generate": True})
    count = int((plain.output_ids[0] == end).argmax()) + 1
    np.testing.assert_array_equal(result.output_ids[0][result.outputs[0] >= 0], plain.output_ids[0, :count])


# Encoder-decoders.

SOURCE = RANDOM.integers(3, VOCAB, (2, 6))
SOURCE_MASK = np.array([[1] * 6, [1] * 4 + [0] * 2])
DECODER = np.array([[0, 7, 8, 9, 10], [0, 21, 22, 0, 0]])
DECODER_MASK = np.array([[1] * 5, [1, 1, 1, 0, 0]])
ENCODER = {"input_ids": SOURCE, "attention_mask": SOURCE_MASK}
PAIR = {**ENCODER, "decoder_input_ids": DECODER, "decoder_attention_mask": DECODER_MASK}


def by_hand(model: Any, output: int) -> tuple[float, np.ndarray, np.ndarray]:
    """PyTorch's own log-probability of a decoder's token of the first pair, and input × gradient of both sides."""
    table = model.get_input_embeddings()
    scale = getattr(table, "embed_scale", 1.0)
    sides = [table.weight.detach()[torch.tensor(ids[:1])].requires_grad_() for ids in (SOURCE, DECODER)]
    logits = model(inputs_embeds=sides[0] * scale, decoder_inputs_embeds=sides[1] * scale).logits
    value = torch.log_softmax(logits, -1)[0, output, DECODER[0, output + 1]]
    gradients = torch.autograd.grad(value, sides)
    products = [(g * rows).sum(-1).detach().numpy()[0] for g, rows in zip(gradients, sides, strict=True)]
    return value.item(), products[0], products[1]


@pytest.mark.parametrize("build", [t5, bart])
def test_both_sides_of_an_encoder_decoder_get_their_gradients(build: Any) -> None:
    model = build()
    result = attribute_tokens(model, PAIR)
    assert result.decoder_scores is not None
    assert result.scores.shape == (2, 4, 6)
    assert result.decoder_scores.shape == (2, 4, 5)
    for output in range(4):
        value, source, decoder = by_hand(model, output)
        assert result.objective[0, output] == pytest.approx(value, rel=1e-10)
        np.testing.assert_allclose(result.scores[0, output], source, rtol=0, atol=1e-11)
        np.testing.assert_allclose(result.decoder_scores[0, output], decoder, rtol=0, atol=1e-11)


def test_a_path_through_the_jump_of_a_norm_at_zero_is_a_warning() -> None:
    # T5 divides by the root mean square, so that L jumps where all embeddings are zero.
    with pytest.warns(EmbgradWarning, match="the contributions to 6 of 6 output tokens miss the difference of L"):
        attribute_tokens(t5(), PAIR, method=embgrad.methods.IntegratedGradients(100))


@pytest.mark.parametrize("build", [t5, bart])
def test_an_encoder_decoder_generates_its_output(build: Any) -> None:
    model = build()
    result = attribute_tokens(model, ENCODER, generate=4)
    native = {name: torch.tensor(value) for name, value in ENCODER.items()}
    ids = model.generate(**native, max_new_tokens=4, do_sample=False).numpy()
    np.testing.assert_array_equal(result.decoder_ids, ids)
    assert result.decoder_ids is not None
    given = attribute_tokens(
        model, {**ENCODER, "decoder_input_ids": ids, "decoder_attention_mask": result.decoder_mask}
    )
    np.testing.assert_allclose(result.scores, given.scores, **EXACT)
    np.testing.assert_allclose(result.decoder_scores, given.decoder_scores, **EXACT)
    np.testing.assert_array_equal(result.outputs[:, 0], [1, 1])


# Spans, and contrasts of several tokens.


def _log_probability(model: Any, ids: np.ndarray, start: int, **inputs: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return L of the ids from `start` on, and the rows of both embeddings, by PyTorch alone."""
    tables = model.get_input_embeddings().weight.detach()
    rows = [tables[torch.tensor(ids)].requires_grad_()]
    if inputs:
        rows = [tables[inputs["input_ids"]].requires_grad_(), *rows]
        logits = model(inputs_embeds=rows[0], decoder_inputs_embeds=rows[1]).logits
    else:
        logits = model(inputs_embeds=rows[0]).logits
    each = torch.log_softmax(logits[0, start - 1 : -1], -1)
    return each.gather(-1, torch.tensor(ids[0, start:, None])).sum(), rows


@pytest.mark.parametrize("build", [gpt2, llama])
@pytest.mark.parametrize("method", ["saliency", "input_x_gradient"])
@pytest.mark.parametrize("length", [1, 3, 6])
def test_a_span_against_a_continuation_has_the_gradients_of_pytorch(build: Any, method: str, length: int) -> None:
    model, contrast = build(), RANDOM.integers(3, VOCAB, length)
    wanted = [[slice(4, 7)], [slice(2, 5)], [slice(4, 6)]]
    result = attribute_tokens(model, BATCH, wanted, [[contrast.tolist()]], method)
    assert result.contrast_scores is not None
    for example, (span,) in enumerate(wanted):
        ids, real = alone(example), np.flatnonzero(MASK[example])
        other = np.concatenate([ids[:, : span.start], contrast[None]], 1)
        sides = [_log_probability(model, own, span.start) for own in (ids[:, : span.stop], other)]
        first, second = (torch.autograd.grad(value, rows)[0][0].numpy() for value, rows in sides)
        values = [rows[0][0].detach().numpy() for _, rows in sides]
        np.testing.assert_allclose(result.objective[example, 0], (sides[0][0] - sides[1][0]).item(), rtol=1e-10)
        own = second[span.start :]
        first[: span.start] -= second[: span.start]
        reduce = (lambda g, v: np.linalg.norm(g, axis=-1)) if method == "saliency" else (lambda g, v: (g * v).sum(-1))
        expected = np.zeros(8)
        expected[real[: span.stop]] = reduce(first, values[0])
        np.testing.assert_allclose(result.scores[example, 0], expected, **EXACT)
        np.testing.assert_allclose(result.contrast_scores[example, 0], reduce(-own, values[1][span.start :]), **EXACT)


@pytest.mark.parametrize("build", [t5, bart])
@pytest.mark.parametrize("contrast", [None, [9, 10, 11, 12]], ids=["alone", "against"])
def test_a_span_of_a_decoder_has_the_gradients_of_pytorch(build: Any, contrast: Any) -> None:
    model, source, target = build(), IDS[:1], np.concatenate([[[2]], IDS[1:2, :5]], 1)
    batch = {"input_ids": source, "decoder_input_ids": target}
    result = attribute_tokens(model, batch, [slice(2, 5)], None if contrast is None else [[contrast]])
    rows = [target[:, :5]] if contrast is None else [target[:, :5], np.array([[*target[0, :2], *contrast]])]
    encoder, decoder = np.zeros(8), np.zeros(6)
    objective = 0.0
    for sign, ids in zip((1, -1), rows, strict=False):
        value, embedded = _log_probability(model, ids, 2, input_ids=torch.tensor(source))
        gradients = torch.autograd.grad(value, embedded)
        products = [
            (gradient * own.detach()).sum(-1)[0].numpy() for gradient, own in zip(gradients, embedded, strict=True)
        ]
        # BART scales its embeddings inside of the module, so that the gradient times the row is the same.
        encoder += sign * products[0]
        decoder[: 5 if sign == 1 else 2] += sign * products[1][: 5 if sign == 1 else 2]
        objective += sign * value.item()
    assert result.decoder_scores is not None
    np.testing.assert_allclose(result.objective[0, 0], objective, rtol=1e-10)
    np.testing.assert_allclose(result.scores[0, 0], encoder, **EXACT)
    np.testing.assert_allclose(result.decoder_scores[0, 0], decoder, **EXACT)
