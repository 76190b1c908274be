"""The framework's own contexts around a call, which must not affect it and must not be changed by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tests.fuzz.drawing import Draw


def surrounded(draw: Draw, framework: str) -> tuple[str, Callable[[], AbstractContextManager[Any]]]:
    contexts: dict[str, Callable[[], AbstractContextManager[Any]]] = {"nothing": contextlib.nullcontext}
    if draw.chance(0.75) or framework == "reference":
        return "nothing", contexts["nothing"]
    if framework == "torch":
        import torch

        contexts |= {
            "torch.no_grad()": torch.no_grad,
            "torch.inference_mode()": torch.inference_mode,
            "torch.enable_grad()": torch.enable_grad,
            "torch.autograd.set_detect_anomaly(True)": lambda: torch.autograd.set_detect_anomaly(True),
        }
    elif framework == "tensorflow":
        import tensorflow as tf

        contexts |= {
            "tf.GradientTape()": tf.GradientTape,
            "tf.GradientTape(persistent=True)": lambda: tf.GradientTape(persistent=True),
            "tf.device('CPU:0')": lambda: tf.device("CPU:0"),
            "tf.name_scope('mine')": lambda: tf.name_scope("mine"),
        }
    elif framework == "jax":
        import jax

        contexts |= {
            "jax.disable_jit()": jax.disable_jit,
            "jax.debug_nans(True)": lambda: jax.debug_nans(True),
            "jax.default_matmul_precision('float32')": lambda: jax.default_matmul_precision("float32"),
            "jax.named_scope('mine')": lambda: jax.named_scope("mine"),
        }
    else:
        import mxnet as mx

        contexts |= {
            "autograd.record()": mx.autograd.record,
            "autograd.record(train_mode=False)": lambda: mx.autograd.record(train_mode=False),
            "autograd.pause()": mx.autograd.pause,
            "autograd.train_mode()": mx.autograd.train_mode,
            "name.Prefix('mine_')": lambda: mx.name.Prefix("mine_"),
        }
    name = draw.choice(list(contexts))
    return name, contexts[name]
