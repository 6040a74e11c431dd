"""Define what a recipe is, and find those of this package and of others.

A recipe is one class derived from `Recipe`. An entry point of the group `headrace.recipes` names
the class, and the commands ask it for everything that differs between recipes. Its methods import
what they need when they are called: every start of the command line reads all these classes, and
must not wait for libraries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from headrace.checks import nearest
from headrace.errors import SettingsError, setting_name

if TYPE_CHECKING:
    from importlib import metadata

    from headrace.arrays import I64, U64
    from headrace.cli.init.commented import Section
    from headrace.cli.init.look import Data
    from headrace.cli.tables import Detail
    from headrace.dataset.grade import Doubt
    from headrace.dataset.index import SplitIndex
    from headrace.dataset.indexed import IndexedDataset
    from headrace.dataset.manifest import Manifest
    from headrace.dataset.open import FinishedRun
    from headrace.dataset.verify import Check
    from headrace.report.figure import Figure
    from headrace.report.report_data import ReportData
    from headrace.run.context import RunContext
    from headrace.run.erase import Erasure
    from headrace.run.prepare import Outcome
    from headrace.stream.loader.options import RowForm, StreamOptions

GROUP = "headrace.recipes"

# pyproject.toml declares the same entry points. They are repeated here because the metadata of an
# editable install is as old as the install: what changed later is not there, so those entry points
# are ignored. A test compares the lists.
BUILT_IN = {
    "temporal_split": "headrace.split.capability:TemporalSplitRecipe",
    "random_split": "headrace.split.capability:RandomSplitRecipe",
    "packed_sequences": "headrace.packing.capability:PackedSequencesRecipe",
    "preferences": "headrace.packing.preferences.capability:PreferencesRecipe",
    "histories": "headrace.histories.capability:HistoriesRecipe",
    "series": "headrace.series.capability:SeriesRecipe",
    "rewrite": "headrace.rewriting.capability:RewriteRecipe",
}


class SplitContents(NamedTuple):
    """What the units of a split are compared by.

    columns: the compared ones. first_rows: of each unit, int64 [units]. digests: of each unit,
    uint64 [units].
    """

    columns: tuple[str, ...]
    first_rows: I64
    digests: U64


class JobSettings(Protocol):
    """The settings of one recipe, which know their source and can be executed: what
    `headrace.prepare` takes.
    """

    @property
    def recipe_name(self) -> str: ...

    def identity_settings(self) -> dict[str, Any]:
        """Return every setting that can change a byte of output, as JSON."""

    def config(self) -> dict[str, Any]:
        """Return all settings as JSON; never a credential."""

    def source_files(self) -> list[tuple[Path, str]]:
        """Return the files of the source and their names relative to its root."""

    def source_places(self) -> Sequence[str | Path]:
        """Return the places of the source as they were given: files, directories, patterns."""

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the work."""


