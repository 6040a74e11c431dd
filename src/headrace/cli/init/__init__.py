"""Look at data and write a commented configuration for it. `look` and `commented` are for any recipe."""
