"""MXNet Gluon by hand: healthy models, and the gradient as a user's own script takes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from embgrad_gluon.importing import import_gluonnlp, import_mxnet

from tests.cross.diagnosis.losses import Functions, losses_of, reduced
from tests.cross.diagnosis.recipes import Computed, Loss, Recipe

mx, gluonnlp = import_mxnet(), import_gluonnlp()
nn, bert = mx.gluon.nn, gluonnlp.model.bert

CONVENTIONS: Final = {"classifier": "gluonnlp", "encoder": "gluonnlp", "tied": "gluonnlp", "own": "ids"}

#: gluonnlp's modules by Hugging Face's names.
INNER: Final = {
    "attention.self.query": "attention_cell.proj_query",
    "attention.self.key": "attention_cell.proj_key",
    "attention.self.value": "attention_cell.proj_value",
    "attention.output.dense": "proj",
    "attention.output.LayerNorm": "layer_norm",
    "intermediate.dense": "ffn.ffn_1",
    "output.dense": "ffn.ffn_2",
    "output.LayerNorm": "ffn.layer_norm",
}
OUTER: Final = {
    "embeddings.word_embeddings": "word_embed.0",
    "embeddings.token_type_embeddings": "token_type_embed.0",
    "embeddings.LayerNorm": "encoder.layer_norm",
    "pooler.dense": "pooler",
    "head.transform.dense": "decoder.0",
    "head.transform.LayerNorm": "decoder.2",
}


class Tied(mx.gluon.Block):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.bert = inner

    def forward(self, inputs: Any, token_types: Any, valid_length: Any) -> Any:
        places = mx.nd.arange(inputs.shape[1], dtype="int32").tile((inputs.shape[0], 1))
        return self.bert(inputs, token_types, valid_length, places)[-1]


class Own(mx.gluon.HybridBlock):
    """A recurrent net of a user's own, which takes no mask."""

    def __init__(self, size: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.tokens = nn.Embedding(size.vocab, size.hidden)
            self.norm = nn.LayerNorm(in_channels=size.hidden)
            self.recurrent = mx.gluon.rnn.GRU(
                size.hidden // 2, bidirectional=True, layout="NTC", input_size=size.hidden
            )
            self.up = nn.Dense(size.inner, flatten=False, in_units=size.hidden)
            self.act = nn.GELU()
            self.down = nn.Dense(size.hidden, flatten=False, in_units=size.inner)
            self.drop = nn.Dropout(0.1)
            self.norm2 = nn.LayerNorm(in_channels=size.hidden)
            self.square = nn.Dense(size.hidden, flatten=False, activation="tanh", in_units=size.hidden)
            self.head = nn.Dense(size.classes, in_units=size.hidden)

    def hybrid_forward(self, F: Any, ids: Any) -> Any:
        x = self.recurrent(self.norm(self.tokens(ids)))
        y = self.drop(self.down(self.act(self.up(x))))
        x = self.square(self.norm2(y + x))
        return self.head(x.mean(axis=1))


def seed(number: int) -> None:
    mx.random.seed(number)


def build(kind: str, size: Any, weights: Mapping[str, np.ndarray], seed: int) -> Any:
    if kind == "own":
        return _randomised(Own(size), seed)
    encoder = bert.BERTEncoder(
        num_layers=size.layers,
        units=size.hidden,
        hidden_size=size.inner,
        max_length=size.positions,
        num_heads=size.heads,
        dropout=0.1,
    )
    inner = bert.BERTModel(
        encoder,
        vocab_size=size.vocab,
        token_type_vocab_size=size.types,
        units=size.hidden,
        embed_size=size.hidden,
        use_pooler=kind != "tied",
        use_decoder=kind == "tied",
        use_classifier=False,
    )
    wrapped = {"classifier": lambda: bert.BERTClassifier(inner, size.classes), "tied": lambda: Tied(inner)}
    model = wrapped[kind]() if kind in wrapped else inner
    model.initialize(mx.init.Zero())
    one = mx.nd.ones((1, 1), dtype="int32")
    model(one, one, mx.nd.ones((1,)))  # the first call tells the layers their sizes
    parameters = model._collect_params_with_prefix()
    for name, value in weights.items():
        native = _native(name, "" if kind == "encoder" else "bert.")
        if native in parameters:
            parameters[native].set_data(mx.nd.array(value))
    return model


def _native(name: str, prefix: str) -> str:
    plain = {
        "embeddings.position_embeddings.weight": f"{prefix}encoder.position_weight",
        "classifier.weight": "classifier.0.weight",
        "classifier.bias": "classifier.0.bias",
        "head.bias": f"{prefix}decoder.3.bias",
    }
    if name in plain:
        return plain[name]
    module, last = name.rsplit(".", 1)
    if module.endswith("LayerNorm"):
        last = {"weight": "gamma", "bias": "beta"}[last]
    if module in OUTER:
        return f"{prefix}{OUTER[module]}.{last}"
    _, _, number, inner = module.split(".", 3)
    return f"{prefix}encoder.transformer_cells.{number}.{INNER[inner]}.{last}"


def _randomised(model: Any, seed: int) -> Any:
    model.initialize(mx.init.Zero())
    random = np.random.default_rng([seed, 4])
    for name, parameter in sorted(model._collect_params_with_prefix().items()):
        base = 1.0 if name.endswith("gamma") else 0.0
        std = 0.4 if name.startswith("tokens") else 0.3 if len(parameter.shape) == 2 else 0.15
        parameter.set_data(mx.nd.array(base + random.normal(0, std, parameter.shape)))
    return model


class Port(mx.gluon.Block):
    """Somebody's port of the model, which loses an input on the way."""

    def __init__(self, inner: Any, drop: str) -> None:
        super().__init__()
        self.inner, self.drop = inner, drop

    def forward(self, inputs: Any, token_types: Any, valid_length: Any) -> Any:
        types = token_types * 0 if self.drop == "types" else token_types
        return self.inner(inputs, types, None if self.drop == "mask" else valid_length)


def core(model: Any) -> Any:
    """The model inside a port, and the BERT inside a head."""
    inner = model.inner if isinstance(model, Port) else model
    return getattr(inner, "bert", inner)


def is_own(model: Any) -> bool:
    return isinstance(core(model), Own)


def table_of(model: Any) -> Any:
    return core(model).tokens if is_own(model) else core(model).word_embed[0]


def by_hand(model: Any, world: Any, loss: Loss, recipe: Recipe) -> Computed:
    """The gradient as a user's own script takes it: what a block gives is computed first and then stands in for it."""
    mx.random.seed(world.seed)
    batch = world.batch
    if recipe.tap == "table":
        losses, total = _recorded(model, world, loss, recipe)
        total.backward(train_mode=recipe.training)
        found = table_of(model).weight.grad().asnumpy()[batch.ids]
        return Computed(found.astype(np.float32), losses.asnumpy().astype(np.float64))
    place = table_of(model) if recipe.tap == "lookup" else core(model).encoder.layer_norm
    given: list[Any] = []
    handle = place.register_forward_hook(lambda _, __, output: given.append(output))
    _called(model, world, recipe)
    handle.detach()
    value = given[0].detach()
    value.attach_grad()
    with _standing_in(place, value):
        losses, total = _recorded(model, world, loss, recipe)
        total.backward(train_mode=recipe.training)
    found = value.grad.asnumpy().astype(np.float32)
    return Computed(found if recipe.tap == "lookup" else found.transpose(1, 0, 2), losses.asnumpy().astype(np.float64))


@contextlib.contextmanager
def _standing_in(block: Any, value: Any) -> Iterator[None]:
    block.forward = lambda *_: value
    try:
        yield
    finally:
        del block.forward


def _recorded(model: Any, world: Any, loss: Loss, recipe: Recipe) -> tuple[Any, Any]:
    with mx.autograd.record(train_mode=recipe.training):
        losses = losses_of(_called(model, world, recipe).astype("float32"), loss, world, FUNCTIONS)
        return losses, reduced(losses, recipe.reduction, world, FUNCTIONS)


def _called(model: Any, world: Any, recipe: Recipe) -> Any:
    batch = world.batch
    ids = mx.nd.array(batch.ids + recipe.shift, dtype="int32")
    if world.kind == "own":
        return model(ids)
    types = mx.nd.array(batch.types * ("types" not in recipe.drop), dtype="int32")
    lengths = None if "mask" in recipe.drop else mx.nd.array(batch.lengths(), dtype="float32")
    if recipe.offset:
        raise ValueError("gluonnlp's BERT takes no position ids: use the modification 'offsets-positions'")
    output = model(ids, types, lengths)
    return output[0] if isinstance(output, (tuple, list)) else output


FUNCTIONS: Final = Functions(
    array=mx.nd.array,
    exp=mx.nd.exp,
    log_softmax=mx.nd.log_softmax,
    pick=mx.nd.pick,
    total=lambda array, axis: array.sum(axis),
)
