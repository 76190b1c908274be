"""Measures of attributions, and of a model's padding."""

from embgrad.attribution.faithfulness import faithfulness
from embgrad.attribution.infidelity import infidelity
from embgrad.attribution.sensitivity import sensitivity
from embgrad.engine.padding_report import padding_report

__all__ = ["faithfulness", "infidelity", "padding_report", "sensitivity"]
