"""Folds: their settings, and the times of folds whose cuts roll."""
