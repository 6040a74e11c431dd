"""From prepared histories to token contexts: which, of what, in which order; for Grain, JAX and torch."""

from headrace.contexts.contexts import ContextPlan, Contexts, open_contexts
from headrace.contexts.options import ContextOptions
from headrace.contexts.vocabulary import Measurement, decode

__all__ = ["ContextOptions", "ContextPlan", "Contexts", "Measurement", "decode", "open_contexts"]
