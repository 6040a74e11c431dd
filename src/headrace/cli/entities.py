"""Handle entities on the command line: the flags that name them, and those that have no rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headrace.cli.output import say
from headrace.cli.settings_flags import unless_given
from headrace.errors import SettingsError, setting

if TYPE_CHECKING:
    pass

_MOST_LINES = 20  # of a table; --json has all

EntityFile = Annotated[
    Path | None, unless_given("--entities", help="A file of entities, one per line.")
]
EntityColumn = Annotated[
    str | None,
    unless_given(help="Column that names the entity; default: the one of the run."),
]


def entity_names(arguments: Sequence[str], file: Path | None) -> list[str]:
    """Return the distinct entities from arguments and a file.

    Raises `SettingsError` if there are none.
    """
    names = list(arguments)
    if file is not None:
        try:
            # splitlines would also split at form feeds
            names += file.read_text("utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            problem = f"cannot be read as UTF-8 text ({error})"
            remedy = "give a file with one entity per line"
            raise SettingsError(problem, path=file, remedy=remedy) from error
    distinct = [name for name in dict.fromkeys(names) if name]
    if not distinct:
        remedy = f"name one, or give a file of them with {setting('entities')}"
        raise SettingsError("no entity was given", remedy=remedy)
    return distinct


def report_absent(absent: int, total: int, where: str) -> None:
    """Report how many entities have no row, because a misspelled name looks the same as an absent
    one.
    """
    if absent:
        say(
            f"{absent:,} of {total:,} entities have no row in {where}; write entities exactly as "
            "the text of their column, where 17, 17.0 and 017 are three different entities"
        )
