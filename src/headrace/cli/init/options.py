"""Define `headrace init`: look at data and write a commented configuration that can be run
unchanged.

One dataclass per recipe holds its flags; fields that are None are determined from the data. The
dataclasses' docstrings are help texts. entity: the name of a column, or file_name if every file is
an entity.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperGroup

from headrace.cli.output import emit, say
from headrace.cli.settings_flags import Json, unless_given, with_groups
from headrace.errors import SettingsError, setting
from headrace.recipe import Recipe, recipes

if TYPE_CHECKING:
    from headrace.cli.init.choose import Fit
    from headrace.cli.init.commented import Section
    from headrace.cli.init.look import Unsure

Result = TypeVar("Result")
Config = Annotated[Path, unless_given("--config", help="The YAML file to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]
Out = Annotated[str, unless_given(help="Output directory of the run.")]
Entity = Annotated[
    str | None, unless_given(help="Column of the entity, or file_name; detected unless given.")
]
Time = Annotated[str | None, unless_given(help="Column of the time; detected unless given.")]
TimeFormat = Annotated[
    str | None,
    unless_given(
        help="How times are written, such as %d/%m/%y; detected unless given, but for years of two"
        " digits."
    ),
]
Header = Annotated[
    Literal["first_line"] | None,
    unless_given(
        help="first_line: that of CSV and TSV names the columns, although it looks like a row."
    ),
]
Decimal = Annotated[
    Literal[".", ","] | None, unless_given(help="Decimal mark of numbers; detected unless given.")
]
Tokenizer = Annotated[
    str | None,
    unless_given(
        help="tokenizer.json, its directory, or ORG/NAME; lengths are estimated unless given."
    ),
]


@dataclass(frozen=True)
class InitSeriesOptions:
    """Look at time series of many entities, and write a configuration for `headrace run`.

    Example:  headrace init series data --target streamflow --out out --config series.yaml
    """

    source: Annotated[
        list[str], typer.Argument(help="Files, directories or glob patterns of time series.")
    ]
    out: Out
    target: Annotated[str | None, unless_given(help="Column to predict.")] = None
    features: Annotated[
        list[str] | None,
        unless_given(metavar="TEXT,...", help="Comma-separated; all numeric columns unless given."),
    ] = None
    future_features: Annotated[
        list[str] | None,
        unless_given(
            metavar="TEXT,...",
            help="Features known ahead, such as promotions; unless given, those with values after"
            " the last target.",
        ),
    ] = None
    static: Annotated[
        list[str] | None, unless_given(help="Files of static attributes; may be repeated.")
    ] = None
    static_features: Annotated[
        list[str] | None,
        unless_given(
            metavar="TEXT,...",
            help="Comma-separated; all attributes that every entity has unless given.",
        ),
    ] = None
    entity: Entity = None
    time: Time = None
    time_format: TimeFormat = None
    decimal: Decimal = None
    time_zone: Annotated[
        str | None, unless_given(help="Time zone of times without an offset; UTC unless given.")
    ] = None

    @property
    def feature_names(self) -> list[str]:
        """Feature columns; empty if they must be found in the data."""
        return _names(self.features)

    @property
    def future_names(self) -> list[str]:
        """Features known ahead; empty if they must be found in the data."""
        return _names(self.future_features)

    @property
    def static_names(self) -> list[str]:
        """Static features; empty if they must be found in the data."""
        return _names(self.static_features)


@dataclass(frozen=True)
class InitSplitOptions:
    """Look at tables, and write a configuration of a split for `headrace run`, in time or at random
    if no column is a time.

    Example:  headrace init split raw --out out --config split.yaml
    """

    source: Annotated[
        list[str], typer.Argument(help="Files, directories or glob patterns of tables.")
    ]
    out: Out
    time: Annotated[
        str | None,
        unless_given(
            help="Column of the time; none: rows are drawn at random; detected unless given."
        ),
    ] = None
    time_format: TimeFormat = None
    decimal: Decimal = None
    entity: Annotated[
        str | None, unless_given(help="Column of the entity; detected unless given.")
    ] = None
    split_date: Annotated[
        str | None,
        unless_given(
            help="The cutoff; about a fifth of the rows becomes the test split unless given."
        ),
    ] = None


@dataclass(frozen=True)
class InitHistoriesOptions:
    """Look at measurements of many entities, and write a configuration of histories for `headrace
    run`.

    Example:  headrace init histories pings --out out --config histories.yaml
    """

    source: Annotated[
        list[str], typer.Argument(help="Files, directories or glob patterns of measurements.")
    ]
    out: Out
    entity: Entity = None
    time: Time = None
    time_format: TimeFormat = None
    peer: Annotated[
        str | None, unless_given(help="Column of the other endpoint; detected unless given.")
    ] = None
    value: Annotated[
        str | None, unless_given(help="Column of the latency; detected unless given.")
    ] = None


@dataclass(frozen=True)
class InitPackOptions:
    """Look at chats, and write a configuration of packed sequences for `headrace run`.

    Example:  headrace init pack chats.jsonl --tokenizer qwen3 --out out --config pack.yaml
    """

    source: Annotated[
        list[str],
        typer.Argument(help="Files, directories or glob patterns of chats of one dataset."),
    ]
    out: Out
    tokenizer: Tokenizer = None


@dataclass(frozen=True)
class InitPreferencesOptions:
    """Look at preference pairs, judged answers or prompts, and write a configuration for `headrace
    run`.

    Example:  headrace init preferences pairs.jsonl --tokenizer qwen3 --out out --config
    preferences.yaml
    """

    source: Annotated[
        list[str],
        typer.Argument(help="Files, directories or glob patterns of rows of one dataset."),
    ]
    out: Out
    tokenizer: Tokenizer = None
    kind: Annotated[
        Literal["pairs", "judged", "prompts"] | None,
        unless_given(help="The kind of row; detected from the columns unless given."),
    ] = None


@dataclass(frozen=True)
class AboutData:
    """What is known of data whose recipe is to be chosen: only recipes that take it are."""

    time: Annotated[
        str | None, unless_given(help="Column of the time, or none; detected unless given.")
    ] = None
    time_format: TimeFormat = None
    header: Header = None
    decimal: Decimal = None
    entity: Entity = None
    target: Annotated[
        str | None, unless_given(help="Column to predict, if rows are readings in time.")
    ] = None
    tokenizer: Tokenizer = None


def _names(texts: list[str] | None) -> list[str]:
    result = []
    for text in texts or ():
        for name in text.split(","):
            if name.strip():
                result.append(name.strip())
    return result


class _InitGroup(TyperGroup):
    """A command group in which data in the place of a command's name asks for the best one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take `headrace init raw` for `headrace init DATA raw`."""
        if args and args[0] not in self.commands and _is_data(args[0], list(self.commands)):
            args = [_ANY, *args]
        return super().resolve_command(ctx, args)


