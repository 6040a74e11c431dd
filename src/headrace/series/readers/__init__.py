"""Read files that are not tables with a header: one module per kind."""
