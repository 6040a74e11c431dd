"""Look at data and write a commented configuration for it.

`look` and `commented` serve all recipes.
"""
