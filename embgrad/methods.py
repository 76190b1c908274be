"""Methods of attribution and of search, for `attribute`, `attribute_tokens`, `substitutions` and `search`."""

from embgrad.attribution.discretized import DiscretizedIntegratedGradients
from embgrad.attribution.gradient_methods import InputXGradient, Saliency, SmoothGrad
from embgrad.attribution.pair_encoder import IntegratedJacobians
from embgrad.attribution.path_methods import GradientShap, IntegratedGradients, SequentialIntegratedGradients
from embgrad.attribution.perturbation_methods import KernelShap, Lime, Occlusion
from embgrad.token_search.gcg import GCG
from embgrad.token_search.hotflip import HotFlip
from embgrad.token_search.pez import PEZ
from embgrad.token_search.universal_trigger import UniversalTrigger

__all__ = [
    "GCG",
    "PEZ",
    "DiscretizedIntegratedGradients",
    "GradientShap",
    "HotFlip",
    "InputXGradient",
    "IntegratedGradients",
    "IntegratedJacobians",
    "KernelShap",
    "Lime",
    "Occlusion",
    "Saliency",
    "SequentialIntegratedGradients",
    "SmoothGrad",
    "UniversalTrigger",
]
