"""What has to be said before TensorFlow is imported."""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Hugging Face's TensorFlow classes need Keras 2
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
