"""S3: padding is not zero, and the table is tied: whose row it is, what reaches it, and what it does to an average."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
import transformers
from embgrad_gluon import import_mxnet

import embgrad

mx = import_mxnet()
IDS = np.array([[2, 17, 30, 3, 0, 0], [2, 41, 8, 17, 55, 3]])
MASK = (IDS != 0).astype(np.int64)
LABELS = np.where(IDS == 17, 23, -100)
SIZES = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 16,
}  # fmt: skip


def torch_model() -> Any:
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)).eval()
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[0] = 0.1  # as in a pretrained one
    return model


def torch_doors(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """The lookup's and the head's share of the table's gradient by hand: the head is untied, its matrix a copy."""
    untied = torch_model()
    untied.load_state_dict(model.state_dict())
    decoder = untied.cls.predictions.decoder
    decoder.weight = torch.nn.Parameter(decoder.weight.detach().clone())
    rows = []
    untied.bert.embeddings.word_embeddings.register_forward_hook(lambda m, i, o: rows.append(o) or o.retain_grad())
    logits = untied(input_ids=torch.tensor(IDS), attention_mask=torch.tensor(MASK)).logits
    torch.nn.functional.cross_entropy(
        logits.reshape(-1, 60), torch.tensor(LABELS).reshape(-1), ignore_index=-100, reduction="sum"
    ).backward()
    lookup = np.zeros((60, 24), np.float32)
    np.add.at(lookup, IDS, rows[0].grad.numpy())
    return lookup, decoder.weight.grad.numpy()


def tensorflow_model() -> Any:
    tf.keras.utils.set_random_seed(0)
    model = transformers.TFBertForMaskedLM(transformers.BertConfig(**SIZES))
    model({"input_ids": tf.constant(IDS)})
    return model


def tensorflow_doors(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """By hand: the tape's dense total, and the lookup's share from `inputs_embeds`, which BERT takes as they are."""
    table = model.bert.embeddings.weight
    rows = tf.Variable(tf.gather(table, IDS))

    def loss(**inputs: Any) -> Any:
        logits = model(input_ids=inputs.pop("input_ids", None), attention_mask=tf.constant(MASK), **inputs).logits
        chosen = tf.gather_nd(logits, np.argwhere(LABELS >= 0))
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS[LABELS >= 0], chosen))

    with tf.GradientTape() as tape:
        total = loss(input_ids=tf.constant(IDS))
    whole = tf.convert_to_tensor(tape.gradient(total, table)).numpy()
    with tf.GradientTape() as tape:
        total = loss(inputs_embeds=rows)
    lookup = np.zeros((60, 24), np.float32)
    np.add.at(lookup, IDS, tape.gradient(total, rows).numpy())
    return lookup, whole - lookup


def gluon_model() -> Any:
    import gluonnlp

    mx.random.seed(0)
    encoder = gluonnlp.model.BERTEncoder(
        num_layers=2, units=24, hidden_size=48, max_length=16, num_heads=2, dropout=0.0
    )
    net = gluonnlp.model.BERTModel(
        encoder, 60, token_type_vocab_size=2, units=24, embed_size=24, use_pooler=False, use_decoder=True,
        use_classifier=False,
    )  # fmt: skip
    net.initialize(mx.init.Normal(0.2))
    return net


def encoded(net: Any, inputs: Any) -> Any:
    return net._encode_sequence(*inputs)[0]


def decoded(net: Any, inputs: Any) -> Any:
    ids, types, lengths = inputs
    return net(ids, types, lengths, mx.nd.array(np.argwhere(LABELS >= 0)[:, 1].reshape(2, 1)))[-1].reshape((2, 60))


def gluon_doors(net: Any) -> tuple[np.ndarray, np.ndarray]:
    """By hand: the marked output of the Embedding, and the table itself, with one `autograd.grad`."""
    rows = []
    hook = net.word_embed[0].register_forward_hook(lambda block, inputs, out: out.attach_grad() or rows.append(out))
    table = net.word_embed[0].weight.data()
    inputs = (mx.nd.array(IDS), mx.nd.zeros((2, 6)), mx.nd.array(MASK.sum(1)))
    with mx.autograd.record(train_mode=False):
        losses = mx.gluon.loss.SoftmaxCrossEntropyLoss()(decoded(net, inputs), mx.nd.array([23, 23]))
    hook.detach()
    lookup_rows, head = mx.autograd.grad(losses, [rows[0], table], head_grads=mx.nd.ones(2), train_mode=False)
    lookup = np.zeros((60, 24), np.float32)
    np.add.at(lookup, IDS, lookup_rows.asnumpy())
    return lookup, head.asnumpy()


