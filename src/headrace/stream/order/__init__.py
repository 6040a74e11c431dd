"""The order of an epoch: pure functions from an index to positions, rows and plans."""
