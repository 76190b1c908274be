"""Each of MXNet's silent errors, against finite differences in float64. Each test fails without its countermeasure."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embgrad_gluon.importing import import_mxnet

import embgrad
from embgrad.errors import BackendError, UnsupportedError
from tests.frameworks.gluon.helpers import DIM, ROWS, built, differences, distinct_ids, mx, pulled_back, relative

nn, rnn, autograd = mx.gluon.nn, mx.gluon.rnn, mx.autograd


class Net(mx.gluon.HybridBlock):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.layer = layer

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.layer(self.embedding(x))


def worst_error(factory: Any, dtype: str, *, freeze: bool = False, training: bool = False, step: float = 1e-6) -> float:
    """Return the error of the gradient against finite differences of the same net in float64."""
    ids = distinct_ids(3, 4)
    net, double = built(factory, ids, dtype), built(factory, ids, "float64")
    with autograd.train_mode() if training else autograd.predict_mode():
        cotangent = np.random.default_rng(2).normal(size=double(mx.nd.array(ids, dtype="float64")).shape)
        expected = differences(double, double.embedding.weight, ids, cotangent, step=step)
    if freeze:
        net.collect_params().setattr("grad_req", "null")
    return relative(pulled_back(net, ids, cotangent, training=training), expected)


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_the_state_of_native_recurrent_layers_whose_input_needs_no_gradient(kind: str) -> None:
    """MXNet's own kernels give a state of several layers a wrong gradient unless the input's is asked for too."""

    class Decoder(Net):
        """A decoder whose state depends on the lookup, and whose input does not."""

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            rows = self.embedding(x)
            state = F.swapaxes(F.slice_axis(rows, axis=1, begin=0, end=2), 0, 1)
            read = F.swapaxes(F.ones_like(rows), 0, 1)
            return self.layer(read, [state, F.tanh(state)] if kind == "lstm" else [state])[0]

    layers = {"lstm": rnn.LSTM, "gru": rnn.GRU, "tanh": lambda *args: rnn.RNN(*args, activation="tanh")}
    for dtype, tolerance in (("float64", 1e-6), ("float32", 1e-4)):
        assert worst_error(lambda: Decoder(layers[kind](DIM, 2)), dtype) < tolerance


def test_dropout_inside_a_native_gru_in_training_mode_is_refused() -> None:
    """MXNet's gradient of its own GRU takes no notice of what was dropped between the layers; oneDNN drops nothing."""

    def make() -> Any:
        return Net(rnn.GRU(3, num_layers=2, dropout=0.5, layout="NTC"))

    with pytest.raises(UnsupportedError, match=r"GRU of several layers with dropout.*Omit training=True"):
        worst_error(make, "float64", training=True)
    net = built(make, distinct_ids(3, 4), "float32")
    assert embgrad.gradients(net, distinct_ids(3, 4), embgrad.Sum(output="logits"), training=True).values.any()


def test_native_recurrent_layers_in_single_precision() -> None:
    """The same kernels run in float32 where oneDNN's are switched off."""
    code = """
import os, sys
os.environ["MXNET_USE_MKLDNN_RNN"] = "0"
from tests.frameworks.gluon.helpers import mx
from tests.frameworks.gluon.test_silent_errors import Net, worst_error
print(worst_error(lambda: Net(mx.gluon.rnn.GRU(3, layout="NTC")), "float32"))
"""
    assert float(run(code)) < 1e-4


def test_dropout_inside_recurrent_layers_in_evaluation_mode() -> None:
    """MXNet's own recurrent layers drop out while they are recorded, whatever the mode."""

    def make() -> Any:
        return Net(rnn.LSTM(3, num_layers=2, dropout=0.5, layout="NTC"))

    assert worst_error(make, "float64") < 1e-6


