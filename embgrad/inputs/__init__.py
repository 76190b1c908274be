"""The batch: token ids, masks and further inputs, in every form in which they may be given, and text to ids."""
