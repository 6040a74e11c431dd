"""A recipe in a package of its own: keep every n-th row of each file."""
