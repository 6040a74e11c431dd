"""From prepared histories to token contexts: which, of what, in which order. People import `headrace.contexts`."""
