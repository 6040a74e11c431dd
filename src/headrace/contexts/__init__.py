"""From prepared histories to token contexts: which, of what, in which order; for Grain, JAX and torch."""

from headrace.histories.contexts.contexts import ContextPlan, Contexts, open_contexts
from headrace.histories.contexts.options import ContextOptions
from headrace.histories.contexts.vocabulary import Measurement, decode, decode_context

__all__ = ["ContextOptions", "ContextPlan", "Contexts", "Measurement", "decode", "decode_context", "open_contexts"]
