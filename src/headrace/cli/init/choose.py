"""Choose the recipe for data whose user has named none.

Every recipe that can look at data does, and says what it would do or what it lacks. Chats come
before tables. Data with a time is a table even if it has a column of text that could be packed,
unless a column is nested, as chats are. Series and histories are proposed and never chosen: whether
rows are readings of one thing or events, and what is to be predicted, no look can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cli.init.commented import Section
from headrace.cli.init.look import look
from headrace.errors import HeadraceError, SettingsError, setting
from headrace.recipe import Recipe, recipes

_CHOSEN = ("pack", "preferences", "split")


@dataclass(frozen=True)
class Fit:
    """A recipe that can look at data, and what it says of some.

    sections, about: of its configuration. error: what it lacks; None if it has all.
    """

    recipe: Recipe
    sections: Sequence[Section] = ()
    about: str = ""
    error: HeadraceError | None = None

    @property
    def word(self) -> str:
        """The word after `headrace init`."""
        return self.recipe.init_word or ""


def fits(source: Sequence[str], out: str) -> list[Fit]:
    """Let every recipe look at data; the best comes first, those that cannot be chosen last.

    Raises `HeadraceError` if the data cannot be read at all, and `SettingsError` if no recipe that
    can be chosen fits.
    """
    sample = look(source)
    contents = {column.content for column in sample.columns.values()}
    every = {}
    for recipe in recipes().values():
        if recipe.init_word is not None:
            every[recipe.init_word] = _fit(recipe, source, out)
    order = list(_CHOSEN)
    if "time" in contents and "other" not in contents:
        order = ["split", "pack", "preferences"]
    order += [word for word in every if word not in order]
    ordered = sorted(every.values(), key=lambda fit: (fit.error is not None, order.index(fit.word)))
    if ordered[0].error is not None or ordered[0].word not in _CHOSEN:
        raise SettingsError(
            "no recipe fits for certain",
            path=source[0],
            remedy="name one: " + "; ".join(needs(fit) for fit in ordered),
        )
    return ordered


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
    return f"headrace init {fit.word}{f' {setting(name)}' if name else ''}: {fit.error.remedy}"
