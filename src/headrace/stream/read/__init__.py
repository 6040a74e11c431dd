"""From blocks to batches: decoding ahead, gathering, formats."""
