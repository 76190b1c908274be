"""MXNet Gluon: nets of several kinds, and faults that no rule of the diagnosis was written for, by the framework's own means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from embgrad_gluon.importing import import_mxnet

from tests.cross.diagnosis.held_out_list import WEIGHT, Broken, Injection, Net

mx = import_mxnet()
nn = mx.gluon.nn
VOCAB: Final = 57


def tanh(F: Any, x: Any) -> Any:
    return F.tanh(x)


def gelu(F: Any, x: Any) -> Any:
    return F.LeakyReLU(x, act_type="gelu")


class OwnNet(mx.gluon.Block):
    """A table, two dense layers with activations behind, and the mean over the positions."""

    def __init__(self, kind: str, wide: int, biased: tuple[bool, bool] = (True, True)) -> None:
        super().__init__()
        self.kind, self.wide, self.kept, self.change = kind, wide, 1.0, None
        with self.name_scope():
            self.table = nn.Embedding(VOCAB, wide)
            if kind == "lstm":
                self.recurrent = mx.gluon.rnn.LSTM(wide, layout="NTC", input_size=wide)
            if kind == "residual":
                self.norm, self.norm2 = nn.LayerNorm(in_channels=wide), nn.LayerNorm(in_channels=wide)
            self.a, self.b = (nn.Dense(wide, flatten=False, in_units=wide, use_bias=one) for one in biased)
            self.act1, self.act2 = (nn.HybridLambda(tanh if kind == "plain" else gelu) for _ in range(2))
            self.head = nn.Dense(3, in_units=wide)

    def forward(self, ids: Any) -> Any:
        x = self.table(ids)
        if self.kind == "lstm":
            x = self.recurrent(x)
        if self.kind == "residual":
            x = self.norm(x)
        y = self.b(self.act1(self.a(x)))
        y = self.act2(y if self.change is None else self.change(y))
        if self.kind == "residual":
            y = self.norm2(y + self.kept * x)
        return self.head(y.mean(axis=1))


def build(kind: str, seed: int) -> Any:
    """A healthy net; every second one with biases of zero and gains of one."""
    model = OwnNet(kind, (24, 32, 40)[seed % 3])
    model.initialize(mx.init.Zero())
    random = np.random.default_rng([seed, 13])
    for name, parameter in sorted(model._collect_params_with_prefix().items()):
        gain = 1.0 if name.endswith("gamma") else 0.0
        size = 0.3 if len(parameter.shape) > 1 else 0.2 * (seed % 2 == 0)
        parameter.set_data(mx.nd.array(gain + random.normal(0, size, parameter.shape)))
    return model


NETS: Final = tuple(Net("gluon", kind, build) for kind in ("plain", "residual", "lstm"))


def _of_a(change: Callable[[Any], Any], *causes: str) -> Injection:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        model.a.weight.set_data(mx.nd.array(change(model.a.weight.data().asnumpy())))
        return Broken(model, (*causes, WEIGHT), "a")

    return inject


def _biased(model: Any) -> bool:
    return bool(model.a.bias.data().asnumpy().any())


def bias_zeroed(model: Any, random: np.random.Generator) -> Broken | None:
    there = _biased(model)
    model.a.bias.set_data(mx.nd.zeros_like(model.a.bias.data()))
    return Broken(model, ("missing-bias", WEIGHT), "a") if there else None


def _without(first: bool, second: bool, where: str) -> Injection:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        other = OwnNet(model.kind, model.wide, (first, second))
        other.initialize(mx.init.Zero())
        own = model._collect_params_with_prefix()
        for name, parameter in other._collect_params_with_prefix().items():
            parameter.set_data(own[name].data())
        return Broken(other, ("missing-bias", WEIGHT), where) if _biased(model) else None

    return inject


def swapped(model: Any, random: np.random.Generator) -> Broken | None:
    for one, other in ((model.a.weight, model.b.weight), (model.a.bias, model.b.bias)):
        value = one.data().copy()
        one.set_data(other.data())
        other.set_data(value)
    return Broken(model, ("swapped-weights", WEIGHT), "a")


def copied(model: Any, random: np.random.Generator) -> Broken | None:
    model.a.weight.set_data(model.b.weight.data())
    return Broken(model, (WEIGHT,), "a")


def rounded(model: Any, random: np.random.Generator) -> Broken | None:
    for parameter in model.collect_params().values():
        parameter.set_data(parameter.data().astype("float16").astype("float32"))
    return Broken(model, ("half-weights", WEIGHT, "different-table"))


def epsilon(model: Any, random: np.random.Generator) -> Broken | None:
    if model.kind != "residual":
        return None
    model.norm2._epsilon = 1e-2
    return Broken(model, ("layer-norm-epsilon",), "norm2")


def gain(model: Any, random: np.random.Generator) -> Broken | None:
    if model.kind != "residual" or (model.norm2.gamma.data() == 1).asnumpy().all():
        return None
    model.norm2.gamma.set_data(mx.nd.ones_like(model.norm2.gamma.data()))
    return Broken(model, (WEIGHT,), "norm2")


def _activation(name: str) -> Injection:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        model.act1 = nn.HybridLambda(name)
        return Broken(model, ("activation", "gelu"))

    return inject


def residual(model: Any, random: np.random.Generator) -> Broken | None:
    model.kept = 0.0
    return Broken(model, ()) if model.kind == "residual" else None


def _behind(change: Callable[[Any], Any], *causes: str) -> Injection:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        model.change = change
        return Broken(model, causes)

    return inject


INJECTIONS: Final[Mapping[str, Injection]] = {
    "one bias zeroed": bias_zeroed,
    "one layer without a bias": _without(False, True, "a"),
    "every linear layer without a bias": _without(False, False, ""),
    "one weight times 1.5": _of_a(lambda weight: 1.5 * weight),
    "one weight zeroed": _of_a(lambda weight: 0 * weight),
    "one weight transposed": _of_a(lambda weight: weight.T, "transposed-weight"),
    "one weight's rows permuted": _of_a(lambda weight: np.roll(weight, 3, 0)),
    "two layers swapped": swapped,
    "one layer with another's weights": copied,
    "weights rounded to float16": rounded,
    "one epsilon 1e-2": epsilon,
    "one norm's gain not loaded": gain,
    "one sigmoid for tanh": _activation("sigmoid"),
    "one ReLU for GELU or SiLU": _activation("relu"),
    "one residual missing": residual,
    "dropout in one layer": _behind(lambda x: mx.nd.Dropout(x, p=0.1, mode="always"), "dropout"),
    "one layer's output times 1.1": _behind(lambda x: 1.1 * x),
    "one layer's output half detached": _behind(lambda x: 0.5 * x + 0.5 * x.detach(), "constant-factor"),
    "one layer's output clipped": _behind(lambda x: mx.nd.clip(x, -0.5, 0.5)),
}
