"""The parts of `embgrad.stream`: reading a source ahead, batches by length, folders of shards."""
