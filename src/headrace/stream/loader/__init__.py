"""Loaders for training loops, and the datasets that make them."""