class Recipe:
    """Base of all recipes. A subclass sets `name` and overrides what differs from the defaults.

    commands: its words of the command line; see `command`. help: of a command that is only the
    settings. init_word: the word after `headrace init`; None: it has no `init`.
    stages: for each stage, what it does and what its tasks are.
    row: what a row of a split is.
    unproved: sentences of a certificate on what was not proved.
    row_options: options of streams that it reads, because its rows are more than their columns; see
    `row_option`. readers: shard formats that cannot be streamed as tables, and how they are read.
    content_unit: what `contents` compares; None: rows hold no more than their columns.
    requested_drops: reasons to drop rows that settings ask for, such as a sample; others count as
    lost.
    """

    name: str = ""
    commands: ClassVar[Sequence[str]] = ()
    help: ClassVar[str] = ""
    init_word: ClassVar[str | None] = None
    stages: ClassVar[Mapping[str, tuple[str, str]]] = {}
    row: ClassVar[str] = "row"
    unproved: ClassVar[Sequence[str]] = ()
    row_options: ClassVar[Sequence[str]] = ()
    readers: ClassVar[Mapping[str, str]] = {}
    content_unit: ClassVar[str | None] = None
    requested_drops: ClassVar[frozenset[str]] = frozenset(("forgotten",))

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why rows are dropped, in words."""
        return {}

    def settings(self) -> Any:
        """Return the settings model, a `RecipeSettings`.

        Its fields are flags and settings of configurations.
        """
        raise SettingsError(
            f"recipe {self.name!r} is not installed", remedy="install the package that has it"
        )

    def flags(self) -> Any:
        """Return the model whose fields are the flags of its commands: its settings, unless a
        command prepares runs of several recipes.
        """
        return self.settings()

    def execute(
        self, settings: Any, context: RunContext, files: Sequence[tuple[Path, str]]
    ) -> Outcome:
        """Do the work of a run in its directory. settings: an instance of `settings()`."""
        raise NotImplementedError(f"recipe {self.name!r} has no execute")

    def command(self, word: str) -> Any:
        """Return what a word of `commands` does: a function whose parameters are flags, or a
        `typer.Typer`.

        None: prepare a run of the settings that the flags give.
        """
        return None

    def init_options(self) -> type[Any]:
        """Return the dataclass of the flags of `headrace init`, whose docstring is the help."""
        raise NotImplementedError(f"recipe {self.name!r} has no init")

    def init(self, options: Any, data: Data) -> tuple[list[Section], str]:
        """Look at data; return the commented sections of a configuration, and a line about the
        data. `headrace init` runs it on the data before it is written.

        options: an instance of `init_options()`, with the source of `data`.
        """
        raise NotImplementedError(f"recipe {self.name!r} has no init")

    def example(self, settings: Any) -> list[str]:
        """Return a row of the source as a run reads it, in lines for people; [] if a row is simply
        its columns. `headrace init` shows it.
        """
        return []

    def verify(self, run: FinishedRun, workers: int | None) -> list[Check]:
        """Check the laws of the recipe in a finished run."""
        return []

    def doubts(self, manifest: Manifest) -> Iterable[Doubt]:
        """Return what to know of a finished run before training on it, but for dropped rows."""
        return ()

    def figures(
        self, report_data: ReportData, common: Callable[[ReportData], list[Figure]]
    ) -> list[Figure]:
        """Return the figures of a run's report. common: makes those that fit any run."""
        return common(report_data)

    def summary(
        self,
        console: Any,
        manifest: Manifest,
        run: Path,
        detail: Detail,
        common: Callable[[], None],
    ) -> None:
        """Print a run. common: prints what fits any run."""
        common()

    def roles(self, config: Mapping[str, Any]) -> dict[str, str]:
        """Return the columns of the output that have a role and are not called as the settings say.

        config: the settings of the run, as JSON. Roles: entity, time, until (the end of what a row
        holds), and time_format, of such a time.
        """
        return {}

    def contents(self, dataset: IndexedDataset, split: str, workers: int) -> SplitContents:
        """Return what units of several rows or parts of one are compared by; asked only if
        `content_unit` is set.
        """
        raise NotImplementedError(f"recipe {self.name!r} has no contents")

    def erasure(self) -> Erasure | None:
        """Return how shards are written again without some entities; None: they cannot be."""
        return None

    def row_option(self, option: str, value: Any) -> Any:
        """Return the `RowForm` or `RowSource` for the value of an option of `row_options`."""
        raise NotImplementedError(f"recipe {self.name!r} has no option {option} of streams")

    def detect_form(
        self, splits: Sequence[tuple[Path, SplitIndex]], options: StreamOptions
    ) -> RowForm | None:
        """Return the form of the rows of these splits, by root and index, if they are this
        recipe's; else None.
        """
        return None


class UnknownRecipe(Recipe):
    """The recipe of a run whose package is not installed: what holds for any."""

    def __init__(self, name: str) -> None:
        self.name = name


