"""`headrace init`: look at data and write a commented configuration that runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.flags import Json, with_groups
from headrace.cli.output import emit, say
from headrace.errors import SettingsError
from headrace.recipe import Init, load, registrations

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
        emit({"config": str(config), "about": about, "run": command})
        return
    say(f"{config}: {about}")
    say(f"run it:  {command}")


def _runs(sections: list[Section]) -> bool:
    """Whether nothing is left for the user to say; chats need a tokenizer, which only the user can choose."""
    from headrace.cli.init.commented import Aside

    return not any(isinstance(each.settings.get("tokenizer"), Aside) for each in sections)


def _command_for(init: Init) -> Callable[..., None]:
    """Make `headrace init WORD` of a recipe: its options as flags, and their help as the command's."""
    options = load(init.options)

    def command(config: Config, asked: Any, *, overwrite: Overwrite = False, as_json: Json = False) -> None:
        sections = load(init.sections)
        write_sections(config, asked.out, lambda: sections(asked), overwrite=overwrite, as_json=as_json)

    command.__annotations__["asked"] = options
    command.__doc__ = options.__doc__
    return with_groups(command)


for _recipe in registrations().values():
    if _recipe.init is not None:
        app.command(_recipe.init.word)(_command_for(_recipe.init))
