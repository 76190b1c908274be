"""The gradient of attention in few passes, against TensorFlow's own and finite differences, and where there is none."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import transformers
from embgrad_tensorflow import attending
from tensorflow.python.eager import record

import embgrad
from tests.tensorflow.helpers import KERAS, assert_slopes, halved, own_of_sum, own_table_gradient, recorded_halved

EXAMPLES, POSITIONS, HEADS, DIM = 3, 5, 2, 4
IDS = np.random.default_rng(0).permutation(20)[: EXAMPLES * POSITIONS].reshape(EXAMPLES, POSITIONS)

#: Of queries, keys and values, (example, head, position, dim), and a mask, (example, 1, 1, position).
Function = Callable[[Any, Any, Any, Any], Any]


class Attending(tf.Module):
    """Rows → what attention gives → one number an example."""

    def __init__(self, function: Function, dtype: str = "float64") -> None:
        super().__init__()
        random = np.random.default_rng(1)
        self.table = tf.Variable(random.normal(size=(20, HEADS * DIM)), dtype=dtype)
        self.kernels = [
            tf.Variable(random.normal(size=(HEADS * DIM, HEADS * DIM)) / 2, dtype=dtype, name=f"kernel_{number}")
            for number in range(3)
        ]
        self.weights = tf.constant(random.normal(size=(EXAMPLES, HEADS, POSITIONS, DIM)), dtype=dtype)
        self.function = function

    def __call__(self, input_ids: Any, **_: Any) -> Any:
        rows = tf.tanh(tf.nn.embedding_lookup(self.table, input_ids))
        shape = (EXAMPLES, POSITIONS, HEADS, DIM)
        heads = [tf.transpose(tf.reshape(rows @ one, shape), (0, 2, 1, 3)) for one in self.kernels]
        mask = tf.cast(tf.reshape(input_ids, (EXAMPLES, 1, 1, POSITIONS)) % 3 == 0, rows.dtype)
        given = self.function(*heads, -4 * mask)
        return tf.reduce_sum(tf.sin(given) * self.weights, [1, 2, 3])


def scores(q: Any, k: Any) -> Any:
    return tf.matmul(q, k, transpose_b=True)


def by_hand(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(scores(q, k) / tf.sqrt(tf.constant(DIM, q.dtype)) + mask) @ v


def as_in_transformers(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """A small number is added, and dropout in evaluation mode is an identity."""
    whole = tf.add(tf.divide(scores(q, k), tf.constant(2.0, q.dtype)), mask)
    return tf.matmul(tf.identity(tf.nn.softmax(whole + 1e-9)), v)


def multiplied(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(mask + 0.5 * scores(q, k)) @ v


def less_a_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(scores(q, k) * 0.5 - mask) @ v


def without_scale(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(scores(q, k) + mask) @ v


def scaled_twice(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(2 * (scores(q, k) / 3.0)) @ v


def scaled_by_a_weight_and_by_more(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Only a single number is multiplied elsewhere."""
    return tf.nn.softmax(0.5 * scores(q, k) * tf.ones((HEADS, 1, 1), q.dtype)) @ v


