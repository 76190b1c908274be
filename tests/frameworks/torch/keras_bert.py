"""`load_bert` with "keras" on PyTorch; `test_keras_bert.py` runs these in a process of their own, where KERAS_BACKEND is set."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.keras_bert_outputs import keras_outputs
from tests.support.loaded_bert import LoadedBert


class TestKerasOnPyTorch(LoadedBert):
    framework = "keras"

    def outputs(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        return keras_outputs(model)
