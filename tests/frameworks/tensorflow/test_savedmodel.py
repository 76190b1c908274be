"""Models without their Python: saved by TensorFlow, Keras, Hugging Face's classes or TF Hub's own exporter."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2
from embgrad_tensorflow.graphs import cut_graph
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.framework import op_callbacks

import embgrad
from embgrad.errors import BatchError, UnsupportedError
from tests.frameworks.tensorflow.helpers import make_model, own_table_gradient
from tests.frameworks.tensorflow.savedmodels import (
    PREPROCESS,
    SMALL,
    TINY,
    TOTAL,
    Net,
    close,
    lookups,
    saved,
    slices,
    weighed,
    weighed_gradient,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports pkg_resources
    import tensorflow_hub as hub

IDS = np.array([[5, 2, 9, 4, 31, 2], [3, 8, 1, 59, 0, 0], [6, 7, 7, 2, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0]])
TYPES = np.array([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 0, 0]])
BATCH = embgrad.TokenBatch(IDS, MASK, TYPES)
VECTOR = np.random.default_rng(7).normal(size=16).astype(np.float32)
POOLED = embgrad.Projection(VECTOR, output="pooled_output")


def hub_inputs() -> dict[str, Any]:
    return {name: tf.constant(value) for name, value in BATCH.to_tfhub().items()}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = ConcreteFunction.__dict__["_call_flat"], type(tf.function(tf.constant)).__call__
    yield
    assert (ConcreteFunction.__dict__["_call_flat"], type(tf.function(tf.constant)).__call__) == before
    assert not op_callbacks.should_invoke_op_callbacks()
    assert not tf.config.functions_run_eagerly()


@pytest.fixture(scope="module")
def tiny() -> Any:
    return hub.load(str(TINY))


@pytest.fixture(scope="module")
def expected(tiny: Any) -> Any:
    def total() -> Any:
        return tf.reduce_sum(tiny(hub_inputs(), training=False)["pooled_output"] * VECTOR)

    return slices(tiny.variables[0], total, IDS)


@functools.cache
def in_a_layer(trainable: bool) -> Any:
    return hub.KerasLayer(str(TINY), trainable=trainable, name="encoder")


class TestTheOfficialExport:
    @pytest.mark.parametrize("load", [hub.load, tf.saved_model.load])
    def test_the_loaded_export(self, load: Any, tiny: Any, expected: Any) -> None:
        model = tiny if load is hub.load else load(str(TINY))
        result = embgrad.gradients(model, BATCH, POOLED)
        close(result.values, expected)
        pooled = model(hub_inputs(), training=False)["pooled_output"]
        close(result.objective, tf.linalg.matvec(pooled, VECTOR))
        close(result.activations, tf.gather(model.variables[0], IDS))

    @pytest.mark.parametrize("trainable", [True, False])
    def test_in_a_layer(self, trainable: bool, expected: Any) -> None:
        close(embgrad.gradients(in_a_layer(trainable), BATCH, POOLED).values, expected)

    @pytest.mark.parametrize("trainable", [True, False])
    def test_in_a_functional_model(self, trainable: bool) -> None:
        layer = in_a_layer(trainable)
        inputs = {name: keras2.layers.Input((None,), dtype="int32", name=name) for name in hub_inputs()}
        model = keras2.Model(inputs, keras2.layers.Dense(3)(layer(inputs)["pooled_output"]))
        table = layer.resolved_object.variables[0]
        expected = slices(table, lambda: tf.reduce_sum(model(hub_inputs(), training=False)[:, 1]), IDS)
        close(embgrad.gradients(model, BATCH, embgrad.Logit(1)).values, expected)
        assert lookups(model, BATCH)[0].lookup.path == "encoder.word_embeddings/embeddings"

    def test_by_its_signature(self, tiny: Any, expected: Any) -> None:
        signature = tiny.signatures["serving_default"]
        objective = embgrad.Projection(VECTOR, output="bert_encoder_1_3")
        close(embgrad.gradients(signature, BATCH, objective).values, expected)

    def test_by_its_table(self, tiny: Any, expected: Any) -> None:
        result = embgrad.gradients(tiny, BATCH, POOLED, at="word_embeddings/embeddings")
        close(result.values, expected)
        names = [point.lookup.path for point in lookups(tiny, BATCH)]
        assert names == ["word_embeddings/embeddings", "position_embedding/embeddings", "type_embeddings/embeddings"]

    def test_its_positions_are_a_slice_of_their_table(self, tiny: Any) -> None:
        found = embgrad.gradients(tiny, BATCH, POOLED, at=["word", "position"])
        path = next(point.path for point in lookups(tiny, BATCH) if "position" in point.roles)
        table = next(variable for variable in tiny.variables if variable.name.removesuffix(":0") == path)
        total = lambda: tf.reduce_sum(tiny(hub_inputs(), training=False)["pooled_output"] * VECTOR)  # noqa: E731
        expected = own_table_gradient(table, total)
        close(found["position"].values.sum(0), expected[: IDS.shape[1]])
        close(found["position"].table().to_dense(), expected)
        close(found["position"].activations[0], table[: IDS.shape[1]])
        instead = np.zeros_like(found["position"].activations[0])
        moved = embgrad.gradients(tiny, BATCH, POOLED, override={"position": instead})
        before = table.numpy()
        try:
            table.assign(np.zeros_like(before))
            close(moved.objective.sum(), total())
        finally:
            table.assign(before)

    def test_the_tied_head(self, tiny: Any) -> None:
        """Logits of words that the batch does not hold: the head's part of the dense gradient lies in their rows alone."""
        positions = tf.constant([[1, 2], [0, 3], [2, 1]])
        others = np.setdiff1d(np.arange(60), IDS)[:5]

        def call(model: Any, inputs: Any) -> Any:
            inputs = {**inputs, "masked_lm_positions": positions}
            return tf.gather(model.mlm(inputs, training=False)["mlm_logits"], others, axis=-1)

        dense = own_table_gradient(tiny.variables[0], lambda: tf.reduce_sum(call(tiny, hub_inputs()) * VECTOR[:5]))
        batch = BATCH.replace(convention="tfhub")
        result = embgrad.gradients(tiny, batch, lambda out: tf.reduce_sum(out * VECTOR[:5], [1, 2]), call=call)
        words = np.unique(IDS)
        assert np.abs(dense[others]).max() > 0
        close(result.table().to_dense()[words], dense[words])

    def test_training_mode_draws_dropout(self, tiny: Any) -> None:
        calm = embgrad.gradients(tiny, BATCH, POOLED)
        tf.random.set_seed(3)
        drawn = embgrad.gradients(tiny, BATCH, POOLED, training=True)
        assert np.abs(calm.values - drawn.values).max() > 0.01 * np.abs(calm.values).max()
        np.testing.assert_array_equal(embgrad.gradients(tiny, BATCH, POOLED).values, calm.values)

    def test_a_layer_that_is_not_trainable_stays_in_evaluation_mode(self, expected: Any) -> None:
        close(embgrad.gradients(in_a_layer(False), BATCH, POOLED, training=True).values, expected)

    def test_the_preprocessing_model_before_the_encoder(self, tiny: Any) -> None:
        import tensorflow_text  # noqa: F401  (registers the operations of the preprocessing model)

        preprocess = hub.load(str(PREPROCESS))
        texts = tf.constant(["a cat sat", "on the mat"])
        tokens = preprocess(texts)
        result = embgrad.gradients(tiny, tokens, POOLED)
        np.testing.assert_array_equal(result.ids, tokens["input_word_ids"])

        def call(model: Any, _: Any) -> Any:
            return model(preprocess(texts), training=False)

        with warnings.catch_warnings():
            warnings.simplefilter("error", embgrad.EmbgradWarning)  # nothing in there has a gradient to lose
            whole = embgrad.gradients(tiny, tokens, POOLED, call=call)
        close(whole.values, result.values)  # which ran as a graph: strings are none of a trace's inputs

    def test_the_layers_chain(self, tiny: Any) -> None:
        functions = tiny.__call__.concrete_functions
        function = next(one for one in functions if one.structured_input_signature[0][1] is False)
        graph = cut_graph(function)
        found = {one.path: one for one in graph.scopes}
        first, second = (found[f"bert_encoder_1/transformer/layer_{number}"] for number in (0, 1))
        assert first.kind == second.kind == "bert_encoder_#/transformer/layer_#"
        assert first.entering == found["bert_encoder_1/embeddings"].leaving
        assert second.entering == first.leaving
        outputs = tiny(hub_inputs(), training=False)
        result = embgrad.gradients(tiny, BATCH, POOLED, at=[first.path, second.path])
        for number, one in enumerate((first, second)):
            close(result[one.path].activations, outputs["encoder_outputs"][number])
        assert all("PartitionedCall" not in node.name for node in graph.flat.nodes)
        crossed = {one.entering for one in found.values()} | {one.leaving for one in found.values()}
        makers = {graph.flat.nodes[entry[0]].op for entry in crossed if entry is not None}
        assert "ReadVariableOp" not in makers  # weights do not count

    def test_a_tensor_can_be_replaced(self, tiny: Any) -> None:
        override = {"bert_encoder_1/pooler_transform/BiasAdd": np.zeros(16, np.float32)}
        (name,) = override
        assert not embgrad.gradients(tiny, BATCH, POOLED, at=name, override=override).objective.any()
        sequence = embgrad.Projection(VECTOR, output="sequence_output")
        result = embgrad.gradients(tiny, BATCH, sequence, override=override)
        close(result.values, embgrad.gradients(tiny, BATCH, sequence).values)


