"""What `embgrad.stream` is made of: reading a source ahead, batches by length, folders of shards."""
