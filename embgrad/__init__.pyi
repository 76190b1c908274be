"""The names of `embgrad` and their types: `__init__.py` imports each when it is first used."""

from embgrad import backend as backend
from embgrad import errors as errors
from embgrad import methods as methods
from embgrad import metrics as metrics
from embgrad import results as results
from embgrad import tables as tables
from embgrad import zoo as zoo
from embgrad.attribution.attribute import attribute
from embgrad.attribution.attribute_pairs import attribute_pairs
from embgrad.attribution.attribute_tokens import attribute_tokens
from embgrad.comparison.bisect import bisect
from embgrad.comparison.compare import compare
from embgrad.comparison.dump import dump
from embgrad.comparison.golden import golden
from embgrad.comparison.port import check_port
from embgrad.engine.capture import capture
from embgrad.engine.evaluate import evaluate
from embgrad.engine.gradients import gradients, points
from embgrad.engine.memory import memory
from embgrad.engine.perturbed import perturbed
from embgrad.errors import EmbgradError, EmbgradWarning
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.encode import encode
from embgrad.objectives.distances import BinaryCrossEntropy, CosineSimilarity, SquaredError
from embgrad.objectives.log_probability import LogProbability
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import CrossEntropy, Logit, Margin, Objective, Probability, Projection, Scalar, Sum
from embgrad.results.io import load, save
from embgrad.streaming.stream import Labelled, PerBatch, open_stream, stream
from embgrad.token_search.search import search
from embgrad.token_search.substitutions import substitutions
from embgrad.version import __version__

__all__ = [
    "BinaryCrossEntropy",
    "CosineSimilarity",
    "CrossEntropy",
    "EmbgradError",
    "EmbgradWarning",
    "Labelled",
    "LogProbability",
    "Logit",
    "Margin",
    "NativeObjective",
    "Objective",
    "PerBatch",
    "Probability",
    "Projection",
    "Scalar",
    "SquaredError",
    "Sum",
    "TokenBatch",
    "__version__",
    "attribute",
    "attribute_pairs",
    "attribute_tokens",
    "bisect",
    "capture",
    "check_port",
    "compare",
    "dump",
    "encode",
    "evaluate",
    "golden",
    "gradients",
    "load",
    "memory",
    "open_stream",
    "perturbed",
    "points",
    "save",
    "search",
    "stream",
    "substitutions",
]
