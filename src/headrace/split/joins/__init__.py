"""Join features to the rows of a split, each the latest that was known at the time of its row."""
