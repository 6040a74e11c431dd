"""Audit what ranks received, row by row, and what the splits of a dataset share."""
