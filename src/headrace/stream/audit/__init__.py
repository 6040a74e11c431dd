"""Proof, counted row by row, of what ranks were given."""
