"""Find recipes: what one is, and the registry of those in this package and in others.

A recipe is known by one `Registration`. An entry point of the group `headrace.recipes` names it, and the commands ask
the registry for everything that differs between recipes. A registration refers to code as "module:attribute", which is
imported on first use: every start of the command line reads all registrations, and must not wait for libraries.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from headrace.checks import nearest
from headrace.errors import SettingsError
from headrace.printable import shown

if TYPE_CHECKING:
    from importlib import metadata

    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome

GROUP = "headrace.recipes"

# pyproject.toml declares the same entry points. They are repeated here because the metadata of an editable install is
# as old as the install: a recipe that came later has no entry point there. A test compares the two lists.
BUILT_IN = {
    "temporal_split": "headrace.split.registration:REGISTRATION",
    "packed_sequences": "headrace.packing.registration:REGISTRATION",
    "preferences": "headrace.packing.preferences.registration:REGISTRATION",
    "histories": "headrace.histories.registration:REGISTRATION",
    "series": "headrace.series.registration:REGISTRATION",
    "rewrite": "headrace.rewriting.registration:REGISTRATION",
}


class Recipe(Protocol):
    """An offline job: settings that know their source and can execute it."""

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


@dataclass(frozen=True, kw_only=True)
class Init:
    """`headrace init WORD`: look at data and write a configuration.

    options: dataclass of its flags, whose docstring is the help. sections: function from these options to the commented
    sections of the configuration and a line about the data.
    """

    word: str
    options: str
    sections: str


@dataclass(frozen=True, kw_only=True)
class Registration:
    """One recipe, as headrace knows it. Texts "module:attribute" refer to code that is imported on use.

    settings: the settings model, which is a `Recipe`.
    commands: words of the command line and what each does: the settings model, whose fields then are the flags; a
    function whose parameters are flags; or a `typer.Typer`. help: of the command that is the settings model.
    words: what a shell offers as values, by command and parameter.
    stages: for each stage, what it does and what its tasks are.
    reasons: why rows are dropped, in words.
    row: what a row of a split is. shards: whether the rows of a source shard may go to several splits.
    roles: function from the settings of a run, as JSON, to the columns of its output that play a role (entity, time,
        until: the end of what a row holds) and are not called as the settings say; time_format: of such a time.
    contents: function from a dataset, a split and a number of workers to what its units are compared by, where rows
        hold more than their columns: names, the first row of each unit, int64 [units], and a digest, uint64 [units];
        and what a unit is called.
    unproved: sentences of a certificate on what was not proved.
    forget: how shards are written again without some entities, a `run.erase.Erasure`; None: they cannot be.
    verify: function from a `FinishedRun` and a number of workers to checks of the recipe's laws.
    figures: function from `RunFacts` to the figures of its report.
    summary: function that prints a run, from a console, its manifest, its directory and "short" or "full".
    readers: shard formats that cannot be streamed as tables, and how they are read.
    streams: what a stream asks of a recipe whose rows are more than their columns, by name.
    """

    name: str
    settings: str
    help: str = ""
    commands: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[tuple[str, ...], Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    init: Init | None = None
    stages: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    row: str = "row"
    shards: Literal["of several splits", "of one split"] = "of several splits"
    roles: str | None = None
    contents: tuple[str, str] | None = None
    unproved: tuple[str, ...] = ()
    forget: str | None = None
    verify: str | None = None
    figures: str | None = None
    summary: str | None = None
    readers: Mapping[str, str] = field(default_factory=dict)
    streams: Mapping[str, str] = field(default_factory=dict)


def load(reference: str) -> Any:
    """Import what "module:attribute" refers to."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def registrations() -> Mapping[str, Registration]:
    """Return all usable recipes by name: the built-in ones in their order, then those of other packages, sorted."""
    return {name: found for name, found in _found().items() if isinstance(found, Registration)}


@functools.cache
def _found() -> Mapping[str, Registration | str]:
    from importlib import metadata  # which takes as long as reading what is installed

    found = {name: [metadata.EntryPoint(name, value, GROUP)] for name, value in BUILT_IN.items()}
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
        points = found.setdefault(point.name, [])
        if point.value not in [each.value for each in points]:
            points.append(point)
    made = {name: _registration(points) for name, points in found.items()}
    words: dict[str, str] = {}
    for name, each in made.items():
        if isinstance(each, Registration):
            own = [f"headrace {word}" for word in each.commands]
            own += [] if each.init is None else [f"headrace init {each.init.word}"]
            taken = next((word for word in own if words.setdefault(word, name) != name), None)
            if taken is not None:
                made[name] = f"recipe {name!r}: `{taken}` is a command of {words[taken]!r}; uninstall one of them"
    return made


def _registration(points: Sequence[metadata.EntryPoint]) -> Registration | str:
    name, value = points[0].name, points[0].value
    if len(points) > 1:
        return (
            f"recipe {name!r} is registered as {' and as '.join(each.value for each in points)}; uninstall one of them"
        )
    try:
        made = load(value)
    except Exception as error:  # noqa: BLE001 - code of another package may raise anything while it is imported
        return f"recipe {name!r}: {value} cannot be imported ({error!r}); update or uninstall its package"
    if not isinstance(made, Registration) or made.name != name:
        return f"recipe {name!r}: {value} is not a Registration of that name; update or uninstall its package"
    return made


def registration(name: object) -> Registration:
    """Return the registration of a recipe. Raises `SettingsError` for one that is not known, with the nearest name."""
    found = _found().get(name) if isinstance(name, str) else None
    if isinstance(found, Registration):
        return found
    if found is not None:
        raise SettingsError(found)
    known = f"known: {', '.join(sorted(registrations()))}"
    raise SettingsError(
        f"recipe is {shown(name)}; {nearest(name, _found(), known) if isinstance(name, str) else known}"
    )


def recipe_of_command(word: str) -> Registration | None:
    """Return the registration of the recipe that has this word of the command line; None if none has.

    Built-in ones come first, so that their commands start without reading which packages are installed.
    """
    found = next((each for each in map(_built_in, BUILT_IN) if word in each.commands), None)
    return found or next((each for each in registrations().values() if word in each.commands), None)


def registration_of_run(name: str) -> Registration:
    """Return the registration of the recipe that made a run; of one that is not installed, what holds for any."""
    if name in BUILT_IN:  # found without reading which packages are installed
        return _built_in(name)
    return registrations().get(name) or Registration(name=name, settings="")


def _built_in(name: str) -> Registration:
    made: Registration = load(BUILT_IN[name])
    return made
