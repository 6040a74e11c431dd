"""Readers of files that are not tables with a header: one module for each kind."""
