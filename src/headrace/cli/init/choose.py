"""Propose a configuration for data, by a named recipe or by the one that fits best, and try it.

Every recipe that can look at data says what it would do or what it lacks. Chats come before tables.
Data with a time is a table even if it has a column of text that could be packed, unless a column is
nested, as chats are. Series and histories are proposed and never chosen unless a target is named:
whether rows are readings of one thing or events, and what is to be predicted, no look can tell.

What is proposed has been run on the data (see `cli.init.trial`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headrace.checks import nearest
from headrace.cli.init.commented import Section, needed_settings, settings_of
from headrace.cli.init.look import Data, Unsure
from headrace.cli.init.roles import labels, time_columns
from headrace.cli.init.trial import Trial, try_out
from headrace.errors import HeadraceError, InputError, SettingsError, setting, setting_name
from headrace.recipe import JobSettings, Recipe, find_recipe, recipes

_CHOSEN = ("pack", "preferences", "split")
_SHOWN = 5  # rows
_WIDE = 100
_HEADER = "header"  # an option of all recipes


@dataclass(frozen=True)
class Fit:
    """A recipe that can look at data, and what it says of some.

    sections, about: of its configuration. error: what it lacks; None if it has all. trial: what its
    run did, if it was tried. rows: some of the data, as it was read.
    """

    recipe: Recipe
    sections: Sequence[Section] = ()
    about: str = ""
    error: HeadraceError | None = None
    trial: Trial = field(default_factory=Trial)
    rows: Sequence[str] = ()

    @property
    def is_other(self) -> bool:
        """Whether the data are of another kind, which no setting changes."""
        return type(self.error) is SettingsError and self.error.setting is None

    @property
    def word(self) -> str:
        """The word after `headrace init`."""
        return self.recipe.init_word or ""


def proposal(recipe: Recipe, data: Data, out: str, options: Mapping[str, Any]) -> Fit:
    """Let a recipe look at data, and run what it proposes on the data.

    options: of `recipe.init_options()`. Raises `Unsure` if a guess is not certain, what the run
    raises, and `SettingsError` if no row would be in train.
    """
    data, options = _declared(data, options)
    request = recipe.init_options()(source=data.source, out=out, **options)
    sections, about = recipe.init(request, data)
    fit = Fit(recipe, sections, about, rows=_rows_of(data))
    return replace(fit, trial=try_out(recipe, sections, data))


def _declared(data: Data, options: Mapping[str, Any]) -> tuple[Data, dict[str, Any]]:
    """Return the data with what is known of them, and the options that a recipe takes."""
    others = {name: value for name, value in options.items() if name != _HEADER}
    return data.declared(options.get("time_format"), options.get(_HEADER)), others


def fits(data: Data, out: str, options: Mapping[str, Any]) -> list[Fit]:
    """Let every recipe that takes these settings look at data; the best comes first, and is tried.

    Raises `InputError` if the data cannot be read, `Unsure` if a guess is not certain, and
    `SettingsError` if no recipe fits, or takes these settings.
    """
    usable = [recipe for recipe in recipes().values() if recipe.init_word is not None]
    _check_options(options, usable)
    data, options = _declared(data, options)
    _refuse_no_rows(data)
    every = {}
    for recipe in usable:
        if _takes(recipe, options):
            every[recipe.init_word or ""] = _looked(recipe, data, out, options)
    order = [word for word in _order(data, options) if word in every]
    for word in order:
        if every[word].error is None:
            every[word] = _tried(every[word], data)
            if every[word].error is None:
                best = every.pop(word)
                return [best, *every.values()]
    raise _no_fit(every, order, data)


def _refuse_no_rows(data: Data) -> None:
    """Raise `SettingsError` if the data are tables without a row."""
    with suppress(InputError):  # each recipe says so itself
        if not any(len(table) for _, table in data.tables.tables):
            raise SettingsError(
                "holds no rows", path=data.source[0], remedy="give a source that has some"
            )


def _no_fit(every: Mapping[str, Fit], order: Sequence[str], data: Data) -> HeadraceError:
    """Return the error of the likeliest recipe if there is one, else what each lacks, in one."""
    errors = []
    unsure = []
    for word in order:
        error = every[word].error
        if error is not None:
            errors.append(error)
        if isinstance(error, Unsure):
            unsure.append(error)
    if any(isinstance(error, InputError) for error in errors):  # what cannot be read comes first
        every = {word: fit for word, fit in every.items() if not fit.is_other}
    words: dict[str, list[str]] = {}
    for fit in every.values():
        _, _, why = needs(fit).partition(": ")
        words.setdefault(why, []).append(fit.word)
    alone = []
    if len(words) == 1:
        alone = [fit.error for fit in every.values() if fit.error is not None]
    if unsure or alone or order[0] != _CHOSEN[0]:
        return (unsure or alone or errors)[0]
    listed = [f"headrace init {' or '.join(names)}: {why}" for why, names in words.items()]
    return SettingsError(
        "no recipe fits for certain",
        path=data.source[0],
        remedy=f"name one: {'; '.join(listed)}",
    )


def init(source: Any, *, recipe: str | None = None, **options: Any) -> JobSettings:
    """Look at data and return the recipe that fits it, which has been run on the data.

    source: a path or a table, as for `headrace.open`, or a list of paths. recipe: split, pack,
    preferences, series or histories; chosen unless given. options: those of the flags of
    `headrace init`, such as time="none".

    The run was on everything up to 64 MiB, or on a sample of all files. Raises `SettingsError` with
    the setting to give where a guess is not certain, and `InputError` for data that cannot be read.
    """
    paths = source if isinstance(source, list | tuple) else [source]
    data = Data(paths)
    if recipe is None:
        fit = fits(data, "out", options)[0]
    else:
        chosen = _recipe_of(recipe)
        _check_options(options, [chosen])
        fit = proposal(chosen, data, "out", options)
    for name in needed_settings(fit.sections):
        raise SettingsError(f"{fit.word} needs it", setting=name, remedy=f"give {setting(name)}")
    settings = settings_of(fit.sections)
    del settings["out"]
    result: JobSettings = find_recipe(settings.pop("recipe")).settings()(**settings)
    return result


def _recipe_of(word: str) -> Recipe:
    """Return the recipe of a word after `headrace init`. Raises `SettingsError`."""
    words = {recipe.init_word: recipe for recipe in recipes().values() if recipe.init_word}
    if word not in words:
        remedy = f"use one of {', '.join(filter(None, words))}"
        raise SettingsError(setting="recipe", value=word, remedy=remedy)
    return words[word]


def _check_options(options: Mapping[str, Any], usable: Sequence[Recipe]) -> None:
    """Raise `SettingsError` for options that none of these recipes takes together."""
    if any(_takes(recipe, options) for recipe in usable):
        return
    known = sorted(set().union(*map(_option_names, usable)))
    for name in options:
        if name not in known:
            remedy = nearest(name, known, f"use one of {', '.join(known)}")
            raise SettingsError("init has no such option", setting=name, remedy=remedy)
    names = " and ".join(map(setting_name, options))
    raise SettingsError(f"no recipe takes {names} together", remedy="leave one of them out")


def _takes(recipe: Recipe, options: Mapping[str, Any]) -> bool:
    """Return whether all these settings are among the options of a recipe."""
    return _option_names(recipe).issuperset(options)


def _option_names(recipe: Recipe) -> set[str]:
    names = {option.name for option in fields(recipe.init_options())}
    return (names - {"source", "out"}) | {_HEADER}


def _order(data: Data, options: Mapping[str, Any]) -> list[str]:
    """Return the words of the recipes that can be chosen, the likeliest first."""
    if "target" in options:
        return ["series"]
    with suppress(InputError):  # each recipe says so itself
        contents = {column.content for column in data.tables.columns.values()}
        is_labelled = {"text", "label"} <= set(data.tables.columns) and labels(data.tables)
        if "other" not in contents and (is_labelled or time_columns(data.tables)):
            return ["split", "pack", "preferences"]
    return list(_CHOSEN)


def _looked(recipe: Recipe, data: Data, out: str, options: Mapping[str, Any]) -> Fit:
    request = recipe.init_options()(source=data.source, out=out, **options)
    try:
        sections, about = recipe.init(request, data)
    except HeadraceError as error:
        return Fit(recipe, error=error)
    return Fit(recipe, sections, about)


def _tried(fit: Fit, data: Data) -> Fit:
    try:
        return replace(fit, trial=try_out(fit.recipe, fit.sections, data), rows=_rows_of(data))
    except HeadraceError as error:
        return replace(fit, error=error)


def _rows_of(data: Data) -> list[str]:
    """Return the first rows as lines, each at most a hundred characters wide; none of data that
    are no tables.
    """
    lines: list[str] = []
    try:
        sample = data.tables
    except HeadraceError:
        return lines
    names = sample.top_level()
    for _, table in sample.tables[:1]:
        there = [name for name in table.column_names if name in names]
        for row in table.select(there).slice(0, _SHOWN).to_pylist():
            text = json.dumps(row, ensure_ascii=False, default=str)
            lines.append(text if len(text) <= _WIDE else f"{text[:_WIDE]}…")
    return lines


def needs(fit: Fit) -> str:
    """Say in a line how to take a recipe, or what it lacks."""
    if fit.error is None:
        return f"headrace init {fit.word}: {fit.about}"
    return f"headrace init {fit.word}: {fit.error.marked}"