class Frozen(mx.gluon.Block):
    """Batch norm that the model itself runs in another mode than the rest."""

    def __init__(self, scope: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.norm = nn.BatchNorm(axis=-1)
        self.scope = scope

    def forward(self, x: Any) -> Any:
        with self.scope():
            return self.norm(self.embedding(x))


def test_batch_norm_kept_in_evaluation_mode_while_training() -> None:
    assert worst_error(lambda: Frozen(autograd.predict_mode), "float64", training=True) < 1e-6


def test_batch_norm_put_into_training_mode_while_evaluating_is_refused() -> None:
    net = built(lambda: Frozen(autograd.train_mode), distinct_ids(), "float32")
    with pytest.raises(UnsupportedError, match=r"batch norm under autograd.train_mode\(\).*training=True"):
        embgrad.gradients(net, distinct_ids(), embgrad.Sum())


@pytest.mark.parametrize("training", [False, True])
def test_randomised_leaky_relu_is_refused(training: bool) -> None:
    """It takes its gradient from slopes that were never drawn, and crashes in training mode."""

    class Leaky(Net):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.LeakyReLU(self.embedding(x), act_type="rrelu")[0]

    net = built(lambda: Leaky(None), distinct_ids(), "float32")
    with pytest.raises(UnsupportedError, match=r"rrelu.*Use the type 'leaky'"):
        embgrad.gradients(net, distinct_ids(), embgrad.Sum(), training=training)


@pytest.mark.parametrize("name", ["SoftmaxOutput", "LinearRegressionOutput", "MakeLoss"])
def test_operators_with_a_gradient_of_their_own_are_refused(name: str) -> None:
    """They ignore the objective: their gradient is that of a loss which they imply."""

    class Ending(Net):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            logits = F.mean(self.embedding(x), axis=1)
            return F.MakeLoss(logits) if name == "MakeLoss" else getattr(F, name)(logits, F.zeros_like(logits))

    net = built(lambda: Ending(None), distinct_ids(), "float32")
    with pytest.raises(UnsupportedError, match=f"'{name}', which replaces the gradient of the objective"):
        embgrad.gradients(net, distinct_ids(), embgrad.Logit(0))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("hybridised", [False, True])
def test_a_bias_beside_a_frozen_weight(dtype: str, hybridised: bool) -> None:
    """MXNet leaves in its gradient what lay in memory before, where that of the weight is not asked for."""
    ids = distinct_ids(3, 4)
    net = built(lambda: Net(nn.Dense(DIM, flatten=False, in_units=DIM)), ids, dtype)
    if hybridised:
        net.hybridize()
    expected = embgrad.tables.parameter_gradients(net, ids, embgrad.Sum())
    net.layer.weight.grad_req = "null"
    for _ in range(20):
        junk = [mx.nd.full((DIM,), 1e3, dtype=dtype) for _ in range(20)]  # what lies in memory before
        mx.nd.waitall()
        del junk
        found = embgrad.tables.parameter_gradients(net, ids, embgrad.Sum())
        assert set(expected) - set(found) == {"layer.weight"}
        for name, gradient in found.items():
            np.testing.assert_array_equal(gradient, expected[name])


def test_operators_with_a_gradient_of_their_own_on_other_outputs_are_accepted() -> None:
    class Beside(Net):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            rows = F.mean(self.embedding(x), axis=1)
            return rows * 2, F.SoftmaxOutput(rows, F.zeros_like(rows))

    net = built(lambda: Beside(None), distinct_ids(), "float32")
    assert (embgrad.gradients(net, distinct_ids(), embgrad.Sum(output="0")).values == np.float32(0.4)).all()


class Failing(Net):
    """Looks up what is not there, in a mode in which MXNet does notice, when the result is read."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        mean = F.mean(self.embedding(x), axis=1)
        return mean * 2, mean + F.sum(F.take(mean, F.ones((3,)) * 7, mode="raise"))


def test_a_failed_forward_pass_is_not_pulled_back() -> None:
    """MXNet fails when a result is read; a gradient that is read first comes as if nothing had happened."""
    net = Failing(None)
    net.initialize()
    for objective in (
        embgrad.Sum(output="0"),
        embgrad.Sum(output="1"),
        lambda out: out[0].sum(axis=1),
        lambda out: out[1][:, 0],
    ):
        with pytest.raises((IndexError, mx.MXNetError), match="out of bound"):
            embgrad.gradients(net, distinct_ids(), objective)
    with pytest.raises((IndexError, mx.MXNetError), match="out of bound"):
        embgrad.points(net, distinct_ids())
    mx.nd.waitall()  # nothing is left to fail later


def test_the_number_of_openmp_threads_survives_the_import() -> None:
    """MXNet's import sets it to one, for PyTorch too; `tests/cross/parity` looks at PyTorch itself."""
    code = """
import ctypes, numpy as np
threads = ctypes.CDLL("libgomp.so.1")
threads.omp_set_num_threads(3)
before = "bool" in vars(np)
import embgrad
from embgrad_gluon.importing import import_mxnet
net = import_mxnet().gluon.nn.Embedding(5, 2)
net.initialize()
embgrad.gradients(net, np.array([[1, 2]]), embgrad.Sum())
print(threads.omp_get_max_threads(), ("bool" in vars(np)) == before)
"""
    assert run(code).split() == ["3", "True"]


def test_an_imported_mxnet_is_not_changed() -> None:
    code = """
import ctypes, numpy as np
np.bool = bool
import mxnet
ctypes.CDLL("libgomp.so.1").omp_set_num_threads(1)
from embgrad_gluon.importing import import_mxnet
assert import_mxnet() is mxnet
print(ctypes.CDLL("libgomp.so.1").omp_get_max_threads(), np.bool is bool)
"""
    assert run(code).split() == ["1", "True"]


@pytest.mark.parametrize("version", ["2.0.0", "2.3.1"])
def test_a_numpy_that_mxnet_cannot_be_imported_with(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(np, "__version__", version)
    assert import_mxnet() is sys.modules["mxnet"]  # which is imported already
    monkeypatch.delitem(sys.modules, "mxnet")
    message = (
        rf"MXNet cannot be imported with NumPy {version}, which lacks np\.PZERO and other names that it reads\. "
        r"Run pip install 'numpy>=1\.24,<2', and restart Python"
    )
    with pytest.raises(BackendError, match=message):
        import_mxnet()
    assert "mxnet" not in sys.modules


@pytest.mark.parametrize("missing", ["distutils", "distutils.version", "pkg_resources"])
def test_missing_modules_of_setuptools_are_explained(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.delitem(sys.modules, "mxnet")
    monkeypatch.setattr(importlib, "import_module", without)
    said = rf"mxnet cannot be imported without {missing}, which Python 3\.12 and .* Run pip install 'setuptools<81', and restart"
    with pytest.raises(BackendError, match=said):
        import_mxnet()
    missing = "graphviz"
    with pytest.raises(ModuleNotFoundError, match="No module named 'graphviz'"):
        import_mxnet()


def run(code: str) -> str:
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), *sys.path])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Dropping(Net):
    """A net that draws its dropout in one of several ways."""

    def __init__(self, draw: Any) -> None:
        super().__init__(None)
        self.draw = draw
        self.head = nn.Dense(3, in_units=DIM)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.head(self.draw(F, F.mean(F.tanh(self.embedding(x)), axis=1)))


