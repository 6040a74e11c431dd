"""Handle time series of many entities as arrays: regular axes, gaps, cuts, windows, scalers.

Pure: numpy, no files.
"""
