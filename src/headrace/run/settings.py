"""Settings of a recipe: what every settings model shares."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.dataset.tables import with_paths
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome


class RecipeSettings(Settings):
    """Base of every recipe's settings, for sources that are one list of places in the field `source`.

    Wherever a setting takes a path, it takes a table too, which is written into the cache first; see `dataset.tables`.
    Each field is written once: its type, default and description make the flag, completion, schema and documentation.
    executed_by: the module whose `execute` takes settings, context and files; settings alone do not load it.
    later: groups of settings that recipes got after their first runs were made. They are not in the identity while all
    of a group have their defaults, so that those runs are found again.
    """

    recipe_name: ClassVar[str]
    executed_by: ClassVar[str]
    later: ClassVar[Sequence[tuple[str, ...]]] = ()

    def __init__(self, **values: Any) -> None:
        super().__init__(**{name: with_paths(value) for name, value in values.items()})

    def config(self) -> dict[str, Any]:
        """All settings as JSON; views of the hub as the addresses that they are of."""
        return {"recipe": self.recipe_name, **_with_addresses(self.model_dump(mode="json"))}

    def identity_settings(self) -> dict[str, Any]:
        """The settings that can change a byte of output."""
        return self.identity_without("source")

    def identity_without(self, *others: str) -> dict[str, Any]:
        """Return the settings for the identity, without others, which change no byte or get another form."""
        fields = type(self).model_fields
        defaults = {
            name
            for group in self.later
            if all(getattr(self, each) == fields[each].default for each in group)
            for name in group
        }
        return self.model_dump(mode="json", exclude={*others, *defaults})

    def source_files(self) -> list[tuple[Path, str]]:
        """The source's files and their names relative to its root, sorted by name."""
        from headrace.formats.source import find_files  # settings alone load no data libraries

        return find_files(vars(self)["source"])

    def source_places(self) -> Sequence[str | Path]:
        """Files, directories and patterns, as given."""
        places: Sequence[Path] = vars(self)["source"]  # a field of subclasses
        return places

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the work in the run directory; see `headrace.prepare`."""
        outcome: Outcome = import_module(self.executed_by).execute(self, context, files)
        return outcome


def _with_addresses(value: Any) -> Any:
    from headrace.formats.saved import address_of  # settings alone load no data libraries

    if isinstance(value, dict):
        return {name: _with_addresses(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_addresses(each) for each in value]
    return (address_of(value) or value) if isinstance(value, str) else value