class TestKeras:
    def model(self, keras: Any, layer: Any) -> Any:
        ids = keras.layers.Input((None,), dtype="int32", name="tokens")
        value = layer(keras.layers.Embedding(12, 4, mask_zero=True)(ids))
        return keras.Model(ids, keras.layers.Dense(2)(keras.layers.Dropout(0.5)(value)))

    def test_an_export_of_keras_3(self, tmp_path: Any) -> None:
        model = self.model(keras3, keras3.layers.LSTM(3))
        expected = embgrad.gradients(model, SMALL, embgrad.Margin(0, 1)).values
        model.export(str(tmp_path), verbose=False)
        loaded = tf.saved_model.load(str(tmp_path))
        close(embgrad.gradients(loaded, SMALL, embgrad.Margin(0, 1)).values, expected)
        layer = keras3.layers.TFSMLayer(str(tmp_path), call_endpoint="serving_default")
        close(embgrad.gradients(layer, SMALL, embgrad.Margin(0, 1)).values, expected)

    def test_a_saved_model_of_keras_2(self, tmp_path: Any) -> None:
        model = self.model(keras2, keras2.layers.GlobalAveragePooling1D())
        expected = embgrad.gradients(model, SMALL, embgrad.Margin(0, 1)).values
        model.save(str(tmp_path), save_format="tf")
        loaded = tf.saved_model.load(str(tmp_path))
        close(embgrad.gradients(loaded, SMALL, embgrad.Margin(0, 1)).values, expected)
        training = embgrad.gradients(loaded, SMALL, embgrad.Margin(0, 1), training=True).values
        assert np.abs(training - expected).max() > 0.01 * np.abs(expected).max()

    def test_a_keras_2_model_revived_without_its_class(self, tmp_path: Any) -> None:
        def call(self: Any, ids: Any, training: Any = None) -> Any:
            return self.head(self.drop(tf.reduce_mean(tf.tanh(self.table(ids)), 1), training=training))

        model = make_model(
            call,
            keras2.Model,
            table=keras2.layers.Embedding(12, 4),
            drop=keras2.layers.Dropout(0.5),
            head=keras2.layers.Dense(2),
        )
        model(tf.constant(SMALL))
        expected = embgrad.gradients(model, SMALL, embgrad.Margin(0, 1)).values
        model.save(str(tmp_path), save_format="tf")
        revived = keras2.models.load_model(str(tmp_path))
        assert type(revived).__module__.endswith("saved_model.load")
        close(embgrad.gradients(revived, SMALL, embgrad.Margin(0, 1)).values, expected)
        assert lookups(revived, SMALL)[0].lookup.path == "table"
        training = embgrad.gradients(revived, SMALL, embgrad.Margin(0, 1), training=True).values
        assert np.abs(training - expected).max() > 0.01 * np.abs(expected).max()


