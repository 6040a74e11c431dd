"""Packed sequences as batches, packed beforehand or while they are streamed."""
