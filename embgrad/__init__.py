"""The gradient of an objective with respect to a text model's embeddings, as NumPy, from one call, in any framework."""

from embgrad.backend import Backend, NativeObjective, Point, PointValues, Request, Run
from embgrad.batch import TokenBatch
from embgrad.checkpoint import load_bert
from embgrad.compare import Comparison, Figures, compare
from embgrad.encoding import encode
from embgrad.errors import (
    AmbiguousPointError,
    BackendError,
    BatchError,
    EmbgradError,
    EmbgradWarning,
    FileFormatError,
    NoGradientError,
    ObjectiveError,
    OutputError,
    PointError,
    PointNotReachedError,
    UnknownPointError,
    UnsupportedError,
)
from embgrad.gradient import gradients, points
from embgrad.objective import CrossEntropy, Logit, Margin, Objective, Projection, Scalar, Sum
from embgrad.registry import list_backends, refresh_backends
from embgrad.result import EmbeddingGradients, Word, load
from embgrad.rowsparse import RowSparse
from embgrad.version import __version__

__all__ = [
    "AmbiguousPointError",
    "Backend",
    "BackendError",
    "BatchError",
    "Comparison",
    "CrossEntropy",
    "EmbeddingGradients",
    "EmbgradError",
    "EmbgradWarning",
    "Figures",
    "FileFormatError",
    "Logit",
    "Margin",
    "NativeObjective",
    "NoGradientError",
    "Objective",
    "ObjectiveError",
    "OutputError",
    "Point",
    "PointError",
    "PointNotReachedError",
    "PointValues",
    "Projection",
    "Request",
    "RowSparse",
    "Run",
    "Scalar",
    "Sum",
    "TokenBatch",
    "UnknownPointError",
    "UnsupportedError",
    "Word",
    "__version__",
    "compare",
    "encode",
    "gradients",
    "list_backends",
    "load",
    "load_bert",
    "points",
    "refresh_backends",
]
