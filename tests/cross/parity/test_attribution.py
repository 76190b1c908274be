"""Each attribution method gives the same figures on real weights in four frameworks, sampled ones included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers
from transformers import AutoTokenizer

import embgrad
from embgrad.cli.demo import TEXTS
from embgrad.loading.minilm import minilm_folder
from tests.support.sampling import slow

METHODS = {
    "saliency": embgrad.methods.Saliency(),
    "input_x_gradient": embgrad.methods.InputXGradient(),
    "integrated_gradients": embgrad.methods.IntegratedGradients(12, "pad"),
    "smooth_grad": embgrad.methods.SmoothGrad(4, 0.02),
    "gradient_shap": embgrad.methods.GradientShap(["pad", "mask"], 6, 0.01),
    "sequential_integrated_gradients": embgrad.methods.SequentialIntegratedGradients(2),
    "discretized_integrated_gradients": embgrad.methods.DiscretizedIntegratedGradients(12),
    "occlusion": embgrad.methods.Occlusion("mask"),
    "lime": embgrad.methods.Lime(40),
    "kernel_shap": embgrad.methods.KernelShap(40),
}
#: One along a path of other tokens, and one by values alone, whose texts its seed draws.
ORDINARY = ("discretized_integrated_gradients", "kernel_shap")
#: The largest relative L2 distance to PyTorch's figures; those without gradients are differences of objectives.
MOST = 5e-6


@pytest.mark.filterwarnings("ignore:with .* steps:embgrad.EmbgradWarning")
@pytest.mark.parametrize("names", [ORDINARY, slow((tuple(name for name in METHODS if name not in ORDINARY),))])
def test_each_method_agrees_between_frameworks(names: tuple[str, ...]) -> None:
    folder = minilm_folder()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    batch = embgrad.encode(TEXTS[:2], tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
    objective = embgrad.Projection(np.random.default_rng(0).normal(size=384), output="sequence", position=0)
    results = {
        framework: embgrad.attribute(
            embgrad.zoo.load_bert(folder, framework),
            batch,
            objective,
            {name: METHODS[name] for name in names},
            tokenizer=tokenizer,
        )
        for framework in ("torch", "tensorflow", "gluon", "jax")
    }
    expected = results.pop("torch")
    for framework, found in results.items():
        for name, attribution in found.items():
            apart = np.linalg.norm(attribution.scores - expected[name].scores) / np.linalg.norm(expected[name].scores)
            assert apart <= MOST, (framework, name, apart)
            assert embgrad.compare(expected[name], attribution).agrees, (framework, name)
