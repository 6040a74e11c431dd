"""Choose the recipe for data whose user has named none.

Every recipe that can look at data does, and says what it would do or what it lacks. Chats come
before tables. Data with a time is a table even if it has a column of text that could be packed,
unless a column is nested, as chats are. Series and histories are proposed and never chosen: whether
rows are readings of one thing or events, and what is to be predicted, no look can tell.

What is chosen has been run on the data (see `cli.init.trial`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.cli.init.commented import Section
from headrace.cli.init.look import Look, look
from headrace.cli.init.trial import Trial, try_out
from headrace.errors import HeadraceError, SettingsError, setting
from headrace.formats.listing import NoMatch, list_files, nested_pattern
from headrace.recipe import Recipe, recipes

_CHOSEN = ("pack", "preferences", "split")
_SHOWN = 5  # rows
_WIDE = 100


@dataclass(frozen=True)
class Fit:
    """A recipe that can look at data, and what it says of some.

    sections, about: of its configuration. error: what it lacks; None if it has all. trial: what its
    run did, if it is the best. rows: some of the data, as it was read.
    """

    recipe: Recipe
    sections: Sequence[Section] = ()
    about: str = ""
    error: HeadraceError | None = None
    trial: Trial = field(default_factory=Trial)
    rows: Sequence[str] = ()

    @property
    def word(self) -> str:
        """The word after `headrace init`."""
        return self.recipe.init_word or ""


def fits(source: Sequence[str], out: str) -> list[Fit]:
    """Let every recipe look at data; the best comes first, those that cannot be chosen last.

    Raises `HeadraceError` if the data cannot be read at all, and `SettingsError` if no recipe that
    can be chosen fits.
    """
    source = reached(source)
    sample = look(source)
    contents = {column.content for column in sample.columns.values()}
    every = {}
    for recipe in recipes().values():
        if recipe.init_word is not None:
            every[recipe.init_word] = _fit(recipe, source, out)
    order = list(_CHOSEN)
    if "time" in contents and "other" not in contents:
        order = ["split", "pack", "preferences"]
    for word in order:
        if word in every and every[word].error is None:
            every[word] = _tried(every[word], source)
            if every[word].error is None:
                best = replace(every.pop(word), rows=rows_of(sample))
                return [best, *sorted(every.values(), key=lambda fit: fit.error is not None)]
    raise SettingsError(
        "no recipe fits for certain",
        path=source[0],
        remedy="name one: " + "; ".join(needs(fit) for fit in every.values()),
    )


def reached(source: Sequence[str]) -> list[str]:
    """Return the source; of a directory with data in subdirectories alone, their pattern."""
    paths = []
    for path in source:
        pattern = None
        if isinstance(path, str):
            try:
                list_files([path], splits="keep")
            except NoMatch:
                pattern = nested_pattern(path)
        paths.append(pattern or path)
    return paths


def rows_of(sample: Look) -> list[str]:
    """Return the first rows as lines, each at most a hundred characters wide."""
    lines = []
    for _, table in sample.tables[:1]:
        for row in table.slice(0, _SHOWN).to_pylist():
            text = json.dumps(row, ensure_ascii=False, default=str)
            lines.append(text if len(text) <= _WIDE else f"{text[:_WIDE]}…")
    return lines


def _tried(fit: Fit, source: Sequence[str]) -> Fit:
    try:
        return replace(fit, trial=try_out(fit.recipe, fit.sections, source))
    except HeadraceError as error:
        return replace(fit, error=error)


def _fit(recipe: Recipe, source: Sequence[str], out: str) -> Fit:
    request = recipe.init_options()(source=list(source), out=out)
    try:
        sections, about = recipe.init(request)
    except HeadraceError as error:
        return Fit(recipe, error=error)
    return Fit(recipe, sections, about)


def needs(fit: Fit) -> str:
    """Say in a line how to take a recipe, or what it lacks."""
    if fit.error is None:
        return f"headrace init {fit.word}: {fit.about}"
    name = fit.error.setting
    return f"headrace init {fit.word}{f' {setting(name)}' if name else ''}: {fit.error.marked}"
