"""The parts of `embgrad.stream`: sources, runs, folders of shards."""
