"""Hostile texts and configurations, and what is expected of the code that reads them."""

from __future__ import annotations

import unicodedata
from typing import Any

__all__ = ["ASIDE", "CONFIGURATIONS", "NESTED", "TEXTS", "expect_harmless"]

NESTED: Any = []
for _ in range(500):
    NESTED = [NESTED]

#: What config.json may say in place of what is right, and what is said of it.
CONFIGURATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a huge vocabulary": ({"vocab_size": 10**9}, r"word_embeddings.weight' of shape \(7, 3\): .*\(1000000000, 3\)"),
    "a huge width": ({"hidden_size": 10**6}, r"of shape \(7, 3\): the configuration requires \(7, 1000000\)"),
    "a huge inner width": ({"intermediate_size": 10**12}, r"dense.weight' of shape \(4, 3\): .*\(1000000000000, 3\)"),
    "huge tables": (
        {"max_position_embeddings": 10**9},
        r"position_embeddings.weight' of shape \(5, 3\): .*\(1000000000",
    ),
    "many types": ({"type_vocab_size": 10**9}, r"token_type_embeddings.weight' of shape \(2, 3\): .*\(1000000000, 3\)"),
    "many layers": (
        {"num_hidden_layers": 10**9},
        r"lacks 15999999968 of the model's weights: 'encoder.layer.2.attention.self.query.weight'.* and 15999999960 more; "
        r"expected all of 16000000007, as config.json says",
    ),
    "layers beyond any number": ({"num_hidden_layers": 10**4000}, "lacks .* of the model's weights: 'encoder.layer.2"),
    "many heads": ({"num_attention_heads": 10**9}, "3 and num_attention_heads 1000000000: expected a multiple"),
    "no heads": (
        {"num_attention_heads": 0},
        "says num_attention_heads 0: expected a whole number of at least 1; is it",
    ),
    **{
        f"a width of {value!r}": ({"hidden_size": value}, f"says hidden_size {value!r}: expected a whole number")
        for value in (-3, 3.0, "3", float("nan"), float("inf"))
    },
    "a width that is a list": ({"hidden_size": [3]}, r"says hidden_size \[3\]: expected a whole number"),
    "a width that is nested": ({"hidden_size": NESTED}, "says hidden_size .*: expected a whole number"),
    "a width in an object": ({"hidden_size": {"hidden_size": 3}}, "says hidden_size .*: expected a whole number"),
    "an epsilon that is text": ({"layer_norm_eps": "1e-12"}, "says layer_norm_eps '1e-12': expected a finite number"),
    "an epsilon that is infinite": ({"layer_norm_eps": float("inf")}, "layer_norm_eps inf: expected a finite number"),
    "a rate above one": ({"hidden_dropout_prob": 1.5}, "says hidden_dropout_prob 1.5: expected a number from 0 to 1"),
    "a rate that is NaN": (
        {"attention_probs_dropout_prob": float("nan")},
        "attention_probs_dropout_prob nan: expected",
    ),
    "an activation that is a list": ({"hidden_act": ["gelu"]}, r"says hidden_act \['gelu'\]: expected text"),
    "positions that are a number": ({"position_embedding_type": 3}, "says position_embedding_type 3: expected text"),
    "a flag that is text": ({"is_decoder": "no"}, "says is_decoder 'no': expected true or false"),
    "a chunk below zero": ({"chunk_size_feed_forward": -1}, "says chunk_size_feed_forward -1: expected a whole number"),
    "a pad beyond the table": ({"pad_token_id": 7}, "pad_token_id 7: expected a row .*, whose vocab_size is 7"),
    "a pad below zero": ({"pad_token_id": -1}, "says pad_token_id -1: expected a row of the vocabulary"),
}

#: What config.json may say beside: code, other places, and counts of what is no part of an encoder.
ASIDE: dict[str, Any] = {
    "num_labels": 10**9,
    "attn_implementation": "someone/kernels-that-run",
    "_attn_implementation": "someone/kernels-that-run",
    "_attn_implementation_internal": "someone/kernels-that-run",
    "auto_map": {"AutoModel": "someone/repository--modeling.Model"},
    "custom_pipelines": {"x": {"impl": "x.py"}},
    "torch_dtype": "nonsense",
    "dtype": 3,
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "id2label": {str(number): "x" * 10 for number in range(1000)},
    "pruned_heads": {"0": [0]},
    "_name_or_path": "\x1b]8;;http://127.0.0.1\x07link",
    "transformers_version": NESTED,
    "__class__": "os.system",
    "hidden_size ": 10**9,
}

#: What a token, a name or a piece of provenance may hold.
TEXTS: dict[str, str] = {
    "html": "<script>alert(1)</script>",
    "an attribute": '"onmouseover="alert(2)" x="',
    "the end of a script": "</script><!--<script>\u2028\u2029",
    "the end of a title": "</title></style><img src=x onerror=alert(3)>",
    "colours": "\x1b[31mred\x1b[0m",
    "the window's title": "\x1b]0;owned\x07",
    "a link": "\x1b]8;;http://127.0.0.1\x1b\\click\x1b]8;;\x1b\\",
    "c1": "\x9b31mred\x9d8;;http://127.0.0.1\x9cclick\x90q\x84\x85",
    "the cursor": "\r\x1b[2K\x1b[1Aall is well\x08\x7f\x0c\x0b",
    "bidi overrides": "\u202eevil\u202c\u202aa\u202bb\u202dc",
    "bidi isolates": "\u2066a\u2067b\u2068c\u2069\u200e\u200f\u061c",
    "nothing to see": "\u200b\u2060\ufeff\u00ad\u3164\u115f\u2800\u180e",
    "tags": "\U000e0001\U000e0041\U000e007f",
    "nul": "a\x00b",
    "a lone surrogate": "\ud800a\udfff",
    "bytes that are no text": b"caf\xe9 \xff".decode("utf-8", "surrogateescape"),
    "private and unassigned": "\ue000\U000f0000\U0010ffff\ufdd0",
    "rich markup": "[red]x[/red] [link=http://127.0.0.1]y[/link] [/] [@click=app.bell]z[/]",
    "broken rich markup": "[/nothing]",
    "emoji codes": ":skull: :warning:",
    "ends of lines": "a\nb\r\nc\x85d\u2028e\u2029f\x1cg",
    "markdown": "| a | `b` |\n|---|\n[x](javascript:alert(4)) ![](http://127.0.0.1)",
    "a formula": '=HYPERLINK("http://127.0.0.1")',
    "a stack of marks": "Z" + "\u0336\u0489" * 500,
    "marks alone": "\u0301" * 300,
    "a hundred thousand letters": "w" * 100_000,
    "many controls": "\x1b[0m" * 5_000,
    "empty": "",
    "blank": " \t\u00a0\u2003",
}


def expect_harmless(shown: str, lines: bool = False) -> None:
    """Expect that a text has no effect on a terminal or the text around it, and can be encoded in UTF-8."""
    shown.encode("utf-8")
    allowed = set("\u200c\u200d\n" if lines else "\u200c\u200d")
    blanks = {one for one in set(shown) if one.isspace() and unicodedata.category(one) == "Zs"}
    wrong = {one for one in set(shown) - allowed - blanks if not one.isprintable()}
    assert not wrong, f"it holds {wrong}"
