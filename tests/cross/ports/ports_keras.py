"""Ports to keras-hub: by its own converter, set right by hand where that drops a setting; else the weights by hand."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, Final

import keras
import keras_hub
import numpy as np
from safetensors.torch import save_file

from embgrad import TokenBatch
from tests.cross.ports.architectures import ARCHITECTURES
from tests.cross.ports.ports import saved

_OUTPUT: Final = "decoder_sequence_output"


def build(name: str, first: Any) -> Any:
    """Return keras-hub's port of a reference."""
    backbone = _BUILDERS[name.removesuffix("-lm")](first)
    if not name.endswith("-lm"):
        return backbone
    task = {"gpt2-lm": "GPT2CausalLM", "llama-lm": "Llama3CausalLM", "gemma2-lm": "GemmaCausalLM"}[name]
    return getattr(keras_hub.models, task)(backbone=backbone, preprocessor=None)


def keras_batch(name: str, batch: TokenBatch) -> TokenBatch:
    """Return the batch under the names of keras-hub's inputs."""
    if ARCHITECTURES[name].kind != "both":
        return batch.replace(convention="keras_hub")
    decoder = np.asarray(batch.extras["decoder_input_ids"], np.int32)
    extras = {"decoder_token_ids": decoder, "decoder_padding_mask": np.ones_like(decoder)}
    return batch.replace(convention="keras_hub_seq2seq", extras=extras)


def run(name: str, model: Any, batch: TokenBatch) -> np.ndarray:
    """Return the output that is compared."""
    outputs = model(batch.inputs(), training=False)
    if isinstance(outputs, dict):
        outputs = outputs[_OUTPUT] if _OUTPUT in outputs else outputs["sequence_output"]
    return np.asarray(outputs)


def converted(first: Any, backbone: str) -> Any:
    """Return what keras-hub's own converter makes of a reference, whose weights stand under the prefix of a model with a head."""
    prefix = "" if first.get_output_embeddings() is not None else f"{first.base_model_prefix}."
    with tempfile.TemporaryDirectory() as folder:
        saved(first, folder)
        state = {f"{prefix}{name}": value.clone() for name, value in first.state_dict().items()}
        save_file(state, f"{folder}/model.safetensors", {"format": "pt"})
        return getattr(keras_hub.models, backbone).from_preset(folder)


def epsilon(model: Any, value: float) -> None:
    """Set the epsilon of every norm."""
    for layer in model._flatten_layers(include_self=False):
        if hasattr(layer, "epsilon"):
            layer.epsilon = value


def put(variable: Any, value: Any) -> None:
    """Assign a value of the same number of entries to a variable."""
    array = value.detach().numpy() if hasattr(value, "detach") else value
    variable.assign(np.reshape(array, variable.shape))


def _bert(first: Any) -> Any:
    model = converted(first, "BertBackbone")
    for layer in model.transformer_layers:  # the converter leaves the approximate GELU
        layer._feedforward_intermediate_dense.activation = keras.activations.gelu
    return model


def _llama(first: Any) -> Any:
    model = converted(first, "Llama3Backbone")
    epsilon(model, first.config.rms_norm_eps)  # the converter drops it
    return model


def _mistral(first: Any) -> Any:
    """The converter rounds every weight to float16, and needs a head."""
    config = first.config
    model = keras_hub.models.MistralBackbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_query_heads=config.num_attention_heads,
        hidden_dim=config.hidden_size,
        intermediate_dim=config.intermediate_size,
        num_key_value_heads=config.num_key_value_heads,
        rope_max_wavelength=config.rope_theta,
        layer_norm_epsilon=config.rms_norm_eps,
        sliding_window=config.sliding_window,
        head_dim=config.head_dim,
    )
    put(model.token_embedding.embeddings, first.embed_tokens.weight)
    put(model.layer_norm.scale, first.norm.weight)
    for layer, source in zip(model.transformer_layers, first.layers, strict=True):
        _of_llama(layer, layer._self_attention_layer, source)
    return model


def _of_llama(layer: Any, attention: Any, source: Any) -> None:
    put(layer._self_attention_layernorm.scale, source.input_layernorm.weight)
    put(layer._feedforward_layernorm.scale, source.post_attention_layernorm.weight)
    put(attention._query_dense.kernel, source.self_attn.q_proj.weight.T)
    put(attention._key_dense.kernel, source.self_attn.k_proj.weight.T)
    put(attention._value_dense.kernel, source.self_attn.v_proj.weight.T)
    put(attention._output_dense.kernel, source.self_attn.o_proj.weight.T)
    put(layer._feedforward_gate_dense.kernel, source.mlp.gate_proj.weight.T)
    put(layer._feedforward_intermediate_dense.kernel, source.mlp.up_proj.weight.T)
    put(layer._feedforward_output_dense.kernel, source.mlp.down_proj.weight.T)


