"""Turn blocks into batches: decoding ahead, gathering, formats."""
