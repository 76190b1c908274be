"""Ports written by hand in JAX: Kim's convolutions over text, and Mamba with a scan over positions."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.cross.ports.by_hand import State
from tests.cross.ports.by_hand_jax import ACTIVATIONS
from tests.cross.ports.own_settings import Settings

# Convolutions over text


def convolved(x: Any, p: Any, s: Any) -> Any:
    """Return what a convolution makes of (example, position, feature); its kernel is (tap, input, output)."""
    kernel, taps = p["kernel"], p["kernel"].shape[0]
    if s.form == "conv":
        y = jax.lax.conv_general_dilated(x, kernel, (1,), s.padding, dimension_numbers=("NWC", "WIO", "NWC"))
        return y + p["bias"]
    length = x.shape[1] - taps + 1
    shifted = [x[:, tap : tap + length] for tap in range(taps)]
    if s.form == "patches":
        return jnp.concatenate(shifted, -1) @ kernel.reshape(-1, kernel.shape[2]) + p["bias"]
    return sum(part @ kernel[tap] for tap, part in enumerate(shifted)) + p["bias"]


def classified(settings: Settings, p: Any, ids: Any) -> Any:
    s, x, pooled = settings.at(), p["words"][ids], []
    for n in range(3):
        own = settings.at(n)
        y = convolved(x, p[f"conv{n}"], own)
        pool = {"max": jnp.max, "mean": jnp.mean}[own.pooled]
        pooled.append(pool(ACTIVATIONS[own.act](y), 1))
    joined = jnp.concatenate([pooled[n] for n in s.order], -1)
    return joined @ p["head"]["kernel"] + p["head"]["bias"]


def jax_textcnn(state: State, _: Any, settings: Settings) -> Any:
    """Return the function of parameters and ids, and the parameters."""
    words, s = state["words.weight"].copy(), settings.at()
    if s.padding_row:
        words[1] = np.random.default_rng(4).normal(0, 0.6, words.shape[1])
    p: dict[str, Any] = {"words": words, "head": {"kernel": state["head.weight"].T, "bias": state["head.bias"]}}
    for n in range(3):
        own, weight = settings.at(n), state[f"convs.{n}.weight"]
        kernel = weight.transpose(2, 0, 1) if own.kernel == "outputs first" else weight.transpose(2, 1, 0)
        kernel = weight.reshape(kernel.shape) if own.kernel == "reshaped" else kernel
        kernel = kernel[::-1] if own.kernel == "flipped" else kernel
        p[f"conv{n}"] = {"kernel": kernel, "bias": state[f"convs.{n}.bias"] * own.bias}
    function = functools.partial(classified, settings)
    if s.texts == "mapped":
        function = jax.vmap(lambda p, one: classified(settings, p, one[None])[0], (None, 0))  # type: ignore[assignment]
    return jax.jit(function) if s.jit else function, jax.tree.map(lambda value: jnp.asarray(value.copy()), p)


jax_textcnn.usual = {  # type: ignore[attr-defined]
    **{"form": "conv", "padding": "VALID", "act": "relu", "pooled": "max", "order": (0, 1, 2)},
    **{"padding_row": False, "kernel": "permuted", "bias": 1.0, "texts": "together", "jit": True},
}


# Mamba


def rms(x: Any, gain: Any, s: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + s.eps) * gain


def caused(x: Any, p: Any, s: Any) -> Any:
    """Return the depthwise convolution of (example, position, feature) with what came before."""
    kernel = p["conv"][::-1] if s.flipped else p["conv"]  # (tap, feature)
    taps = len(kernel)
    before = (taps - 1) // 2 if s.centre else taps - 1
    padded = jnp.pad(x, ((0, 0), (before, taps - 1 - before), (0, 0)))
    options = {"dimension_numbers": ("NWC", "WIO", "NWC"), "feature_group_count": x.shape[-1]}
    return jax.lax.conv_general_dilated(padded, kernel[:, None], (1,), "VALID", **options) + p["conv_bias"]


def selected(u: Any, dt: Any, p: Any, b: Any, c: Any, s: Any) -> Any:
    """Return the outputs of the states, (example, position, feature)."""
    a = {"minus": -1.0, "plus": 1.0}.get(s.decay, 0.0) * jnp.exp(p["A_log"]) + (s.decay == "log") * p["A_log"]
    kept = jnp.exp(dt[..., None] * a)
    given = ((kept - 1) / a if s.hold else dt[..., None]) * b[:, :, None] * u[..., None]
    if s.form == "associative":
        states = jax.lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (kept, given), axis=1)[1]
        return jnp.einsum("btdn,btn->btd", states, c)

    def step(h: Any, now: Any) -> Any:
        h = now[0] * h + now[1]
        return h, jnp.einsum("bdn,bn->bd", h, now[2])

    first, parts = jnp.zeros_like(given[:, 0]), tuple(y.swapaxes(0, 1) for y in (kept, given, c))
    if s.form == "loop":
        outputs, h = [], first
        for t in range(u.shape[1]):
            h, y = step(h, tuple(part[t] for part in parts))
            outputs.append(y)
        return jnp.stack(outputs, 1)
    return jax.lax.scan(step, first, parts)[1].swapaxes(0, 1)


def mixed(x: Any, p: Any, s: Any) -> Any:
    u, gate = jnp.split(x @ p["in_proj"], 2, -1)[:: -1 if s.gate_first else 1]
    u = caused(u, p, s)
    u = jax.nn.silu(u) if s.act else u
    rank, size = p["dt_proj"].shape[0], p["A_log"].shape[1]
    dt, b, c = jnp.split(u @ p["x_proj"], (rank, rank + size), -1)
    b, c = (c, b) if s.split == "output first" else (b, c)
    dt = dt @ p["dt_proj"] + p["dt_bias"] * s.step_bias
    dt = {"softplus": jax.nn.softplus, "none": lambda y: y}[s.step](dt)
    y = selected(u, dt, p, b, c, s) + u * p["D"] * s.skip
    return (y * jax.nn.silu(gate)) @ p["out_proj"]


def ahead(settings: Settings, depth: int, p: Any, ids: Any) -> Any:
    x = p["words"][ids]
    for n in range(depth):
        s = settings.at(n)
        y = mixed(rms(x, p[f"layer{n}"]["norm"], s), p[f"layer{n}"], s)
        x = x + y if s.residual else y
    s = settings.at()
    return rms(x, p["norm"], s) @ p["words"].T


def scan_mamba(state: State, config: Any, settings: Settings) -> Any:
    """Return the function of parameters and ids, and the parameters."""
    p: dict[str, Any] = {"words": state["backbone.embeddings.weight"], "norm": state["backbone.norm_f.weight"]}
    for n in range(config.num_hidden_layers):
        own = f"backbone.layers.{n}.mixer"
        names = ("in_proj", "x_proj", "dt_proj", "out_proj")
        p[f"layer{n}"] = {name: state[f"{own}.{name}.weight"].T for name in names} | {
            **{name: state[f"{own}.{name}"] for name in ("A_log", "D")},
            **{"norm": state[f"backbone.layers.{n}.norm.weight"], "dt_bias": state[f"{own}.dt_proj.bias"]},
            **{"conv": state[f"{own}.conv1d.weight"][:, 0].T, "conv_bias": state[f"{own}.conv1d.bias"]},
        }
    function = functools.partial(ahead, settings, config.num_hidden_layers)
    return jax.jit(function), jax.tree.map(lambda value: jnp.asarray(value.copy()), p)


scan_mamba.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-5, "flipped": False, "centre": False, "form": "scan", "decay": "minus", "hold": False},
    **{"gate_first": False, "act": True, "split": "step first", "step": "softplus", "step_bias": 1.0, "skip": 1.0},
    **{"residual": True},
}
