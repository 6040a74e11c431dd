"""The streaming half: one global order of rows, planned without reading, delivered exactly once to
every rank.
"""
