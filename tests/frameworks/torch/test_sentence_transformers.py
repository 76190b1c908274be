"""sentence-transformers' models as they are: a forward that takes one dict, a tokenizer of their own, and outputs by role."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

import embgrad

TEXTS = ["a gripping film", "the plot is thin but the film is gripping"]
PAIRS = [("a film", "two hours"), ("the plot", "is")]
#: A sum would do for no model that ends in a layer norm: it is always 0.
DIRECTION = np.random.default_rng(0).normal(size=16)
POOLED = embgrad.Projection(DIRECTION, output="pooled")


def saved(model: Any, tokenizer: PreTrainedTokenizerFast) -> str:
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config(**options: Any) -> BertConfig:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return BertConfig(vocab_size=60, **sizes, **options)


@pytest.fixture
def sentences(tokenizer: PreTrainedTokenizerFast) -> SentenceTransformer:
    """A BERT, the mean over real positions, and unit length, in float64."""
    transformer = Transformer(saved(BertModel(config()), tokenizer))
    modules = [transformer, Pooling(16), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu").double().eval()


@pytest.fixture
def scorer(tokenizer: PreTrainedTokenizerFast) -> CrossEncoder:
    model = BertForSequenceClassification(config(num_labels=1))
    return CrossEncoder(saved(model, tokenizer), device="cpu").double().eval()


def inner(model: Any) -> Any:
    """The transformers model, found by its class."""
    return next(module for module in model.modules() if type(module).__name__.startswith("Bert"))


def rows_of(bert: Any, encoded: Any) -> torch.Tensor:
    return bert.get_input_embeddings().weight.detach()[encoded["input_ids"]].requires_grad_()


def by_hand(bert: Any, encoded: Any, direction: np.ndarray) -> np.ndarray:
    """The gradient of the unit mean's inner product with a direction, of the inner BERT called by hand."""
    rows = rows_of(bert, encoded)
    others = {name: value for name, value in encoded.items() if name != "input_ids"}
    hidden = bert(inputs_embeds=rows, **others).last_hidden_state
    mask = encoded["attention_mask"][..., None].to(hidden.dtype)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    value = (torch.nn.functional.normalize(mean, dim=1) * torch.tensor(direction)).sum()
    return torch.autograd.grad(value, rows)[0].numpy()


def test_a_sentence_encoder_is_its_inner_transformer_by_hand(
    sentences: SentenceTransformer, tokenizer: PreTrainedTokenizerFast
) -> None:
    encoded = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    result = embgrad.gradients(sentences, encoded, POOLED)
    np.testing.assert_allclose(result.values, by_hand(inner(sentences), encoded, DIRECTION), rtol=1e-10, atol=1e-15)
    embedding = sentences.encode(TEXTS, convert_to_numpy=True)
    np.testing.assert_allclose(result.objective, embedding @ DIRECTION, rtol=1e-6)
    assert result.provenance["path"].endswith("embeddings.word_embeddings#0")
    assert result.provenance["unused"] == []


def test_texts_go_through_its_own_tokenizer(sentences: SentenceTransformer, tokenizer: PreTrainedTokenizerFast) -> None:
    """Cut off where it cuts them off itself."""
    sentences.max_seq_length = 6
    encoded = tokenizer(TEXTS, padding=True, truncation=True, max_length=6, return_tensors="pt")
    result = embgrad.gradients(sentences, TEXTS, POOLED)
    assert result.ids.tolist() == encoded["input_ids"].tolist() == sentences.tokenize(TEXTS)["input_ids"].tolist()
    assert result.tokens is not None
    assert list(result.tokens[0]) == tokenizer.convert_ids_to_tokens(encoded["input_ids"][0].tolist())
    expected = embgrad.gradients(sentences, encoded, POOLED)
    np.testing.assert_array_equal(result.values, expected.values)
    assert [word.text for word in result.words()[0]][1:3] == ["a", "gripping"]


@pytest.mark.parametrize("way", ["the transformer inside", "the model", "the model in place"])
def test_a_compiled_sentence_encoder(sentences: SentenceTransformer, way: str) -> None:
    at = ["word", "embeddings", "layer.-1"]
    plain, names = embgrad.gradients(sentences, TEXTS, POOLED, at=at), dict(sentences.named_modules())
    if way == "the transformer inside":
        path = next(path for path, module in names.items() if module is inner(sentences))
        parent, _, name = path.rpartition(".")
        setattr(names[parent], name, torch.compile(names[path], backend="eager"))
    compiled = torch.compile(sentences, backend="eager") if way == "the model" else sentences
    if way == "the model in place":
        sentences.compile(backend="eager")
    for name, result in embgrad.gradients(compiled, TEXTS, POOLED, at=at).items():
        np.testing.assert_array_equal(result.values, plain[name].values)
        assert result.provenance["path"] == plain[name].provenance["path"]


@pytest.mark.parametrize("texts", [True, False])
def test_a_cross_encoder(scorer: CrossEncoder, tokenizer: PreTrainedTokenizerFast, texts: bool) -> None:
    """Its scores are the logits of the model inside, and pairs go through its own tokenizer."""
    encoded = tokenizer(
        [a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True, truncation=True, return_tensors="pt"
    )
    bert = inner(scorer)
    rows = rows_of(bert, encoded)
    others = {name: value for name, value in encoded.items() if name != "input_ids"}
    logits = bert(inputs_embeds=rows, **others).logits
    expected = torch.autograd.grad(logits.sum(), rows)[0].numpy()
    result = embgrad.gradients(scorer, PAIRS if texts else encoded, embgrad.Sum())
    np.testing.assert_allclose(result.values, expected, rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(result.objective, logits.detach().numpy()[:, 0], rtol=1e-12)
    assert (result.mask == 0).any()
    by_role = embgrad.gradients(scorer, encoded, embgrad.Logit(0, output="logits"))
    np.testing.assert_array_equal(by_role.values, result.values)


class OlderCrossEncoder:
    """As in sentence-transformers before 4: no module, which holds the model, its tokenizer and a length."""

    def __init__(self, model: Any, tokenizer: Any, max_length: int | None) -> None:
        self.model, self.tokenizer, self.max_length = model, tokenizer, max_length


def test_a_cross_encoder_that_is_no_module(tokenizer: PreTrainedTokenizerFast) -> None:
    model = BertForSequenceClassification(config(num_labels=1)).eval()
    older = OlderCrossEncoder(model, tokenizer, 7)
    result = embgrad.gradients(older, PAIRS, embgrad.Sum())
    encoded = embgrad.encode(PAIRS, tokenizer, max_length=7)
    np.testing.assert_array_equal(result.values, embgrad.gradients(model, encoded, embgrad.Sum()).values)
    assert result.ids.shape == (2, 7)
    assert {point.key for point in embgrad.points(older, encoded)} >= {"bert.embeddings.word_embeddings#0"}
    parameters = embgrad.tables.parameter_gradients(older, encoded, embgrad.Sum())
    assert "bert.embeddings.word_embeddings.weight" in parameters
    with embgrad.capture(older) as tap:
        model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.sum().backward()
    assert len(tap.steps) == 1
