"""Embedding gradients, sparse table gradients, certificates, and the files that hold them."""