def test_a_graph_of_tensorflow_1(tmp_path: Any) -> None:
    folder, v1 = str(tmp_path / "saved"), tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.placeholder(tf.int32, [None, None])
        rows = v1.get_variable("rows", shape=(12, 4), use_resource=True)
        total = tf.reduce_sum(tf.tanh(tf.gather(rows, ids)), [1, 2])
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, folder, {"ids": ids}, {"total": total})
    result = embgrad.gradients(tf.saved_model.load(folder), SMALL, embgrad.Sum())
    close(result.values, 1 - np.tanh(result.activations) ** 2)


def test_a_saved_method_by_call(tmp_path: Any) -> None:
    model = Net(lambda rows, ids: weighed(tf.gather(rows, ids))).saved(tmp_path)
    result = embgrad.gradients(model, SMALL, TOTAL, call=lambda m, ids: m.run(ids))
    close(result.values, weighed_gradient(model.rows.numpy()[SMALL]))


def test_compiled_functions_of_the_users_own() -> None:
    model = Net(lambda rows, ids: weighed(tf.gather(rows, ids)))
    expected = weighed_gradient(model.rows.numpy()[SMALL])
    function = model.run.get_concrete_function()
    close(embgrad.gradients(function, SMALL, TOTAL).values, expected)
    assert lookups(function, SMALL)[0].lookup.path == "rows"
    compiled = tf.function(lambda ids: model.run(ids), jit_compile=True)
    by_xla = compiled.get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    close(embgrad.gradients(by_xla, SMALL, TOTAL).values, expected)