def case(framework: str) -> tuple[Any, Any, dict[str, Any], tuple[np.ndarray, np.ndarray]]:
    """A tied model, the objective, options, and the two doors by hand."""
    if framework == "torch":
        model = torch_model()
        return model, embgrad.CrossEntropy(LABELS), {}, torch_doors(model)
    if framework == "tensorflow":
        model = tensorflow_model()
        return model, embgrad.CrossEntropy(LABELS), {}, tensorflow_doors(model)
    net = gluon_model()
    return net, embgrad.CrossEntropy([23, 23]), {"call": decoded}, gluon_doors(net)


def batch(framework: str) -> embgrad.TokenBatch:
    return embgrad.TokenBatch(IDS, MASK, convention="gluonnlp" if framework == "gluon" else "huggingface")


FRAMEWORKS = pytest.mark.parametrize("framework", ["torch", "tensorflow", "gluon"])


@FRAMEWORKS
def test_seed_padding_and_tying(framework: str) -> None:
    model, objective, options, (lookup, head) = case(framework)
    ledger = embgrad.tables.table_gradients(model, batch(framework), objective, **options)
    for found, expected in ((ledger.lookup, lookup), (ledger.head, head), (ledger.total, lookup + head)):
        np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(lookup + head).max())
    assert ledger.apart is not None
    assert ledger.apart < 1e-5
    report = embgrad.metrics.padding_report(model, batch(framework), objective, **options)
    assert (report.pad_id, report.pads, report.positions) == (0, 2, 12)
    assert not report.row_is_zero
    assert report.doors == ("head",)
    assert report.head == pytest.approx(float(np.linalg.norm(head[0])), rel=1e-4)
    assert report.pad_leak < 1e-8
    assert report.mask_taken


@FRAMEWORKS
def test_seed_padding_and_tying_names_what_shares_the_memory(framework: str) -> None:
    model, objective, options, _ = case(framework)
    ledger = embgrad.tables.table_gradients(model, batch(framework), objective, **options)
    assert ledger.names[0] in embgrad.tables.parameter_gradients(model, batch(framework), objective, **options)
    if framework == "torch":
        assert set(ledger.names) == {"bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"}
        assert ledger.padding == 0


def test_seed_padding_and_tying_a_plain_embedding_with_padding_idx() -> None:
    """The published belief holds where there is no head and no mask: PyTorch drops the row's gradient, which is there."""

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(60, 8, padding_idx=0)
            self.head = torch.nn.Linear(8, 2)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(input_ids).mean(1))

    torch.manual_seed(0)
    model = Plain()
    with pytest.warns(embgrad.EmbgradWarning, match="cannot take the mask"):
        report = embgrad.metrics.padding_report(model, embgrad.TokenBatch(IDS, MASK), embgrad.Sum())
    assert report.row_is_zero
    assert report.declared == 0
    assert report.doors == ("lookup at padding",)
    assert report.own == 0.0
    share = model.head.weight.detach().numpy().sum(0) / 6
    assert report.at_pads == pytest.approx(2 * float(np.linalg.norm(share)), rel=1e-5)
    assert report.pad_leak == pytest.approx(float(np.abs(share).max()), rel=1e-5)
    assert report.saliency_off == pytest.approx(0.0, abs=1e-6)


@FRAMEWORKS
def test_seed_padding_and_tying_invariance(framework: str) -> None:
    """More padding, and other examples, change nothing but padding."""
    objective = embgrad.Projection(np.linspace(-1, 1, 24), output="sequence", position=1)
    if framework == "gluon":
        net = gluon_model()
        model, call = net, lambda _, inputs: {"sequence_output": encoded(net, inputs)}
    else:
        model, call = {"torch": torch_model, "tensorflow": tensorflow_model}[framework]().bert, None
    whole = embgrad.gradients(model, batch(framework), objective, call=call)
    wide = embgrad.TokenBatch(
        np.pad(IDS, ((0, 0), (0, 3))), np.pad(MASK, ((0, 0), (0, 3))), convention=batch(framework).convention
    )
    padded = embgrad.gradients(model, wide, objective, call=call)
    scale = np.abs(whole.values).max()
    np.testing.assert_allclose(padded.values[:, :6], whole.values, atol=1e-5 * scale)
    assert np.abs(padded.values[:, 6:]).max() <= 1e-8
    for example in range(2):
        alone = slice(example, example + 1)
        one = embgrad.gradients(model, batch(framework)[alone], objective, call=call)
        np.testing.assert_allclose(one.values, whole.values[alone], atol=1e-5 * scale)
    zeroed = embgrad.gradients(model, batch(framework), objective, call=call, pads="zero")
    assert not zeroed.values[MASK == 0].any()
