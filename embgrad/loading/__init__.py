"""Loading of what a user names by a text, a file, a folder or a function: models, tokenizers, texts, ids and objectives."""