def masked_in_between(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """A mask that chooses has a gradient of its own, and is what the softmax is taken of."""
    whole = scores(q, k) / 2.0
    return tf.nn.softmax(tf.where(mask < 0, tf.constant(-3.0, q.dtype), whole)) @ v


def values_turned(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.matmul(tf.nn.softmax(scores(q, k) / 2.0), tf.transpose(v, (0, 1, 3, 2)), transpose_b=True)


def by_einsum(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """In the order of axes that Keras has."""
    q, k, v = (tf.transpose(one, (0, 2, 1, 3)) for one in (q, k, v))
    weights = tf.nn.softmax(tf.einsum("aecd,abcd->acbe", k, 0.5 * q) + mask)
    return tf.transpose(tf.einsum("acbe,aecd->abcd", weights, v), (0, 2, 1, 3))


def by_einsum_the_other_way(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = tf.nn.softmax(tf.einsum("bhqd,bhkd->bhqk", q, k) / 2.0 + mask)
    return tf.einsum("bhkd,bhqk->bhqd", v, weights)


def values_for_all_heads(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = tf.nn.softmax(scores(q, k) / 2.0 + mask)
    return tf.einsum("bhqk,bkd->bhqd", weights, v[:, 0])


def one_by_one(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Each head of each example by itself, as products of plain matrices."""
    found = [
        tf.nn.softmax(scores(q[example, head], k[example, head]) / 2.0) @ v[example, head]
        for example in range(EXAMPLES)
        for head in range(HEADS)
    ]
    return tf.reshape(tf.stack(found), (EXAMPLES, HEADS, POSITIONS, DIM))


def constant_values(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(scores(q, k) / 2.0) @ tf.stop_gradient(v)


def weights_used_elsewhere(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = tf.nn.softmax(scores(q, k) / 2.0 + mask)
    return weights @ v + tf.reduce_sum(tf.square(weights), -1, keepdims=True) * (weights @ k)


def scores_used_elsewhere(q: Any, k: Any, v: Any, mask: Any) -> Any:
    product = scores(q, k)
    scaled = product / 2.0
    whole = scaled + mask
    more = tf.reduce_mean(tf.sin(product) + tf.cos(scaled) * tf.tanh(whole), -1, keepdims=True)
    return tf.nn.softmax(whole) @ v + more


def what_is_given_used_elsewhere(q: Any, k: Any, v: Any, mask: Any) -> Any:
    given = tf.nn.softmax(scores(q, k) / 2.0 + mask) @ v
    return given * tf.tanh(given) + v


def attention_of_attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    given = by_hand(q, k, v, mask)
    return by_hand(given, k + given, tf.sin(given), mask)


def of_itself(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Scores that are weights and values, too."""
    product = scores(q, k)
    return tf.nn.softmax(product) @ product @ v


def given_halved(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return halved(by_hand(q, k, v, mask))


def scores_halved(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(halved(halved(scores(q, k)) / 2.0) + mask) @ halved(v)


SERVED: dict[str, tuple[Function, int]] = {
    function.__name__: (function, times)
    for function, times in (
        (by_hand, 1),
        (as_in_transformers, 1),
        (multiplied, 1),
        (less_a_mask, 1),
        (without_scale, 1),
        (scaled_twice, 1),
        (scaled_by_a_weight_and_by_more, 1),
        (masked_in_between, 1),
        (values_turned, 1),
        (by_einsum, 1),
        (by_einsum_the_other_way, 1),
        (values_for_all_heads, 1),
        (one_by_one, EXAMPLES * HEADS),
        (constant_values, 1),
        (weights_used_elsewhere, 1),
        (scores_used_elsewhere, 1),
        (what_is_given_used_elsewhere, 1),
        (attention_of_attention, 2),
        (of_itself, 1),
        (given_halved, 1),
        (scores_halved, 1),
    )
}


def something_in_between(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (tf.nn.softmax(scores(q, k)) * tf.abs(mask + 1)) @ v


def weights_turned(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.matmul(tf.nn.softmax(scores(q, k)), v, transpose_a=True)


def weights_second(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.transpose(tf.transpose(v, (0, 1, 3, 2)) @ tf.nn.softmax(scores(q, k)), (0, 1, 3, 2))


def over_queries(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(scores(q, k), axis=-2) @ v


def weights_stopped(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.stop_gradient(tf.nn.softmax(scores(q, k))) @ v


def weights_not_recorded(q: Any, k: Any, v: Any, mask: Any) -> Any:
    product = scores(q, k)
    with record.stop_recording():
        weights = tf.nn.softmax(product)
    return weights @ v


def weights_passed_on_unrecorded(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = tf.nn.softmax(scores(q, k))
    with record.stop_recording():
        weights = tf.identity(weights)
    return weights @ v


def mask_not_recorded(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """So that the scale before it has no part in the gradient, which only goes through the values."""
    scaled = 0.5 * scores(q, k)
    with record.stop_recording():
        whole = scaled + mask
    return tf.nn.softmax(whole) @ v


def constant_weights(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(mask + tf.zeros((1, 1, POSITIONS, 1), q.dtype)) @ v


def summed_over_heads(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Queries or heads are no axes of what is given: a row's sum is not a row's of this."""
    weights = tf.nn.softmax(scores(q, k))
    return tf.einsum("bhqk,bhkd->bqd", weights, v)[:, None]


def another_product(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Over the queries."""
    return tf.einsum("bhqk,bhqd->bhkd", tf.nn.softmax(scores(q, k)), v)


def tape_begun_in_the_midst(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """To the inner tape the scores are constants."""
    product = scores(q, k)
    with tf.GradientTape() as tape:
        tape.watch(v)
        inside = tf.reduce_sum(tf.square(tf.nn.softmax(product) @ v))
    return tape.gradient(inside, v)


def weights_halved(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return halved(tf.nn.softmax(scores(q, k) / 2.0)) @ v


def weights_halved_and_passed_on(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.identity(halved(tf.identity(tf.nn.softmax(scores(q, k) / 2.0)))) @ v


def weights_rounded(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.grad_pass_through(tf.identity)(tf.nn.softmax(scores(q, k))) @ v


def softmax_halved(q: Any, k: Any, v: Any, mask: Any) -> Any:
    @tf.custom_gradient
    def softmax(x: Any) -> Any:
        weights = tf.nn.softmax(x)
        return tf.identity(weights), lambda gradient: 0.5 * gradient * weights

    return softmax(scores(q, k) / 2.0 + mask) @ v


def weights_and_values_halved(q: Any, k: Any, v: Any, mask: Any) -> Any:
    @tf.custom_gradient
    def both(x: Any, y: Any) -> Any:
        return (x, y), lambda *gradients: [0.5 * one for one in gradients]

    weights, values = both(tf.nn.softmax(scores(q, k)), v)
    return tf.einsum("bhqk,bhkd->bhqd", weights, values)


def recomputed(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.recompute_grad(lambda *given: by_hand(*given, mask))(q, k, v)


def softmax_recomputed(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.recompute_grad(tf.nn.softmax)(scores(q, k)) @ v


def weights_recorded_anew(q: Any, k: Any, v: Any, mask: Any) -> Any:
    whole = scores(q, k) / 2.0
    return recorded_halved(tf.nn.softmax(whole), whole) @ v


def scores_recorded_anew(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """What they are scaled to has another gradient only after the mask was added, from which it goes on all the same."""
    product = scores(q, k)
    scaled = product / 2.0
    whole = scaled + mask
    recorded_halved(scaled, product)
    weights = tf.nn.softmax(whole)
    return recorded_halved(weights, whole) @ v


LEFT_ALONE: dict[str, Function] = {
    function.__name__: function
    for function in (
        something_in_between,
        weights_turned,
        weights_second,
        over_queries,
        weights_stopped,
        weights_not_recorded,
        weights_passed_on_unrecorded,
        mask_not_recorded,
        constant_weights,
        summed_over_heads,
        another_product,
        tape_begun_in_the_midst,
        weights_halved,
        weights_halved_and_passed_on,
        weights_rounded,
        softmax_halved,
        weights_and_values_halved,
        recomputed,
        softmax_recomputed,
        weights_recorded_anew,
        scores_recorded_anew,
    )
}


def values_spread_out(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """One head's values for all."""
    return tf.nn.softmax(scores(q, k) / 2.0 + mask) @ v[:, :1]


def weights_spread_out(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(scores(q, k)[:1, :1] / 2.0) @ v


def scores_spread_out(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """By the mask, of which each example has one."""
    return tf.nn.softmax(scores(q, k)[:1] / 2.0 + mask) @ v


def of_other_rank(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return tf.nn.softmax(scores(q, k)) @ v[0, 0]


SPREAD: dict[str, Function] = {
    function.__name__: function
    for function in (values_spread_out, weights_spread_out, scores_spread_out, of_other_rank)
}


def assert_own(found: Any, model: Any, rounding: float = 1e-13) -> None:
    expected = own_of_sum(model, IDS)
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=rounding * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SERVED)
def test_attention_is_tensorflows_in_fewer_passes(name: str, dtype: str, served: list[str]) -> None:
    function, times = SERVED[name]
    model = Attending(function, dtype)
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert served == ["Attention"] * times
    assert_own(found, model, 5e-6 if dtype == "float32" else 1e-13)


#: Where a gradient is stopped, or another, it is no slope.
SLOPES = {
    name: function
    for name, (function, _) in SERVED.items()
    if function not in (constant_values, given_halved, scores_halved)
} | SPREAD


@pytest.mark.parametrize("name", SLOPES)
def test_attention_is_the_slope_of_the_model(name: str) -> None:
    model = Attending(SLOPES[name])
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert_slopes(found, model.table, lambda: tf.reduce_sum(model(IDS)), step=1e-4)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_no_attention_is_tensorflows_to_the_bit(name: str, served: list[str]) -> None:
    model = Attending(LEFT_ALONE[name])
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert served == []
    np.testing.assert_array_equal(found.table().to_dense(), own_of_sum(model, IDS))


@pytest.mark.parametrize("name", SPREAD)
def test_what_is_spread_out_is_tensorflows(name: str) -> None:
    model = Attending(SPREAD[name])
    assert_own(embgrad.gradients(model, IDS, embgrad.Sum()), model)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", [*SERVED, *LEFT_ALONE, *SPREAD])
def test_attention_in_a_trace_is_tensorflows_too(name: str, split: bool) -> None:
    function = {**LEFT_ALONE, **SPREAD}.get(name) or SERVED[name][0]
    model = Attending(function)
    for _ in range(2):
        found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True, split=split)
        assert found.provenance["compiled"]
        assert_own(found, model)


@pytest.mark.parametrize("compile", [False, True])
def test_what_attention_gives_has_the_gradient_that_it_was_given_last(compile: bool) -> None:
    model = Attending(lambda q, k, v, mask: recorded_halved(by_hand(q, k, v, mask), v))
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=compile)
    assert_own(found, model)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("name", [name for name in (*SERVED, *LEFT_ALONE) if "halved" in name or "recomputed" in name])
def test_gradients_of_the_authors_own_in_functions_of_tensorflow(name: str, compile: bool) -> None:
    function = LEFT_ALONE.get(name) or SERVED[name][0]
    model = Attending(tf.function(function))
    assert_own(embgrad.gradients(model, IDS, embgrad.Sum(), compile=compile), model)
    total = embgrad.table_gradients(model, IDS, embgrad.Sum()).total
    np.testing.assert_allclose(total, own_of_sum(model, IDS), rtol=0, atol=1e-13 * np.abs(total).max())


@pytest.mark.parametrize("name", SERVED)
def test_attention_in_a_trace_has_fewer_passes_too(name: str, served: list[str]) -> None:
    function, times = SERVED[name]
    embgrad.gradients(Attending(function), IDS, embgrad.Sum(), compile=True)
    assert served == ["Attention"] * 2 * times  # in the trace, and in the model that it is compared with


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_no_attention_in_a_trace_is_left_alone(name: str, served: list[str]) -> None:
    embgrad.gradients(Attending(LEFT_ALONE[name]), IDS, embgrad.Sum(), compile=True)
    assert served == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_numbers_are_left_alone(dtype: str, served: list[str]) -> None:
    model = Attending(without_scale, dtype)
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert served == []
    np.testing.assert_array_equal(found.table().to_dense(), own_of_sum(model, IDS).astype(np.float32))


def test_weights_of_the_model_keep_their_gradients() -> None:
    model = Attending(by_hand)
    found = embgrad.parameter_gradients(model, IDS, embgrad.Sum())
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(IDS))
    for kernel, expected in zip(model.kernels, tape.gradient(total, model.kernels), strict=True):
        np.testing.assert_allclose(found[kernel.name], expected.numpy(), rtol=1e-11, atol=1e-13)


def test_masked_keys_have_no_gradient() -> None:
    """Their weights are zeros, to the bit."""
    model = Attending(lambda q, k, v, mask: by_hand(q, k, v, 1e9 * mask))
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert np.isfinite(found.values).all()
    assert_own(found, model)


def test_what_softmax_is_taken_of_is_not_kept(served: list[str]) -> None:
    """It is as large as anything in a pass, and TensorFlow drops it."""
    alive: list[bool] = []

    def looked_at(q: Any, k: Any, v: Any, mask: Any) -> Any:
        whole = scores(q, k) + mask
        reference = weakref.ref(whole)
        weights = tf.nn.softmax(whole)
        del whole
        alive.append(reference() is not None)
        given = weights @ v
        alive.append(reference() is not None)
        return given

    embgrad.gradients(Attending(looked_at), IDS, embgrad.Sum())
    assert served == ["Attention"]
    assert alive[-2:] == [True, False]


def bert(**options: Any) -> Any:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        **options,
    )
    return transformers.TFBertForSequenceClassification(config)


def test_bert_has_it_in_each_layer(served: list[str]) -> None:
    model = bert()
    batch = embgrad.TokenBatch(IDS, [[1] * 5, [1, 1, 1, 0, 0], [1] * 5])
    plain = embgrad.gradients(model, batch, embgrad.Logit(1))
    assert served.count("Attention") == 2
    inputs = {"input_ids": tf.constant(IDS), "attention_mask": tf.constant(batch.mask)}
    table = model.bert.embeddings.weight
    expected = own_table_gradient(table, lambda: tf.reduce_sum(model(inputs, training=False).logits[:, 1]))
    np.testing.assert_allclose(plain.table().to_dense(), expected, rtol=0, atol=5e-6 * np.abs(expected).max())


def test_in_training_dropout_lies_in_between(served: list[str]) -> None:
    embgrad.gradients(bert(), IDS, embgrad.Logit(1), training=True)
    assert "Attention" not in served
    embgrad.gradients(bert(attention_probs_dropout_prob=0.0), IDS, embgrad.Logit(1), training=True)
    assert served.count("Attention") == 2


@pytest.mark.parametrize("compile", [False, True])
def test_a_point_between_softmax_and_product_keeps_its_gradient(compile: bool) -> None:
    model = bert()
    name = "bert.encoder.layer.0.attention.self_attention.dropout:output"
    found = embgrad.gradients(model, IDS, embgrad.Logit(1), at=[name, "word"], compile=compile)
    with tf.GradientTape() as tape:
        outputs = model({"input_ids": tf.constant(IDS)}, training=False, output_attentions=True)
        total = tf.reduce_sum(outputs.logits[:, 1])
    expected = tape.gradient(total, outputs.attentions[0]).numpy()
    np.testing.assert_allclose(found[name].values, expected, rtol=0, atol=5e-6 * np.abs(expected).max())
    alone = embgrad.gradients(model, IDS, embgrad.Logit(1))
    np.testing.assert_allclose(found["word"].values, alone.values, rtol=0, atol=5e-6 * np.abs(alone.values).max())


@pytest.mark.parametrize("keras", KERAS)
def test_keras_has_its_layer_so(keras: str, served: list[str]) -> None:
    module = KERAS[keras]
    layers = module.layers
    ids = module.Input((None,), dtype="int32")
    rows = layers.Embedding(20, 8, name="table")(ids)
    attended = layers.MultiHeadAttention(2, 4)(rows, rows)
    model = module.Model(ids, layers.GlobalAveragePooling1D()(layers.Dense(3, activation="tanh")(attended)))
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert served == ["Attention"]
    table = model.get_layer("table").embeddings
    expected = own_table_gradient(table, lambda: tf.reduce_sum(model(IDS)))
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=5e-6 * np.abs(expected).max())


def test_few_rows_are_computed_alone(monkeypatch: pytest.MonkeyPatch, served: list[str]) -> None:
    """Of an objective that reads one position, in a batch that is large enough to be looked through."""
    pulled: list[tuple[int, ...]] = []
    by_rows = attending.by_rows

    def noted(name: str, gradient: Any, operands: Any, compute: Any) -> Any:
        def counted(one: Any, *others: Any) -> Any:
            pulled.append(tuple(one.shape))
            return compute(one, *others)

        return by_rows(name, gradient, operands, counted)

    monkeypatch.setattr(attending, "by_rows", noted)
    random = np.random.default_rng(2)
    table = tf.Variable(random.normal(size=(50, 8)))

    class Long(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def __call__(self, input_ids: Any, **_: Any) -> Any:
            rows = tf.nn.embedding_lookup(self.table, input_ids)
            return tf.nn.softmax(tf.matmul(rows, rows, transpose_b=True) / 2.0) @ tf.sin(rows)

    def read(returned: Any) -> Any:
        return tf.reduce_sum(tf.sin(returned[:, 3]), -1)

    model, ids = Long(), random.integers(0, 50, (16, 80))
    found = embgrad.gradients(model, ids, read)
    assert served == ["Attention"]
    assert pulled == [(16, 80)]
    expected = own_table_gradient(table, lambda: tf.reduce_sum(read(model(ids))))
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=1e-12, atol=1e-13)