_ANY = "DATA"


def _is_data(text: str, commands: Sequence[str]) -> bool:
    """Return whether a word is a path and not a mistyped command."""
    if text.startswith("-"):
        return False
    return Path(text).exists() or not difflib.get_close_matches(text, commands, n=1)


def init_app() -> typer.Typer:
    """Make the command group `headrace init`, with one command per recipe that can look at data."""
    app = typer.Typer(
        cls=_InitGroup,
        no_args_is_help=True,
        help="Inspect data and write a commented configuration for `headrace run`. `headrace init"
        " DATA` chooses the recipe.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(_ANY)(with_groups(_look_and_choose))
    for recipe in recipes().values():
        if recipe.init_word is not None:
            app.command(recipe.init_word)(_command_for(recipe))
    return app


def _look_and_choose(
    source: Annotated[
        list[str], typer.Argument(help="Files, directories or glob patterns of any data.")
    ],
    *,
    out: Out,
    config: Config,
    about: AboutData,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Look at data, choose the recipe that fits best, try it, and write its configuration.

    Example:  headrace init raw --out out --config config.yaml
    """
    from headrace.cli.init.choose import fits
    from headrace.cli.init.look import Data

    target = _Target.of(source, out, config, overwrite=overwrite)
    data = Data(source)
    best, *others = _settled(
        lambda options: fits(data, out, options), _chosen_options(about), ask=not as_json
    )
    target.write(best, others, as_json=as_json)


def _chosen_options(request: Any) -> dict[str, Any]:
    """Return the options that have a value, without the source and the output."""
    result = {}
    for option in fields(request):
        value = getattr(request, option.name)
        if option.name not in ("source", "out") and value is not None:
            result[option.name] = value
    return result


def _settled(
    attempt: Callable[[Mapping[str, Any]], Result], options: Mapping[str, Any], *, ask: bool
) -> Result:
    """Make an attempt; where it is unsure, let the person at the terminal choose, and repeat it.

    Raises `Unsure` if there is no terminal.
    """
    from headrace.cli.init.look import Unsure

    while True:
        try:
            return attempt(options)
        except Unsure as error:
            name = error.setting
            at_terminal = ask and sys.stdin.isatty() and sys.stdout.isatty()
            if not at_terminal or name is None or name in options or not error.candidates:
                raise
            options = {**options, name: _answer(error, name)}


def _answer(error: Unsure, name: str) -> str:
    """Ask for one of the candidates, by its number or as it is; the first is the default."""
    say(error.marked)
    for number, candidate in enumerate(error.candidates, start=1):
        say(f"  {number}  {candidate}")
    numbers = {str(number): word for number, word in enumerate(error.candidates, start=1)}
    while True:
        answer = str(typer.prompt(f"--{name.replace('_', '-')}", default="1"))
        if answer in numbers or answer in error.candidates:
            return numbers.get(answer, answer)


@dataclass(frozen=True)
class _Target:
    """The configuration to write."""

    config: Path
    overwrite: bool

    @classmethod
    def of(cls, source: list[str], out: str, config: Path, *, overwrite: bool) -> _Target:
        """Check that a run from the source to `out` and a new file are possible."""
        from headrace.run.identity import check_disjoint
        from headrace.storage.places import local_path_of, path_of

        check_disjoint(path_of(out), source, ())  # the run would refuse it later
        target = cls(local_path_of(config, "--config"), overwrite)
        if target.config.exists() and not overwrite:
            raise target.there
        return target

    @property
    def there(self) -> SettingsError:
        """The error for a file that exists."""
        return SettingsError(
            "already exists",
            path=self.config,
            remedy=f"give another {setting('config')}, or {setting('overwrite')}",
        )

    def write(self, fit: Fit, others: Sequence[Fit], *, as_json: bool) -> None:
        """Write the configuration, and print what it was tried on and the command that runs it."""
        from headrace.cli.init.choose import needs

        to_run = self._written(fit.sections)
        if as_json:
            record: dict[str, Any] = {"recipe": fit.word, "about": fit.about, "run": to_run}
            record["tried"] = fit.trial.lines()
            record["others"] = {other.word: needs(other) for other in others}
            emit({"config": str(self.config), **record})
            return
        say(f"{self.config}: {fit.word}: {fit.about}")
        for row in fit.trial.example or fit.rows:
            say(f"  {row}")
        for line in fit.trial.lines():
            say(line)
        for other in others:
            if other.error is not None and other.error.setting != "target":
                continue  # it does not fit, or not for certain
            say(f"or  {needs(other)}")
        say(f"run it:  {to_run}")

    def _written(self, sections: Sequence[Section]) -> str:
        """Write the configuration, and return the command that runs it."""
        from headrace.cli.init.commented import commented_yaml, needed_settings

        try:
            with self.config.open("w" if self.overwrite else "x", encoding="utf-8") as file:
                file.write(commented_yaml(sections))
        except FileExistsError:
            raise self.there from None
        except OSError as error:
            raise SettingsError(
                f"cannot be written ({error.strerror})",
                path=self.config,
                remedy=f"give another {setting('config')}",
            ) from error
        flags = "".join(f" --set {name}={at}" for name, at in needed_settings(sections).items())
        return f"headrace run {self.config}{flags}"


def _command_for(recipe: Recipe) -> Callable[..., None]:
    """Make `headrace init WORD` for a recipe: its options become flags, and their docstring the
    help.
    """
    options = recipe.init_options()

    def command(
        config: Config,
        request: Any,
        *,
        header: Header = None,
        overwrite: Overwrite = False,
        as_json: Json = False,
    ) -> None:
        from headrace.cli.init.choose import proposal
        from headrace.cli.init.look import Data

        target = _Target.of(request.source, request.out, config, overwrite=overwrite)
        data = Data(request.source)
        fit = _settled(
            lambda options: proposal(recipe, data, request.out, options),
            _chosen_options(request) | ({"header": header} if header else {}),
            ask=not as_json,
        )
        target.write(fit, (), as_json=as_json)

    command.__annotations__["request"] = options
    command.__doc__ = options.__doc__
    return with_groups(command)
