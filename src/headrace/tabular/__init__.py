"""Rows and batches of text, categories and numbers for people who have the sharded iterable dataset; over `stream`."""
