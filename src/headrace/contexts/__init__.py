"""From prepared histories to token contexts: which, of what, in which order; for Grain, JAX and torch."""

from headrace.contexts.contexts import ContextPlan, Contexts, open_contexts
from headrace.contexts.options import ContextOptions
from headrace.contexts.vocabulary import Measurement, decode, decode_context

__all__ = ["ContextOptions", "ContextPlan", "Contexts", "Measurement", "decode", "decode_context", "open_contexts"]
