"""The results: embedding gradients, tables of gradients, certificates, and their files."""
