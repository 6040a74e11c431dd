"""`headrace init`: look at data and write a commented configuration that runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.flags import Json, with_groups
from headrace.cli.for_machines import tell
from headrace.cli.init.asked import AskedHistories, AskedPack, AskedRewrite, AskedSeries, AskedSplit
from headrace.cli.printing import say
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


def write_config(path: Path, text: str, *, overwrite: bool) -> None:
    """Write the configuration. Raises `SettingsError` if it is there already, or cannot be written."""
    try:
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SettingsError(f"{path}: is there already; give another --config, or --overwrite") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written ({error.strerror}); give another --config") from error


def write_sections(
    config: Path, out: str, made: Callable[[], tuple[list[Section], str]], *, overwrite: bool, as_json: bool
) -> None:
    """Have the sections made and written, and say how to run them."""
    from headrace.cli.init.commented import commented_yaml
    from headrace.storage.places import local_path_of, path_of

    path_of(out)  # refuses what `headrace run` would refuse
    config = local_path_of(config, "--config")
    if config.exists() and not overwrite:
        raise SettingsError(f"{config}: is there already; give another --config, or --overwrite")
    sections, about = made()
    write_config(config, commented_yaml(sections), overwrite=overwrite)
    asked = "" if _runs(sections) else " --set tokenizer=DIRECTORY"
    command = f"headrace run {config}{asked}"
    if as_json:
        tell({"config": str(config), "about": about, "run": command})
        return
    say(f"{config}: {about}")
    say(f"run it:  {command}")


def _runs(sections: list[Section]) -> bool:
    """Whether nothing is left for the user to say; chats need a tokenizer, which only the user can choose."""
    from headrace.cli.init.commented import Aside

    return not any(isinstance(each.settings.get("tokenizer"), Aside) for each in sections)


@app.command("series")
@with_groups
def series(config: Config, asked: AskedSeries, *, overwrite: Overwrite = False, as_json: Json = False) -> None:
    """Look at time series of many entities, and write a configuration for `headrace run`.

    Example:  headrace init series data --target streamflow --out out --config series.yaml
    """
    from headrace.cli.init.series import series_sections

    write_sections(config, asked.out, lambda: series_sections(asked), overwrite=overwrite, as_json=as_json)


@app.command("split")
@with_groups
def split(config: Config, asked: AskedSplit, *, overwrite: Overwrite = False, as_json: Json = False) -> None:
    """Look at tables, and write a configuration of a temporal split for `headrace run`.

    Example:  headrace init split raw --out out --config split.yaml
    """
    from headrace.cli.init.split import split_sections

    write_sections(config, asked.out, lambda: split_sections(asked), overwrite=overwrite, as_json=as_json)


@app.command("histories")
@with_groups
def histories(config: Config, asked: AskedHistories, *, overwrite: Overwrite = False, as_json: Json = False) -> None:
    """Look at measurements of many entities, and write a configuration of histories for `headrace run`.

    Example:  headrace init histories pings --out out --config histories.yaml
    """
    from headrace.cli.init.histories import histories_sections

    write_sections(config, asked.out, lambda: histories_sections(asked), overwrite=overwrite, as_json=as_json)


@app.command("pack")
@with_groups
def pack(config: Config, asked: AskedPack, *, overwrite: Overwrite = False, as_json: Json = False) -> None:
    """Look at chats, and write a configuration of packed sequences for `headrace run`.

    Example:  headrace init pack chats.jsonl --tokenizer qwen3 --out out --config pack.yaml
    """
    from headrace.cli.init.pack import pack_sections

    write_sections(config, asked.out, lambda: pack_sections(asked), overwrite=overwrite, as_json=as_json)


@app.command("rewrite")
@with_groups
def rewrite(config: Config, asked: AskedRewrite, *, overwrite: Overwrite = False, as_json: Json = False) -> None:
    """Look at shards, and write a configuration of a rewrite for `headrace run`.

    Example:  headrace init rewrite raw --out fast --config rewrite.yaml
    """
    from headrace.cli.init.rewrite import rewrite_sections

    write_sections(config, asked.out, lambda: rewrite_sections(asked), overwrite=overwrite, as_json=as_json)