def constant(self: Any) -> Any:
    return tf.reduce_sum(self.rows, 1)


def encode(self: Any, ids: Any) -> Any:
    return tf.reduce_sum(tf.gather(self.rows, ids), [1, 2])


def ragged(self: Any, ids: Any) -> Any:
    return tf.reduce_sum(tf.reduce_sum(tf.gather(self.rows, ids), 2), 1)


IDS_SPEC = tf.TensorSpec([None, None], tf.int32)


def saved_call(function: Any, signature: Any, folder: Any) -> Any:
    """Return a saved model with a table of ones, and this function as its call."""
    rows = tf.Variable(tf.ones((12, 4)))
    return saved(make_model(tf.function(function, input_signature=signature), rows=rows), folder)


class TestErrors:
    def test_another_length_than_the_saved_one(self, tmp_path: Any) -> None:
        model = Net(lambda rows, ids: weighed(tf.gather(rows, ids)), (2, 4)).saved(tmp_path)
        with pytest.raises(BatchError, match=r"input 'ids' is of shape \(2, 4\), and the batch gives \(1, 3\).*Pad"):
            embgrad.gradients(model.run, [[1, 2, 3]], TOTAL)

    def test_a_mode_that_the_model_was_not_saved_for(self, tmp_path: Any) -> None:
        @tf.function
        def forward(self: Any, ids: Any, training: bool = False) -> Any:
            return encode(self, ids)

        model = make_model(forward, rows=tf.Variable(tf.ones((12, 4))))
        model.__call__.get_concrete_function(IDS_SPEC, training=False)
        model = saved(model, tmp_path)
        np.testing.assert_array_equal(embgrad.gradients(model, SMALL, TOTAL).values, np.ones((2, 4, 4)))
        with pytest.raises(UnsupportedError, match=r"saved for training=False alone.*embgrad with training=False"):
            embgrad.gradients(model, SMALL, TOTAL, training=True)

    def test_a_model_without_a_call(self, tmp_path: Any) -> None:
        model = tf.Module()
        model.encode = tf.function(lambda ids: tf.cast(ids, tf.float32), input_signature=[IDS_SPEC])
        model = saved(model, tmp_path)
        model.signatures = {}
        with pytest.raises(UnsupportedError, match=r"cannot be called.*its functions are 'encode'.*call="):
            embgrad.gradients(model, SMALL, TOTAL)

    def test_a_function_without_inputs(self, tmp_path: Any) -> None:
        message = r"the saved function '\w+' takes no tensors. Give a function that takes token ids"
        with pytest.raises(UnsupportedError, match=message):
            embgrad.gradients(saved_call(constant, [], tmp_path), SMALL, TOTAL)

    def test_a_ragged_input(self, tmp_path: Any) -> None:
        model = saved_call(ragged, [tf.RaggedTensorSpec([None, None], tf.int32)], tmp_path)
        with pytest.raises(UnsupportedError, match=r"declared as a RaggedTensorSpec.*call="):
            embgrad.gradients(model, SMALL, embgrad.Sum())
        by_call = embgrad.gradients(
            model, SMALL, embgrad.Sum(), call=lambda m, ids: m(tf.RaggedTensor.from_tensor(ids))
        )
        np.testing.assert_array_equal(by_call.values, np.ones((2, 4, 4)))

    def test_several_signatures(self, tmp_path: Any) -> None:
        holder = tf.Module()
        holder.model = Net(lambda rows, ids: weighed(tf.gather(rows, ids)))
        function = holder.model.run.get_concrete_function()
        loaded = saved(holder, tmp_path, signatures={"one": function, "two": function})
        with pytest.raises(UnsupportedError, match=r"2 signatures, 'one', 'two'.*'serving_default'.*call="):
            embgrad.gradients(loaded, SMALL, TOTAL)


