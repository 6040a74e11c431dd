"""Define `headrace init`: look at data and write a commented configuration that can be run
unchanged.

One dataclass per recipe holds its flags; fields that are None are determined from the data. The
dataclasses' docstrings are help texts. entity: the name of a column, or file_name if every file is
an entity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headrace.cli.output import emit, say
from headrace.cli.settings_flags import Json, unless_given, with_groups
from headrace.errors import SettingsError, setting
from headrace.recipe import Recipe, recipes

Config = Annotated[Path, unless_given("--config", help="The YAML file to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]
Out = Annotated[str, unless_given(help="Output directory of the run.")]
Entity = Annotated[
    str | None, unless_given(help="Column of the entity, or file_name; detected unless given.")
]
Time = Annotated[str | None, unless_given(help="Column of the time; detected unless given.")]
Tokenizer = Annotated[
    str | None,
    unless_given(
        help="tokenizer.json, its directory, or ORG/NAME; lengths are estimated unless given."
    ),
]


@dataclass(frozen=True)
class AskedSeries:
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
class AskedSplit:
    """Look at tables, and write a configuration of a split for `headrace run`, in time or at random
    if no column is a time.

    Example:  headrace init split raw --out out --config split.yaml
    """

    source: Annotated[
        list[str], typer.Argument(help="Files, directories or glob patterns of tables.")
    ]
    out: Out
    time: Time = None
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
class AskedHistories:
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
    peer: Annotated[
        str | None, unless_given(help="Column of the other endpoint; detected unless given.")
    ] = None
    value: Annotated[
        str | None, unless_given(help="Column of the latency; detected unless given.")
    ] = None


@dataclass(frozen=True)
class AskedPack:
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
class AskedPreferences:
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


def _names(texts: list[str] | None) -> list[str]:
    result = []
    for text in texts or ():
        for name in text.split(","):
            if name.strip():
                result.append(name.strip())
    return result


def init_app() -> typer.Typer:
    """Make the command group `headrace init`, with one command per recipe that can look at data."""
    app = typer.Typer(
        no_args_is_help=True,
        help="Inspect data and write a commented configuration for `headrace run`.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for recipe in recipes().values():
        if recipe.init_word is not None:
            app.command(recipe.init_word)(_command_for(recipe))
    return app


def _command_for(recipe: Recipe) -> Callable[..., None]:
    """Make `headrace init WORD` for a recipe: its options become flags, and their docstring the
    help.
    """
    options = recipe.init_options()

    def command(
        config: Config, request: Any, *, overwrite: Overwrite = False, as_json: Json = False
    ) -> None:
        from headrace.cli.init.commented import Aside, commented_yaml
        from headrace.run.identity import check_apart
        from headrace.storage.places import local_path_of, path_of

        check_apart(path_of(request.out), request.source, ())  # the run would refuse it later
        config = local_path_of(config, "--config")
        there = SettingsError(
            "already exists",
            path=config,
            remedy=f"give another {setting('config')}, or {setting('overwrite')}",
        )
        if config.exists() and not overwrite:
            raise there
        sections, about = recipe.init(request)
        try:
            with config.open("w" if overwrite else "x", encoding="utf-8") as file:
                file.write(commented_yaml(sections))
        except FileExistsError:
            raise there from None
        except OSError as error:
            raise SettingsError(
                f"cannot be written ({error.strerror})",
                path=config,
                remedy=f"give another {setting('config')}",
            ) from error
        proposed: dict[str, Any] = {}
        for section in sections:
            proposed |= section.settings
        needed = []
        for name, value in proposed.items():
            if isinstance(value, Aside) and value.needed:
                needed.append(f" --set {name}={value.value}")
        to_run = f"headrace run {config}{''.join(needed)}"
        if as_json:
            emit({"config": str(config), "about": about, "run": to_run})
            return
        say(f"{config}: {about}")
        say(f"run it:  {to_run}")

    command.__annotations__["request"] = options
    command.__doc__ = options.__doc__
    return with_groups(command)
