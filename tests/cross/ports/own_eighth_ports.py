"""An eighth list of ports written from scratch, of models that are no stacks of attention: recurrent nets, convolutions, state
spaces, Fourier transforms and averages.

The list was written down before any of it was tried, without a look at how causes are found. Ports and faults were run for
their outputs alone: a port is its reference's to rounding, and a fault is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from embgrad import TokenBatch
from tests.cross.ports import own_eighth_references as references
from tests.cross.ports.architectures import token_batch
from tests.cross.ports.own_fault import (
    EPSILON,
    IDS,
    MASKED,
    NORM,
    SWAP,
    TYPED,
    OwnPort,
    own_list,
    planted,
    swapped,
    transposed,
    weights,
)


def _typed() -> TokenBatch:
    return token_batch("bert")


def _port(
    reference: Callable[[], Any], framework: str, name: str, call: str = MASKED, batch: Any = references.texts
) -> OwnPort:
    return OwnPort(reference, batch, (f"own_eighth_{framework}", name), call)


_PORTS: Final[Mapping[str, OwnPort]] = {
    "keras-bilstm": _port(lambda: references.BiLstm().drawn(), "keras", "KerasBiLstm"),
    "keras-gru": _port(lambda: references.GruLm().drawn(), "keras", "KerasGru", IDS),
    "jax-textcnn": _port(lambda: references.TextCnn().drawn(), "jax", "jax_textcnn", IDS),
    "gluon-lstm-attention": _port(lambda: references.LstmAttention().drawn(), "gluon", "GluonAttention"),
    "scan-mamba": _port(references.mamba, "jax", "scan_mamba", IDS),
    "torch-rwkv": _port(references.rwkv, "torch", "FileRwkv", ""),
    "tf-fnet": _port(references.fnet, "tensorflow", "VariablesFnet", TYPED, batch=_typed),
    "torch-convbert": _port(references.convbert, "torch", "SpanConvBert", "", batch=_typed),
    "keras-averaging": _port(lambda: references.Averaging().drawn(), "keras", "KerasAveraging"),
}

_IFOG: Final = (0, 1, 3, 2)
_ROWS: Final = "permuted-weight swapped-weights"
_ACT: Final = "activation missing-part"
_MIXER: Final = "mixer|layers"
_TIME: Final = "attention|blocks"
_SPAN: Final = "attention|conv"
_MLP: Final = "intermediate|output"

#: What runs a recurrence otherwise. Those with this cause were listed as faults without a name at first.
_RUN: Final = "recurrence"

# Where no cause has a name that is true (causes ""), the label says what is wrong, as a name of a cause could: "reset-before",
# "update-turned", "backward-not-turned-back". Where a named cause is near but not the whole truth, naming none is right as well.
_FAULTS: Final = (
    planted("keras-bilstm", "gates-ifog", _ROWS, "lstm", gates=_IFOG),
    planted("keras-bilstm", "gates-ifog-in-one", _ROWS, "lstm", gates=_IFOG, layers=(1,)),
    planted("keras-bilstm", "no-hidden-bias", "missing-bias", "lstm", hidden_bias=0.0),
    planted("keras-bilstm", "hidden-bias-twice", "different-weight", "lstm", hidden_bias=2.0, may_be_unnamed=True),
    planted("keras-bilstm", "forget-bias-of-1", "different-weight", "lstm", forget=1.0, may_be_unnamed=True),
    planted("keras-bilstm", "backward-not-turned-back", _RUN, "lstm", form="apart", turned_back=False),
    planted("keras-bilstm", "both-forwards-in-one", _RUN, "lstm", form="apart", backwards=False, layers=(1,)),
    planted("keras-bilstm", "directions-exchanged", SWAP, "lstm", exchanged=True),
    planted("keras-bilstm", "hard-sigmoid", "activation", "lstm", gate="hard_sigmoid"),
    planted("keras-bilstm", "recurrent-as-stored-in-one", "transposed-weight", "lstm", as_stored=True, layers=(0,)),
    planted("keras-bilstm", "padding-run-through", "mask-ignored", "lstm", mask="none"),
    planted("keras-bilstm", "mask-of-words", "mask-ignored", "lstm", mask="words", may_be_unnamed=True),
    # Keras sets a bidirectional layer's outputs to zero at padding, and unrolled backwards by the mask that is not turned.
    planted("keras-bilstm", "unrolled-under-mask", "", "lstm", unroll=True),
    planted("keras-bilstm", "maximum-for-mean", "pooling", "head|lstm", pooled="max"),
    planted("keras-bilstm", "padding-pooled", "pooling", "head|lstm", pooled="all"),
    planted("keras-gru", "gates-as-stored", _ROWS, "gru", gates=(0, 1, 2)),
    planted("keras-gru", "gates-as-stored-in-one", _ROWS, "gru", gates=(0, 1, 2), layers=(1,)),
    planted("keras-gru", "reset-before", _RUN, "gru", reset_after=False),
    planted("keras-gru", "hidden-bias-merged", f"missing-bias different-weight {_RUN}", "gru", bias="merged"),
    planted("keras-gru", "no-hidden-bias", "missing-bias", "gru", bias="input"),
    planted("keras-gru", "no-input-bias-in-one", "missing-bias", "gru", bias="hidden", layers=(0,)),
    planted("keras-gru", "update-turned", _RUN, "gru", form="steps", update_turned=True),
    planted("keras-gru", "relu-for-tanh", "activation", "gru", act="relu"),
    planted("keras-gru", "hard-sigmoid-in-one", "activation", "gru", gate="hard_sigmoid", layers=(1,)),
    planted("keras-gru", "recurrent-as-stored", "transposed-weight", "gru", as_stored=True),
    planted("keras-gru", "head-of-table", "head-untied different-weight", "head", tied=True),
    planted("keras-gru", "one-layer-less", "missing-part", "gru|head", depth=1),
    planted("jax-textcnn", "kernels-flipped", _ROWS, "convs", kernel="flipped"),
    planted(
        "jax-textcnn", "kernel-reshaped-in-one", f"{_ROWS} transposed-weight", "convs", kernel="reshaped", layers=(1,)
    ),
    planted("jax-textcnn", "outputs-first", "transposed-weight", "convs", kernel="outputs first"),
    # This fault was listed as one without a name at first.
    planted("jax-textcnn", "same-padding", "convolution", "convs|head", padding="SAME"),
    planted("jax-textcnn", "mean-for-maximum", "pooling", "convs|head", pooled="mean"),
    planted("jax-textcnn", "no-activation", _ACT, "convs|head", act="none"),
    planted("jax-textcnn", "gelu-for-relu-in-one", "activation", "convs|head", act="gelu", layers=(2,)),
    planted("jax-textcnn", "no-bias-in-one", "missing-bias", "convs", bias=0.0, layers=(0,)),
    planted("jax-textcnn", "widths-turned", _ROWS, "convs|head", order=(2, 1, 0)),
    planted("jax-textcnn", "widths-inside", _ROWS, "convs|head", joined="inside"),
    planted("jax-textcnn", "padding-row-drawn", "padding-row different-table", "words", padding_row=True),
    planted("gluon-lstm-attention", "softmax-over-texts", "pooling", "score|head", axis=1),
    planted("gluon-lstm-attention", "padding-attended", "mask-ignored", "score|head", mask="none"),
    planted(
        "gluon-lstm-attention", "mask-times-scores", "mask-ignored", "score|head", mask="times", may_be_unnamed=True
    ),
    planted("gluon-lstm-attention", "no-tanh", _ACT, "memory|query|score", act="none"),
    planted("gluon-lstm-attention", "relu-for-tanh", "activation", "memory|query|score", act="relu"),
    planted(
        *("gluon-lstm-attention", "memory-for-query", SWAP, "memory|query"),
        change=swapped("memory.", "query."),
    ),
    planted("gluon-lstm-attention", "texts-as-time", _RUN, "lstm", turned=False),
    planted(
        "gluon-lstm-attention", "last-at-padding", "pooling", "query|memory|lstm", last="padded", may_be_unnamed=True
    ),
    planted("gluon-lstm-attention", "scores-scaled", "attention-scale", "score|head", scale=32**-0.5),
    planted(
        "gluon-lstm-attention", "sigmoid-for-softmax", "activation", "score|head", shares="sigmoid", may_be_unnamed=True
    ),
    planted("gluon-lstm-attention", "words-weighed", "pooling", "head|score", values="words"),
    planted("gluon-lstm-attention", "gates-ifog-in-one", _ROWS, "lstm", gates=_IFOG, layers=(0,)),
    planted("gluon-lstm-attention", "no-hidden-bias", "missing-bias", "lstm", hidden_bias=0.0),
    planted("gluon-lstm-attention", "hidden-weight-of-first-in-one", SWAP, "lstm", of=0, layers=(1,)),
    planted("scan-mamba", "no-softplus", _ACT, _MIXER, step="none"),
    planted("scan-mamba", "relu-for-softplus-in-one", "activation", _MIXER, step="relu", layers=(1,)),
    planted("scan-mamba", "no-step-bias", "missing-bias", _MIXER, step_bias=0.0),
    planted("scan-mamba", "states-grow", _RUN, _MIXER, decay="plus"),
    planted("scan-mamba", "decay-as-stored-in-one", _RUN, _MIXER, decay="log", layers=(2,)),
    planted("scan-mamba", "no-skip", "missing-residual missing-part different-weight", _MIXER, skip=0.0),
    planted("scan-mamba", "kernels-flipped", _ROWS, _MIXER, flipped=True),
    # There was no cause "convolution" when this fault was listed.
    planted("scan-mamba", "convolution-centred", "attention-causal convolution", _MIXER, centre=True),
    planted("scan-mamba", "no-silu-behind-convolution-in-one", _ACT, _MIXER, act=False, layers=(0,)),
    planted("scan-mamba", "sigmoid-for-silu-of-gate", "activation", _MIXER, gate="sigmoid"),
    planted("scan-mamba", "gate-first", f"gate-swapped {_ROWS}", _MIXER, gate_first=True),
    planted("scan-mamba", "output-matrix-first", _ROWS, _MIXER, split="output first"),
    planted("scan-mamba", "step-last-in-one", _ROWS, _MIXER, split="step last", layers=(1,)),
    planted("scan-mamba", "input-held", _RUN, _MIXER, hold=True),
    planted("scan-mamba", "epsilon", EPSILON, NORM, eps=1e-3),
    planted("scan-mamba", "no-residual-in-one", "missing-residual", _MIXER, residual=False, layers=(1,)),
    planted(
        "torch-rwkv",
        "key-mix-for-value-mix",
        SWAP,
        _TIME,
        change=swapped("attention.time_mix_key", "attention.time_mix_value"),
    ),
    planted("torch-rwkv", "mixes-turned", "", _TIME, mix_turned=True),
    planted("torch-rwkv", "no-shift-in-one", "", _TIME, shift=0, layers=(1,)),
    planted("torch-rwkv", "decay-grows", "", _TIME, decay="exp"),
    planted("torch-rwkv", "decay-as-stored-in-one", "", _TIME, decay="minus", layers=(2,)),
    planted("torch-rwkv", "no-bonus", "missing-bias missing-part", _TIME, bonus=False, may_be_unnamed=True),
    planted("torch-rwkv", "relu-unsquared", "activation", "feed_forward|blocks", squared=False),
    planted("torch-rwkv", "receptance-linear-in-one", _ACT, _TIME, receptance=False, layers=(0,)),
    planted("torch-rwkv", "no-first-norm", "missing-norm", "pre_ln|blocks", pre_norm=False),
    planted("torch-rwkv", "norms-exchanged", SWAP, "ln", change=swapped(".ln1.", ".ln2.")),
    planted("tf-fnet", "absolute-for-real", "", "fourier", part="absolute"),
    planted("tf-fnet", "features-alone", "", "fourier", axes="features"),
    planted("tf-fnet", "positions-alone-in-one", "", "fourier", axes="positions", layers=(1,)),
    # "Multiplied by 0.044" has a name, which was overlooked when this fault was listed without one.
    planted("tf-fnet", "unitary-transform", "residual-scale", "fourier", unit=True, may_be_unnamed=True),
    planted("tf-fnet", "norms-before", "norm-order", "fourier|output|layer", pre_norm=True),
    planted("tf-fnet", "epsilon-of-keras", EPSILON, NORM, eps=1e-3),
    planted("tf-fnet", "types-ignored", "types-ignored", "embeddings", types=False),
    planted("tf-fnet", "exact-gelu", "gelu", _MLP, gelu="erf"),
    planted(
        "tf-fnet", "no-residual-of-transform-in-one", "missing-residual", "fourier|layer", residual=False, layers=(2,)
    ),
    planted("tf-fnet", "unprojected", "missing-part", "projection|embeddings", projection=False),
    planted("tf-fnet", "padding-masked", "mask-ignored", "fourier|embeddings", masked=True),
    planted("torch-convbert", "depthwise-flipped", _ROWS, _SPAN, depth_flipped=True),
    planted("torch-convbert", "kernels-flipped-in-one", _ROWS, _SPAN, kernel_flipped=True, layers=(1,)),
    planted("torch-convbert", "spans-without-query", "missing-part", _SPAN, with_query=False, may_be_unnamed=True),
    planted("torch-convbert", "no-softmax-of-kernels", _ACT, _SPAN, over="none", may_be_unnamed=True),
    planted("torch-convbert", "softmax-over-heads-in-one", "", _SPAN, over="heads", layers=(2,)),
    planted("torch-convbert", "taps-before-heads", f"{_ROWS} attention-heads", _SPAN, taps_first=True),
    planted("torch-convbert", "convolution-causal", "", _SPAN, causal=True),
    planted("torch-convbert", "spans-first", _ROWS, _SPAN, spans_first=True),
    planted("torch-convbert", "joined-by-head", "permuted-weight attention-heads", _SPAN, joined="features"),
    planted("torch-convbert", "no-span-bias", "missing-bias", _SPAN, span_bias=0.0),
    planted("torch-convbert", "groups-in-turn", _ROWS, _MLP, grouped="in turn"),
    planted("keras-averaging", "sum-for-mean", "pooling", "first|words|pairs", pooled="sum"),
    planted("keras-averaging", "root-of-number", "pooling", "first|words|pairs", pooled="root"),
    planted("keras-averaging", "padding-counted", "pooling mask-ignored", "first|words|pairs", real=False),
    planted("keras-averaging", "divided-by-words", "pooling", "first|words|pairs", pooled="words"),
    planted("keras-averaging", "no-pairs", "missing-part", "first|words|pairs", pairs=False, may_be_unnamed=True),
    planted("keras-averaging", "hash-turned", "other-ids", "pairs|first", turned=True),
    planted("keras-averaging", "hash-of-another-number", "other-ids", "pairs|first", times=37),
    planted("keras-averaging", "pairs-in-words", SWAP + " different-table", "pairs|first", tables=("words", "words")),
    planted("keras-averaging", "second-linear", _ACT, "second|head", second="linear"),
    planted("keras-averaging", "layers-exchanged", SWAP, "first|second", change=swapped("first.", "second.")),
    planted(
        *("keras-averaging", "second-transposed", "transposed-weight", "second"),
        change=weights(r"second\.weight", by=transposed),
    ),
)

LIST: Final = own_list(
    _PORTS,
    _FAULTS,
    pairs=(
        ("keras-bilstm", "no-hidden-bias", "padding-pooled"),
        ("keras-gru", "gates-as-stored", "head-of-table"),
        ("jax-textcnn", "kernels-flipped", "mean-for-maximum"),
        ("gluon-lstm-attention", "no-hidden-bias", "no-tanh"),
        ("scan-mamba", "no-step-bias", "epsilon"),
        ("torch-rwkv", "relu-unsquared", "no-first-norm"),
        ("tf-fnet", "types-ignored", "exact-gelu"),
        ("torch-convbert", "spans-first", "no-span-bias"),
        ("keras-averaging", "sum-for-mean", "second-linear"),
    ),
    right=(
        ("keras-bilstm", "layers-apart", {"form": "apart"}),
        ("keras-bilstm", "cells", {"form": "cells"}),
        ("keras-bilstm", "unrolled-apart", {"form": "apart", "unroll": True}),
        ("keras-gru", "cells", {"form": "cells"}),
        ("keras-gru", "steps", {"form": "steps"}),
        ("keras-gru", "unrolled", {"form": "unrolled"}),
        ("jax-textcnn", "shifted-products", {"form": "shifted"}),
        ("jax-textcnn", "patches", {"form": "patches", "jit": False}),
        ("jax-textcnn", "maximum-before-relu", {"pool_first": True}),
        ("jax-textcnn", "texts-mapped", {"texts": "mapped"}),
        ("gluon-lstm-attention", "cells", {"form": "cells"}),
        ("gluon-lstm-attention", "texts-first", {"layout": "NTC"}),
        ("gluon-lstm-attention", "batched-product", {"product": "batch"}),
        ("scan-mamba", "associative-scan", {"form": "associative"}),
        ("scan-mamba", "loop", {"form": "loop"}),
        ("scan-mamba", "shifted-products", {"conv": "shifted"}),
        ("torch-rwkv", "matrix-of-decays", {"form": "matrix"}),
        ("torch-rwkv", "keys-shifted", {"form": "shifted"}),
        ("torch-rwkv", "texts-alone", {"texts": "alone"}),
        ("tf-fnet", "products-with-matrices", {"form": "products"}),
        ("tf-fnet", "axis-by-axis", {"form": "one by one"}),
        ("tf-fnet", "batch-normalization", {"norm": "batch"}),
        ("torch-convbert", "shifted-products", {"form": "shifted"}),
        ("torch-convbert", "fused-attention", {"form": "fused"}),
        ("torch-convbert", "groups-in-one-matrix", {"grouped": "joined"}),
        ("keras-averaging", "counts", {"form": "counts"}),
        ("keras-averaging", "einsum", {"form": "einsum"}),
    ),
)
