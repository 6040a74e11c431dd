"""Look at data and write a commented configuration that runs as it is: `headrace init`."""

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


def write_sections(
    config: Path, out: str, made: Callable[[], tuple[list[Section], str]], *, overwrite: bool, as_json: bool
) -> None:
    """Have the sections made and written, and say how to run them. Raises `SettingsError` if the file is there."""
    from headrace.cli.init.commented import Aside, commented_yaml
    from headrace.storage.places import local_path_of, path_of

    path_of(out)  # refuses what `headrace run` would refuse
    config = local_path_of(config, "--config")
    there = SettingsError(f"{config}: is there already; give another --config, or --overwrite")
    if config.exists() and not overwrite:
        raise there
    sections, about = made()
    try:
        with config.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(commented_yaml(sections))
    except FileExistsError:
        raise there from None
    except OSError as error:
        raise SettingsError(f"{config}: cannot be written ({error.strerror}); give another --config") from error
    proposed = [(name, each) for section in sections for name, each in section.settings.items()]
    asked = [f" --set {name}={each.value}" for name, each in proposed if isinstance(each, Aside) and each.needed]
    command = f"headrace run {config}{''.join(asked)}"
    if as_json:
        emit({"config": str(config), "about": about, "run": command})
        return
    say(f"{config}: {about}")
    say(f"run it:  {command}")


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