def _phi3(first: Any) -> Any:
    config = first.config
    model = keras_hub.models.Phi3Backbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        hidden_dim=config.hidden_size,
        intermediate_dim=config.intermediate_size,
        num_query_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        layer_norm_epsilon=config.rms_norm_eps,
        rope_max_wavelength=config.rope_theta,
    )
    put(model.token_embedding.embeddings, first.embed_tokens.weight)
    put(model.layer_norm.scale, first.norm.weight)
    size = config.hidden_size // config.num_attention_heads
    parts = (config.num_attention_heads * size, config.num_key_value_heads * size, config.num_key_value_heads * size)
    for layer, source in zip(model.transformer_layers, first.layers, strict=True):
        query, key, value = source.self_attn.qkv_proj.weight.split(parts)
        gate, up = source.mlp.gate_up_proj.weight.chunk(2)
        put(layer.pre_attention_layernorm.scale, source.input_layernorm.weight)
        put(layer.post_attention_layernorm.scale, source.post_attention_layernorm.weight)
        put(layer.attention.query_dense.kernel, query.T)
        put(layer.attention.key_dense.kernel, key.T)
        put(layer.attention.value_dense.kernel, value.T)
        put(layer.attention.output_dense.kernel, source.self_attn.o_proj.weight.T)
        put(layer.feedforward_gate_dense.kernel, gate.T)
        put(layer.feedforward_intermediate_dense.kernel, up.T)
        put(layer.feedforward_output_dense.kernel, source.mlp.down_proj.weight.T)
    return model


def _gpt_neox(first: Any) -> Any:
    config = first.config
    model = keras_hub.models.GPTNeoXBackbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        hidden_dim=config.hidden_size,
        intermediate_dim=config.intermediate_size,
        rotary_percentage=config.rotary_pct,
        layer_norm_epsilon=config.layer_norm_eps,
    )
    put(model.token_embedding.embeddings, first.embed_in.weight)
    _norm(model.layer_norm, first.final_layer_norm)
    for layer, source in zip(model.transformer_layers, first.layers, strict=True):
        attention = layer._self_attention_layer
        _norm(layer._self_attention_layer_norm, source.input_layernorm)
        _norm(layer._feedforward_layer_norm, source.post_attention_layernorm)
        _dense(attention._qkv_dense, source.attention.query_key_value)
        _dense(attention._output_dense, source.attention.dense)
        _dense(layer._feedforward_intermediate_dense, source.mlp.dense_h_to_4h)
        _dense(layer._feedforward_output_dense, source.mlp.dense_4h_to_h)
    return model


def _norm(layer: Any, source: Any) -> None:
    put(layer.gamma, source.weight)
    put(layer.beta, source.bias)


def _dense(layer: Any, source: Any) -> None:
    put(layer.kernel, source.weight.T)
    if source.bias is not None:
        put(layer.bias, source.bias)


def _t5(first: Any) -> Any:
    config = first.config
    model = keras_hub.models.T5Backbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_dim=config.d_model,
        intermediate_dim=config.d_ff,
        key_value_dim=config.d_kv,
        activation=lambda x: keras.activations.gelu(x, approximate=True),
        layer_norm_epsilon=config.layer_norm_epsilon,
    )
    put(model.token_embedding.embeddings, first.shared.weight)
    put(model.encoder_layer_norm.weight, first.encoder.final_layer_norm.weight)
    put(model.decoder_layer_norm.weight, first.decoder.final_layer_norm.weight)
    for stack, own in (
        (first.encoder, model.encoder_transformer_layers),
        (first.decoder, model.decoder_transformer_layers),
    ):
        for layer, source in zip(own, stack.block, strict=True):
            _t5_attention(layer.self_attention, source.layer[0].SelfAttention)
            put(layer.self_attention_layer_norm.weight, source.layer[0].layer_norm.weight)
            if layer.is_decoder:
                _t5_attention(layer.cross_attention, source.layer[1].EncDecAttention)
                put(layer.cross_attention_layer_norm.weight, source.layer[1].layer_norm.weight)
            feed = source.layer[-1]
            put(layer.layer_norm.weight, feed.layer_norm.weight)
            put(layer.input_projector.kernel, feed.DenseReluDense.wi_0.weight.T)
            put(layer.gate_projector.kernel, feed.DenseReluDense.wi_1.weight.T)
            put(layer.output_projector.kernel, feed.DenseReluDense.wo.weight.T)
    return model


def _t5_attention(layer: Any, source: Any) -> None:
    put(layer.query_projector.kernel, source.q.weight.T)
    put(layer.key_projector.kernel, source.k.weight.T)
    put(layer.value_projector.kernel, source.v.weight.T)
    put(layer.output_projector.kernel, source.o.weight.T)
    if layer.use_relative_attention_bias:
        put(layer.relative_attention_bias, source.relative_attention_bias.weight)


def _by_converter(backbone: str) -> Callable[[Any], Any]:
    return lambda first: converted(first, backbone)


_BUILDERS: Final[dict[str, Callable[[Any], Any]]] = {
    "bert": _bert,
    "roberta": _by_converter("RobertaBackbone"),
    "distilbert": _by_converter("DistilBertBackbone"),
    "albert": _by_converter("AlbertBackbone"),
    "gpt2": _by_converter("GPT2Backbone"),
    "llama": _llama,
    "llama3": _llama,
    "mistral": _mistral,
    "qwen2": _by_converter("QwenBackbone"),
    "qwen3": _by_converter("Qwen3Backbone"),
    "gemma2": _by_converter("GemmaBackbone"),
    "phi3": _phi3,
    "gpt-neox": _gpt_neox,
    "t5": _t5,
    "bart": _by_converter("BartBackbone"),
}
