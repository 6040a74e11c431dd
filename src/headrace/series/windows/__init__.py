"""From prepared series to windows: which, in which order, for which rank. People import `headrace.windows`."""
