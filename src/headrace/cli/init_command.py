"""`headrace init`: look at data and write a commented configuration that runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import SettingsError

if TYPE_CHECKING:
    from headrace.cli.init.commented import Section

app = typer.Typer(
    no_args_is_help=True,
    help="Look at data and write a commented configuration that `headrace run` takes as it is.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[Path, typer.Option("--config", help="The YAML file to write.", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")]


def write_config(path: Path, text: str, overwrite: bool) -> None:
    """Write the configuration. Raises `SettingsError` if it is there already, or cannot be written."""
    try:
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SettingsError(f"{path}: is there already; give another --config, or --overwrite") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written ({error.strerror}); give another --config") from error


def write_sections(config: Path, overwrite: bool, made: Callable[[], tuple[list[Section], str]]) -> None:
    """Have the sections made and written, and say how to run them."""
    from headrace.cli.init.commented import commented_yaml

    if config.exists() and not overwrite:
        raise SettingsError(f"{config}: is there already; give another --config, or --overwrite")
    sections, about = made()
    write_config(config, commented_yaml(sections), overwrite)
    typer.echo(f"{config}: {about}")
    asked = "" if _runs(sections) else " --set tokenizer=DIRECTORY"
    typer.echo(f"run it:  headrace run {config}{asked}")


def _runs(sections: list[Section]) -> bool:
    """Whether nothing is left for the user to say; chats need a tokenizer, which only the user can choose."""
    from headrace.cli.init.commented import Aside

    return not any(isinstance(each.settings.get("tokenizer"), Aside) for each in sections)


@app.command("series")
def series(
    source: Annotated[list[str], typer.Argument(help="Files, directories or glob patterns of time series.")],
    out: Annotated[str, typer.Option(help="Where the run will write.", show_default=False)],
    config: Config,
    target: Annotated[str | None, typer.Option(help="Column to be predicted.", show_default=False)] = None,
    features: Annotated[
        str | None, typer.Option(help="Comma-separated; all columns of numbers unless given.", show_default=False)
    ] = None,
    static: Annotated[
        list[str] | None, typer.Option(help="Files of static attributes; may be repeated.", show_default=False)
    ] = None,
    static_features: Annotated[
        str | None,
        typer.Option(help="Comma-separated; all that every entity has unless given.", show_default=False),
    ] = None,
    entity: Annotated[
        str | None, typer.Option(help="Column of the entity, or file_name; found out unless given.", show_default=False)
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Column of the time; found out unless given.", show_default=False)
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Look at time series of many entities, and write a configuration for `headrace run`.

    Example:  headrace init series data --target streamflow --out out --config series.yaml
    """
    from headrace.cli.init.series import series_sections
    from headrace.cli.init.series_roles import Asked

    asked = Asked(
        source=tuple(source),
        out=out,
        target=target,
        features=_names(features),
        static=tuple(static or ()),
        static_features=_names(static_features),
        entity=entity,
        time=time,
    )
    write_sections(config, overwrite, lambda: series_sections(asked))


@app.command("split")
def split(
    source: Annotated[list[str], typer.Argument(help="Files, directories or glob patterns of tables.")],
    out: Annotated[str, typer.Option(help="Where the run will write.", show_default=False)],
    config: Config,
    date_column: Annotated[
        str | None, typer.Option(help="When a row happened; found out unless given.", show_default=False)
    ] = None,
    group_column: Annotated[
        str | None, typer.Option(help="The entity; found out unless given.", show_default=False)
    ] = None,
    split_date: Annotated[
        str | None, typer.Option(help="The cutoff; about a fifth of the rows tests unless given.", show_default=False)
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Look at tables, and write a configuration of a temporal split for `headrace run`.

    Example:  headrace init split raw --out out --config split.yaml
    """
    from headrace.cli.init.split import AskedSplit, split_sections

    asked = AskedSplit(tuple(source), out, date=date_column, entity=group_column, split_date=split_date)
    write_sections(config, overwrite, lambda: split_sections(asked))


@app.command("histories")
def histories(
    source: Annotated[list[str], typer.Argument(help="Files, directories or glob patterns of measurements.")],
    out: Annotated[str, typer.Option(help="Where the run will write.", show_default=False)],
    config: Config,
    entity: Annotated[
        str | None, typer.Option(help="Column of the entity, or file_name; found out unless given.", show_default=False)
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Column of the time; found out unless given.", show_default=False)
    ] = None,
    peer: Annotated[
        str | None, typer.Option(help="Column of the other end; found out unless given.", show_default=False)
    ] = None,
    value: Annotated[
        str | None, typer.Option(help="Column of the latency; found out unless given.", show_default=False)
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Look at measurements of many entities, and write a configuration of histories for `headrace run`.

    Example:  headrace init histories pings --out out --config histories.yaml
    """
    from headrace.cli.init.histories import histories_sections
    from headrace.cli.init.histories_roles import AskedHistories

    asked = AskedHistories(tuple(source), out, entity=entity, time=time, peer=peer, value=value)
    write_sections(config, overwrite, lambda: histories_sections(asked))


@app.command("pack")
def pack(
    source: Annotated[list[str], typer.Argument(help="Files, directories or glob patterns of chats of one dataset.")],
    out: Annotated[str, typer.Option(help="Where the run will write.", show_default=False)],
    config: Config,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="tokenizer.json or its directory; one beside the data unless given.", show_default=False),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Look at chats, and write a configuration of packed sequences for `headrace run`.

    Example:  headrace init pack chats.jsonl --tokenizer qwen3 --out out --config pack.yaml
    """
    from headrace.cli.init.pack import AskedPack, pack_sections

    asked = AskedPack(tuple(source), out, tokenizer=tokenizer)
    write_sections(config, overwrite, lambda: pack_sections(asked))


@app.command("rewrite")
def rewrite(
    source: Annotated[
        list[str], typer.Argument(help="A prepared dataset, or plain shards: files, directories, globs.")
    ],
    out: Annotated[str, typer.Option(help="Where the run will write.", show_default=False)],
    config: Config,
    overwrite: Overwrite = False,
) -> None:
    """Look at shards, and write a configuration of a rewrite for `headrace run`.

    Example:  headrace init rewrite raw --out fast --config rewrite.yaml
    """
    from headrace.cli.init.rewrite import AskedRewrite, rewrite_sections

    asked = AskedRewrite(tuple(source), out)
    write_sections(config, overwrite, lambda: rewrite_sections(asked))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
