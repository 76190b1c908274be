"""Utilities that every room uses: arrays, nested structures, files, text, progress."""
