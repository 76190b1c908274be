"""The gradient of an objective with respect to a text model's embeddings, as NumPy, from one call, in any framework."""

from embgrad.backend import (
    Backend,
    Listener,
    NativeObjective,
    ParameterValues,
    Point,
    PointValues,
    Request,
    Run,
    TableRest,
)
from embgrad.batch import TokenBatch
from embgrad.capture import Tap, capture
from embgrad.certificate import Certificate, Slope
from embgrad.checkpoint import load_bert
from embgrad.compare import Comparison, Figures, compare
from embgrad.encoding import encode
from embgrad.errors import (
    AmbiguousPointError,
    BackendError,
    BatchError,
    CertificationError,
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
from embgrad.ledger import TableGradients, table_gradients
from embgrad.objective import CrossEntropy, Logit, Margin, Objective, Projection, Scalar, Sum
from embgrad.padding import PaddingReport, padding_report
from embgrad.parameters import ParameterGradients, parameter_gradients
from embgrad.registry import list_backends, refresh_backends
from embgrad.result import EmbeddingGradients, Word, load
from embgrad.rowsparse import RowSparse
from embgrad.version import __version__

__all__ = [
    "AmbiguousPointError",
    "Backend",
    "BackendError",
    "BatchError",
    "Certificate",
    "CertificationError",
    "Comparison",
    "CrossEntropy",
    "EmbeddingGradients",
    "EmbgradError",
    "EmbgradWarning",
    "Figures",
    "FileFormatError",
    "Listener",
    "Logit",
    "Margin",
    "NativeObjective",
    "NoGradientError",
    "Objective",
    "ObjectiveError",
    "OutputError",
    "PaddingReport",
    "ParameterGradients",
    "ParameterValues",
    "Point",
    "PointError",
    "PointNotReachedError",
    "PointValues",
    "Projection",
    "Request",
    "RowSparse",
    "Run",
    "Scalar",
    "Slope",
    "Sum",
    "TableGradients",
    "TableRest",
    "Tap",
    "TokenBatch",
    "UnknownPointError",
    "UnsupportedError",
    "Word",
    "__version__",
    "capture",
    "compare",
    "encode",
    "gradients",
    "list_backends",
    "load",
    "load_bert",
    "padding_report",
    "parameter_gradients",
    "points",
    "refresh_backends",
    "table_gradients",
]
