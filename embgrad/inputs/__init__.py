"""The batch: token ids, masks and further inputs in all accepted forms, and the encoding of texts."""