def load(reference: str) -> Any:
    """Import what "module:attribute" refers to."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


class _Unusable(NamedTuple):
    """Why a registered recipe cannot be used."""

    problem: str
    remedy: str


def recipes() -> Mapping[str, Recipe]:
    """Return all usable recipes by name: the built-in ones in their order, then those of other
    packages, sorted.
    """
    result = {}
    for name, recipe in _registered().items():
        if isinstance(recipe, Recipe):
            result[name] = recipe
    return result


@functools.cache
def _registered() -> Mapping[str, Recipe | _Unusable]:
    """Return each registered recipe, or why it cannot be used."""
    from importlib import metadata  # which takes as long as reading what is installed

    points = {name: [metadata.EntryPoint(name, value, GROUP)] for name, value in BUILT_IN.items()}
    for point in sorted(
        metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value)
    ):
        if point.value.startswith("headrace."):
            continue
        same_name = points.setdefault(point.name, [])
        if point.value not in [other.value for other in same_name]:
            same_name.append(point)
    registered = {name: _load_recipe(same_name) for name, same_name in points.items()}
    owners: dict[str, str] = {}
    for name, recipe in registered.items():
        if isinstance(recipe, _Unusable):
            continue
        commands = [f"headrace {word}" for word in recipe.commands]
        if recipe.init_word is not None:
            commands.append(f"headrace init {recipe.init_word}")
        for command in commands:
            if owners.setdefault(command, name) != name:
                problem = f"recipe {name!r}: `{command}` is a command of {owners[command]!r}"
                registered[name] = _Unusable(problem, "uninstall one of them")
                break
    return registered


def _load_recipe(points: Sequence[metadata.EntryPoint]) -> Recipe | _Unusable:
    """Return the recipe of these entry points, or why it cannot be used."""
    name = points[0].name
    value = points[0].value
    if len(points) > 1:
        values = " and as ".join(point.value for point in points)
        return _Unusable(f"recipe {name!r} is registered as {values}", "uninstall one of them")
    try:
        recipe_class = load(value)
    except Exception as error:  # noqa: BLE001 - code of another package may raise anything while it is imported
        problem = f"recipe {name!r}: {value} cannot be imported ({error!r})"
        return _Unusable(problem, "update or uninstall its package")
    if (
        not isinstance(recipe_class, type)
        or not issubclass(recipe_class, Recipe)
        or recipe_class.name != name
    ):
        problem = f"recipe {name!r}: {value} is not a Recipe of that name"
        return _Unusable(problem, "update or uninstall its package")
    return recipe_class()


def find_recipe(name: object) -> Recipe:
    """Return a recipe by its name.

    Raises `SettingsError` for one that is not known, with the nearest name.
    """
    recipe = None
    if isinstance(name, str):
        recipe = _registered().get(name)
    if isinstance(recipe, Recipe):
        return recipe
    if recipe is not None:
        raise SettingsError(recipe.problem, remedy=recipe.remedy)
    hint = f"use one of {', '.join(sorted(recipes()))}"
    if name is None:
        raise SettingsError(f"{setting_name('recipe')} is missing", remedy=hint)
    if isinstance(name, str):
        hint = nearest(name, _registered(), hint)
    raise SettingsError(setting="recipe", value=name, remedy=hint)


def recipe_of_command(word: str) -> Recipe | None:
    """Return the recipe that has this word of the command line; None if none has.

    Built-in ones come first, so that their commands start without reading which packages are
    installed.
    """
    for name in BUILT_IN:
        recipe = _built_in(name)
        if word in recipe.commands:
            return recipe
    return next((recipe for recipe in recipes().values() if word in recipe.commands), None)


def recipe_of_option(option: str) -> Recipe:
    """Return the recipe that registers an option of streams; see `Recipe.row_options`."""
    for name in BUILT_IN:
        recipe = _built_in(name)
        if option in recipe.row_options:
            return recipe
    return next(recipe for recipe in recipes().values() if option in recipe.row_options)


def recipe_of_run(name: str) -> Recipe:
    """Return the recipe that made a run; for one that is not installed, what holds for any."""
    if name in BUILT_IN:  # found without reading which packages are installed
        return _built_in(name)
    return recipes().get(name) or UnknownRecipe(name)


@functools.cache
def _built_in(name: str) -> Recipe:
    recipe: Recipe = load(BUILT_IN[name])()
    return recipe
