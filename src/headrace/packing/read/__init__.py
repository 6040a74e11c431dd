"""Read packed sequences as batches, whether they were packed beforehand or are packed while they
are streamed.
"""