class Counting(tf.Module):
    """Writes to a variable in its forward pass, in either mode; and computes what nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = tf.Variable(tf.ones((12, 4)), name="rows")
        self.calls = tf.Variable(0.0, name="calls")

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def __call__(self, ids: Any) -> Any:
        before = self.calls.read_value()
        self.calls.assign_add(1.0)
        tf.gather(self.rows, ids + 1000)
        return before * tf.reduce_sum(tf.gather(self.rows, ids), [1, 2]) + self.calls


class TestState:
    def test_variables_and_traces(self) -> None:
        model = hub.load(str(TINY))  # which no other test has traced
        weights = [one.numpy().tobytes() for one in model.variables]
        for length in (3, 4, 6):
            embgrad.gradients(
                model, BATCH.replace(ids=IDS[:, :length], mask=None, types=None), POOLED, training=length == 4
            )
        assert [one.numpy().tobytes() for one in model.variables] == weights
        assert model.__call__.experimental_get_tracing_count() == 0

    @pytest.mark.parametrize("form", ["object", "signature"])
    @pytest.mark.parametrize("training", [True, False])
    def test_a_saved_model_that_writes_to_a_variable_is_restored(
        self, form: str, training: bool, tmp_path: Any
    ) -> None:
        model = saved(Counting(), tmp_path)
        model(tf.constant(SMALL))
        model(tf.constant(SMALL))
        used = model if form == "object" else model.signatures["serving_default"]
        for _ in range(2):
            result = embgrad.gradients(used, SMALL, embgrad.Sum(), training=training)
            np.testing.assert_array_equal(result.values, np.full((2, 4, 4), 2.0))
            np.testing.assert_array_equal(
                result.objective, [2 * 16 + 3.0] * 2
            )  # the read comes before the write, and after it
            assert model.calls.numpy() == 2
        assert [point.lookup.path for point in lookups(used, SMALL)] == ["rows"]
