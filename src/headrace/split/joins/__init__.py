"""Join features to the rows of a split: for each row the latest feature known at its time."""
