"""Cut prepared series into windows, order them, and share them among ranks.

Users import `headrace.windows`.
"""
