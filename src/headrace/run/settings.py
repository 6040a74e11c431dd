"""Define the base class of all recipes' settings models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Never

from headrace.dataset.tables import with_paths
from headrace.errors import SettingsError
from headrace.formats.type_words import by_column
from headrace.recipe import find_recipe
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome


class RecipeSettings(Settings):
    """Base of every recipe's settings, for sources that are one list of places in the field
    `source`.

    Wherever a setting takes a path, it takes a table too, which is written into the cache first;
    see `dataset.tables`. Each field is written once: its type, default and description make the
    flag, completion, schema and documentation.
    """

    recipe_name: ClassVar[str]

    def __init__(self, *unnamed: Never, **values: Any) -> None:
        if unnamed:
            raise SettingsError(
                f"{type(self).__name__}: {unnamed[0]!r} is given without a name",
                remedy="give settings by name",
            )
        values = {name: with_paths(value) for name, value in values.items()}
        if "types" in type(self).model_fields and isinstance(values.get("types"), str):
            values["types"] = by_column(values["types"])
        super().__init__(**values)

    def config(self) -> dict[str, Any]:
        """Return all settings as JSON."""
        return {"recipe": self.recipe_name, **self.model_dump(mode="json")}

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output."""
        return self.identity_without("source")

    def identity_without(self, *others: str) -> dict[str, Any]:
        """Return the settings for the identity without `others`, which change no byte or are added
        in another form.
        """
        return self.model_dump(mode="json", exclude=set(others))

    def source_files(self) -> list[tuple[Path, str]]:
        """Return the source's files and their names relative to its root, sorted by name."""
        from headrace.formats.listing import list_files  # settings alone load no data libraries

        listing = list_files(vars(self)["source"])
        return [(listing.path(number), name) for number, name in enumerate(listing.names)]

    def source_places(self) -> Sequence[str | Path]:
        """Return files, directories and patterns, as given."""
        paths: Sequence[Path] = vars(self)["source"]  # a field of subclasses
        return paths

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Execute the recipe in the run directory, as described in `headrace.prepare`."""
        return find_recipe(self.recipe_name).execute(self, context, files)
