"""Loading of what a user names by a folder, a file or a function: models and tokenizers."""
