"""Attribution: how much each position contributes to the objective, computed in NumPy from gradients and forward passes."""

from embgrad.attribution.discretized import DiscretizedIntegratedGradients
from embgrad.attribution.gradient_methods import InputXGradient, Saliency, SmoothGrad
from embgrad.attribution.method import Contributions, GradientMethod, Method
from embgrad.attribution.path_methods import GradientShap, IntegratedGradients, SequentialIntegratedGradients
from embgrad.attribution.perturbation_methods import KernelShap, Lime, Occlusion
from embgrad.results.attribution import Attribution, Attributions
from embgrad.results.faithfulness import Faithfulness

__all__ = [
    "Attribution",
    "Attributions",
    "Contributions",
    "DiscretizedIntegratedGradients",
    "Faithfulness",
    "GradientMethod",
    "GradientShap",
    "InputXGradient",
    "IntegratedGradients",
    "KernelShap",
    "Lime",
    "Method",
    "Occlusion",
    "Saliency",
    "SequentialIntegratedGradients",
    "SmoothGrad",
]
