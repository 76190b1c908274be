"""What every room uses: arrays, nests, files, text, progress."""
