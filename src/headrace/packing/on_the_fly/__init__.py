"""Pack rows of tokens while they are streamed."""
