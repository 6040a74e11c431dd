"""Make token contexts from prepared histories, for Grain, JAX and torch, and read measurements as
Arrow batches.
"""

from headrace.histories.contexts.contexts import ContextPlan, Contexts, open_contexts
from headrace.histories.contexts.options import ContextOptions
from headrace.histories.contexts.tokeniser import Tokeniser
from headrace.histories.contexts.vocabulary import Measurement, decode, decode_context
from headrace.histories.measurements import read_measurements

__all__ = [
    "ContextOptions",
    "ContextPlan",
    "Contexts",
    "Measurement",
    "Tokeniser",
    "decode",
    "decode_context",
    "open_contexts",
    "read_measurements",
]
