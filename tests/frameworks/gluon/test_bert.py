"""gluonnlp's BERT: gradients of it, its outputs by name, and loading a Hugging Face checkpoint into it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from embgrad_gluon import GluonBackend
from embgrad_gluon.bert import build
from embgrad_gluon.importing import import_gluonnlp

import embgrad
from embgrad.errors import BatchError, OutputError, UnsupportedError
from tests.frameworks.gluon.helpers import central_differences, mx, randomise, relative
from tests.support import loaded_bert
from tests.support.bert_by_hand import bert_by_hand, random_weights
from tests.support.loaded_bert import DescribedBert

nlp = import_gluonnlp()

CONFIG = {**loaded_bert.CONFIG, "layer_norm_eps": 1e-6}
BATCH = loaded_bert.BATCH
IDS, MASK, TYPES = BATCH.ids, BATCH.mask, BATCH.types


def bert(**options: Any) -> Any:
    encoder = nlp.model.BERTEncoder(
        num_layers=2, units=8, hidden_size=12, max_length=10, num_heads=2, dropout=0.1, **options.pop("encoder", {})
    )
    settings = {"use_pooler": True, "use_decoder": False, "use_classifier": False, **options}
    net = nlp.model.BERTModel(encoder, vocab_size=23, token_type_vocab_size=2, units=8, embed_size=8, **settings)
    net.initialize(mx.init.Zero())
    one = mx.nd.zeros((1, 2))
    net(one, one, mx.nd.ones((1,)), one)
    randomise(net)
    return net


def loaded(act: str = "gelu") -> Any:
    net, targets = build({**CONFIG, "hidden_act": act})
    weights = weights_of(CONFIG)
    for target in targets:
        target.put(weights[target.source])
    return net


def by_differences(act: str, cotangent: np.ndarray, number: int) -> np.ndarray:
    """Return the gradient at the lookup by finite differences of the same BERT in NumPy, in float64."""
    weights = {name: value.astype(np.float64) for name, value in weights_of(CONFIG).items()}
    rows = weights["embeddings.word_embeddings.weight"][IDS]
    config = {**CONFIG, "hidden_act": act}

    def value(rows: np.ndarray) -> float:
        return float((bert_by_hand(weights, config, rows, MASK, TYPES)[number] * cotangent).sum())

    return central_differences(value, rows, 1e-5)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("output", ["pooled", "sequence"])
@pytest.mark.parametrize("act", ["gelu", "relu"])
def test_gradient_of_bert(act: str, output: str, hybrid: bool) -> None:
    net = loaded(act)
    vector = np.random.default_rng(0).normal(size=8)
    cotangent = np.tile(vector, (2, 1)) if output == "pooled" else MASK[..., None] * vector
    expected = by_differences(act, cotangent, 1 if output == "pooled" else 0)
    if hybrid:
        net.hybridize(static_alloc=True)
    for given in (BATCH, BATCH.to_gluonnlp()):
        found = embgrad.gradients(net, given, embgrad.Projection(vector, output=output))
        assert relative(found.values, expected) < 1e-4
        assert found.pad_leak == 0
        assert found.provenance["unused"] == []
        assert found.provenance["path"] == "word_embed.0#0"


def test_types_and_lengths_may_be_omitted() -> None:
    net = bert()
    short = embgrad.TokenBatch(IDS[:1])
    found = embgrad.gradients(net, short, embgrad.Sum(output="pooled")).values
    types = embgrad.TokenBatch(IDS[:1], None, np.zeros((1, 5)))
    assert (embgrad.gradients(net, types, embgrad.Sum(output="pooled")).values == found).all()
    with pytest.raises(BatchError, match=r"has 11 tokens, and the model takes 10 positions"):
        embgrad.gradients(net, np.ones((1, 11), int), embgrad.Sum(output="pooled"))
    with pytest.raises(BatchError, match=r"index 2 .*'token_type_embed.0' has 2 rows.*a type beyond its types"):
        embgrad.gradients(net, embgrad.TokenBatch(IDS, MASK, TYPES * 2), embgrad.Sum(output="pooled"))


def test_bert_outputs_follow_from_how_it_was_built() -> None:
    cotangents = {}

    def names(net: Any, *asked: str | None, **extras: Any) -> list[tuple[int, ...]]:
        def respond(outputs: Any) -> Any:
            cotangents.update({name: np.ones(value.shape) for name, value in outputs.items()})
            return [{name: np.ones(value.shape) for name, value in outputs.items()}]

        cotangents.clear()
        GluonBackend().run(
            net,
            BATCH.replace(extras=extras),
            embgrad.backend.Request(("word",), (embgrad.backend.Callback(respond, asked),)),
        )
        return [cotangents[name].shape for name in asked]

    full = bert(use_decoder=True, use_classifier=True)
    masked = mx.nd.array([[1], [2]])
    shapes = names(full, "sequence", "pooled", "classifier", "logits", None, masked_positions=masked)
    assert shapes == [(2, 5, 8), (2, 8), (2, 2), (2, 1, 23), (2, 1, 23)]
    assert names(bert(use_pooler=False), "sequence", None) == [(2, 5, 8), (2, 5, 8)]
    with_attention = bert(encoder={"output_attention": True})
    assert names(with_attention, "sequence_output", "attention.1.0", "pooled_output")[::2] == [(2, 5, 8), (2, 8)]
    with pytest.raises(OutputError, match=r"'sequence_output' .role 'sequence'., 'pooled_output' .role 'pooled'."):
        embgrad.gradients(bert(), BATCH, embgrad.Sum())


def test_bert_inside_other_models() -> None:
    net = nlp.model.BERTClassifier(bert(), num_classes=3, dropout=0.1)
    net.classifier.initialize()
    found = embgrad.gradients(net, BATCH, embgrad.CrossEntropy([0, 2]))
    assert found.provenance["path"] == "bert.word_embed.0#0"
    assert found.values.any()
    wide = nlp.model.RoBERTaModel(
        nlp.model.BERTEncoder(num_layers=1, units=8, hidden_size=12, max_length=10, num_heads=2),
        vocab_size=23, units=8, embed_size=8, use_decoder=False,
    )  # fmt: skip
    wide.initialize()
    found = embgrad.gradients(wide, embgrad.TokenBatch(IDS, MASK), embgrad.Sum(output="sequence"))
    assert found.provenance["unused"] == []
    assert found.pad_leak < 1e-7


# Loading


class TestLoaded(DescribedBert):
    framework = "gluon"

    def outputs(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        sequence, pooled = model(*(mx.nd.array(part, dtype="float32") for part in BATCH.to_gluonnlp()))
        return sequence.asnumpy(), pooled.asnumpy()


def weights_of(config: dict[str, Any]) -> dict[str, np.ndarray]:
    return random_weights(config, np.random.default_rng(0))


def test_a_dropout_of_attention_that_gluonnlp_does_not_have_is_refused() -> None:
    message = "attention_probs_dropout_prob 0.2.*only 0.1, the value of hidden_dropout_prob"
    with pytest.raises(UnsupportedError, match=message):
        build({**CONFIG, "attention_probs_dropout_prob": 0.2})


def test_loading_moves_no_random_numbers_of_mxnet() -> None:
    def drawn(load: bool) -> float:
        mx.random.seed(5)
        if load:
            build(CONFIG)
        return float(mx.nd.random.uniform().asscalar())

    assert drawn(True) == drawn(False)
