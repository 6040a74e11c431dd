"""The loaders that people loop over, and the datasets they come from."""
