"""Contexts by position for torch; see `histories.contexts.torch`."""

from headrace.histories.contexts.torch import ContextDataset, arrays_of

__all__ = ["ContextDataset", "arrays_of"]
