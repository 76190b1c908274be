"""`load_bert` with "keras" on TensorFlow: keras-hub's BertBackbone with a Hugging Face checkpoint's weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.keras_bert_outputs import keras_outputs
from tests.support.loaded_bert import DescribedBert


class TestKerasOnTensorFlow(DescribedBert):
    framework = "keras"

    def outputs(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        return keras_outputs(model)
