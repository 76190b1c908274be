"""What the graphs of saved models hold: one-hot lookups, control flow, gradients of their authors' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.helpers import own_table_gradient
from tests.frameworks.tensorflow.savedmodels import SMALL, TOTAL, WEIGHT, Net, close, slices, weighed, weighed_gradient


def test_two_lookups_in_a_saved_function(tmp_path: Any) -> None:
    def forward(rows: Any, ids: Any) -> Any:
        return weighed(tf.gather(rows, ids)) + 3 * weighed(tf.gather(rows, (ids + 1) % 12))

    model = Net(forward).saved(tmp_path)
    table = model.rows.numpy()
    result = embgrad.gradients(model, SMALL, TOTAL, at=["word", "rows#0", "rows#1"])
    close(result["word"].values, weighed_gradient(table[SMALL]))
    close(result["rows#1"].values, 3 * weighed_gradient(table[(SMALL + 1) % 12]))
    both = result["rows#0"].table().to_dense() + result["rows#1"].table().to_dense()
    total = own_table_gradient(model.rows, lambda: tf.reduce_sum(model(tf.constant(SMALL))))
    close(both, total)


class TestControlFlow:
    @pytest.mark.parametrize(
        "forward",
        [
            lambda rows, ids: tf.cond(ids[0, 0] > 3, lambda: tf.gather(rows, ids), lambda: 2 * tf.gather(rows, ids)),
            lambda rows, ids: tf.switch_case(
                ids[0, 1], [lambda k=k: k * tf.gather(rows, ids) for k in (1.0, 2.0, 3.0)]
            ),
            lambda rows, ids: tf.map_fn(lambda one: tf.gather(rows, one), ids, fn_output_signature=tf.float32),
        ],
    )
    def test_a_lookup_in_a_branch_or_a_loop_is_refused(self, forward: Any, tmp_path: Any) -> None:
        model = Net(lambda rows, ids: weighed(forward(rows, ids))).saved(tmp_path)
        with pytest.raises(
            embgrad.errors.UnsupportedError,
            match=r"lookup lies inside .*which is a loop or a branch.*Save the model again",
        ):
            embgrad.gradients(model, SMALL, TOTAL)


@tf.custom_gradient
def reversed_gradient(value: Any) -> Any:
    factor = -2 * tf.ones_like(value)
    return tf.identity(value), lambda upstream: upstream * factor


class TestCustomGradients:
    def forward(self, rows: Any, ids: Any) -> Any:
        return weighed(tf.nn.silu(reversed_gradient(tf.gather(rows, ids))))

    @pytest.mark.parametrize("as_saved", [True, False])
    def test_custom_gradients_are_kept(self, as_saved: bool, tmp_path: Any) -> None:
        model = Net(self.forward)
        model = model.saved(tmp_path) if as_saved else model
        run = model.run if as_saved else model.run.get_concrete_function()
        result = embgrad.gradients(run, SMALL, TOTAL)
        close(result.values, slices(model.rows, lambda: tf.reduce_sum(run(tf.constant(SMALL))), SMALL))
        value = model.rows.numpy()[SMALL].astype(float)
        sigmoid = 1 / (1 + np.exp(-value))
        silu = value * sigmoid
        own = (1 - np.tanh(silu) ** 2) * WEIGHT * (sigmoid + silu * (1 - sigmoid))
        close(result.values, -2 * own)

    @pytest.mark.parametrize("as_saved", [True, False])
    def test_a_part_that_is_recomputed(self, as_saved: bool, tmp_path: Any) -> None:
        """With a variable inside, and a gradient whose own gradient cannot be had."""
        matrix = tf.Variable(np.random.default_rng(4).normal(size=(4, 4)).astype(np.float32))

        def forward(rows: Any, ids: Any) -> Any:
            return weighed(tf.recompute_grad(lambda value: tf.matmul(value, matrix))(tf.gather(rows, ids)))

        model = Net(forward)
        model.matrix = matrix
        model = model.saved(tmp_path) if as_saved else model
        run = model.run if as_saved else model.run.get_concrete_function()
        result = embgrad.gradients(run, SMALL, TOTAL)
        rows = model.rows.numpy()[SMALL]
        close(result.values, weighed_gradient(rows @ matrix.numpy()) @ matrix.numpy().T)

    def test_custom_gradients_that_were_not_saved_are_an_error(self, tmp_path: Any) -> None:
        """Though something is registered under their names here: each process counts them anew."""
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        model = Net(self.forward).saved(tmp_path, options=options)
        with pytest.raises(embgrad.errors.UnsupportedError, match=r"custom gradient.*was not saved.*SaveOptions"):
            embgrad.gradients(model, SMALL, TOTAL)

        def beside(used: Any, ids: Any) -> Any:
            used(ids)
            return tf.reduce_sum(tf.gather(used.rows, ids))

        calm = embgrad.gradients(model, SMALL, TOTAL, call=beside, at="rows#1")
        np.testing.assert_array_equal(calm.values, np.ones((2, 4, 4)))


class TestGraphsThatStayClosed:
    """TensorFlow 1's control flow: the branches are no functions, and dead tensors flow."""

    def forward(self, rows: Any, ids: Any) -> Any:
        looked = tf.gather(rows, ids)
        off, on = tf.raw_ops.Switch(data=looked, pred=ids[0, 0] > 3)
        return weighed(tf.raw_ops.Merge(inputs=[2 * off, 3 * on])[0])

    def test_a_lookup_in_a_closed_graph_is_an_error(self, tmp_path: Any) -> None:
        model = Net(self.forward).saved(tmp_path)
        message = r"no lookup whose indices.*ran 1 compiled graph.*Switch.*TensorFlow 1.*Save the model again"
        with pytest.raises(embgrad.errors.UnsupportedError, match=message):
            embgrad.gradients(model, SMALL, TOTAL)

    def test_a_closed_graph_of_the_ids_beside_a_lookup_is_an_error(self, tmp_path: Any) -> None:
        model = Net(lambda rows, ids: weighed(tf.gather(rows, ids)))
        other = Net(self.forward).saved(tmp_path)
        function = embgrad.gradients(model, SMALL, TOTAL).values

        def both(parts: Any, ids: Any) -> Any:
            return parts[0](ids) + parts[1](ids)

        with pytest.raises(
            embgrad.errors.UnsupportedError,
            match=r"may not be the model's embedding of the ids, which were also used otherwise: they are used inside \w+ with ",
        ):
            embgrad.gradients([model, other], SMALL, TOTAL, call=both)
        with pytest.warns(embgrad.EmbgradWarning, match=r"ran 1 compiled graph.*Switch.*no gradient in the result"):
            result = embgrad.gradients([model, other], SMALL, TOTAL, call=both, at="0.rows")
        np.testing.assert_array_equal(result.values, function)

    def test_a_closed_graph_of_something_else_beside_a_lookup_is_a_warning(self, tmp_path: Any) -> None:
        model = Net(lambda rows, ids: weighed(tf.gather(rows, ids)))
        other = Net(self.forward).saved(tmp_path)
        function = embgrad.gradients(model, SMALL, TOTAL).values
        with pytest.warns(embgrad.EmbgradWarning, match=r"ran 1 compiled graph.*Switch.*no gradient in the result"):
            result = embgrad.gradients(
                [model, other], SMALL, TOTAL, call=lambda parts, ids: parts[0](ids) + parts[1](tf.zeros_like(ids))
            )
        np.testing.assert_array_equal(result.values, function)
