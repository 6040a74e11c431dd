"""Series of many entities as arrays: axes, gaps, cuts, scaling, windows. Pure: no files, no clock."""
