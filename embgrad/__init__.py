"""The gradient of an objective with respect to a text model's embeddings, as NumPy, from one call, in any framework.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

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
from embgrad.bisection import Bisection, bisect
from embgrad.capture import Tap, capture
from embgrad.certificate import Certificate, Slope
from embgrad.checkpoint import load_bert
from embgrad.compare import compare
from embgrad.comparison import Comparison, Comparisons
from embgrad.diagnosis.findings import Finding
from embgrad.encoding import encode
from embgrad.errors import (
    AmbiguousPointError,
    BackendError,
    BatchError,
    CertificationError,
    EmbgradError,
    EmbgradWarning,
    FileFormatError,
    GoldenError,
    NoGradientError,
    ObjectiveError,
    OutputError,
    PointError,
    PointNotReachedError,
    UnknownPointError,
    UnsupportedError,
)
from embgrad.figures import Figures
from embgrad.golden import Golden, golden
from embgrad.gradient import gradients, points
from embgrad.ledger import TableGradients, table_gradients
from embgrad.objective import CrossEntropy, Logit, Margin, Objective, Projection, Scalar, Sum
from embgrad.padding import PaddingReport, padding_report
from embgrad.parameters import ParameterGradients, parameter_gradients
from embgrad.registry import list_backends, refresh_backends
from embgrad.result import EmbeddingGradients, Word
from embgrad.rowsparse import RowSparse
from embgrad.storage import load, save
from embgrad.stream import Labelled, PerBatch, Stream, StreamFolder, open_stream, stream
from embgrad.streaming.saliencies import Saliencies
from embgrad.tables import clipped_table, table_norms, table_products
from embgrad.version import __version__

__all__ = [
    "AmbiguousPointError",
    "Backend",
    "BackendError",
    "BatchError",
    "Bisection",
    "Certificate",
    "CertificationError",
    "Comparison",
    "Comparisons",
    "CrossEntropy",
    "EmbeddingGradients",
    "EmbgradError",
    "EmbgradWarning",
    "Figures",
    "FileFormatError",
    "Finding",
    "Golden",
    "GoldenError",
    "Labelled",
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
    "PerBatch",
    "Point",
    "PointError",
    "PointNotReachedError",
    "PointValues",
    "Projection",
    "Request",
    "RowSparse",
    "Run",
    "Saliencies",
    "Scalar",
    "Slope",
    "Stream",
    "StreamFolder",
    "Sum",
    "TableGradients",
    "TableRest",
    "Tap",
    "TokenBatch",
    "UnknownPointError",
    "UnsupportedError",
    "Word",
    "__version__",
    "bisect",
    "capture",
    "clipped_table",
    "compare",
    "encode",
    "golden",
    "gradients",
    "list_backends",
    "load",
    "load_bert",
    "open_stream",
    "padding_report",
    "parameter_gradients",
    "points",
    "refresh_backends",
    "save",
    "stream",
    "table_gradients",
    "table_norms",
    "table_products",
]