@pytest.mark.parametrize("hybridised", [False, True])
@pytest.mark.parametrize(
    ("draw", "training"),
    [
        (lambda F, x: F.Dropout(x, p=0.5), True),
        (lambda F, x: F.Dropout(x, p=0.5, axes=(0,)), True),
        (lambda F, x: F.Dropout(x, p=0.5, mode="always"), True),
        (lambda F, x: F.Dropout(F.Dropout(x, p=0.3), p=0.3), True),
    ],
    ids=["dropout", "along an axis", "always", "twice"],
)
def test_each_pullback_drops_what_the_forward_pass_dropped(draw: Any, training: bool, hybridised: bool) -> None:
    ids = distinct_ids(3, 4)
    net = built(lambda: Dropping(draw), ids, "float64")
    if hybridised:
        net.hybridize()

    def seeded(objective: Any, **options: Any) -> Any:
        mx.random.seed(7)
        return embgrad.gradients(net, ids, objective, training=training, **options)

    whole = seeded(embgrad.Logit(1)).values
    assert (whole == 0).all(1).any()  # something was dropped
    np.testing.assert_array_equal(seeded(embgrad.Logit(1), split=True).values, whole)
    for result in seeded([embgrad.Logit(1), embgrad.Logit(1)]):
        np.testing.assert_array_equal(result.values, whole)


def test_an_edit_on_one_of_two_ways_through_a_dropout() -> None:
    class Branches(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(ROWS, DIM)
            self.inner = nn.Dense(DIM, in_units=DIM, flatten=False)
            self.head = nn.Dense(3, in_units=DIM)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            dropped = F.Dropout(self.embedding(x), p=0.5)
            return self.head(F.mean(dropped + self.inner(dropped), axis=1))

    net, values = built(Branches, distinct_ids(3, 4), "float64"), []
    for edit in ({}, {"inner": lambda gradient: gradient}):
        mx.random.seed(7)
        values.append(embgrad.gradients(net, distinct_ids(3, 4), embgrad.Logit(1), training=True, edit=edit).values)
    assert (values[0] == 0).any()
    np.testing.assert_allclose(values[1], values[0], rtol=1e-12, atol=1e-15)
