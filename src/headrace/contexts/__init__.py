"""From prepared histories to token contexts: which, of what, in which order; for Grain, JAX and torch."""
