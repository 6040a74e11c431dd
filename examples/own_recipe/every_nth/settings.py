"""The settings of the recipe, and the flags of its `headrace init`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer
from pydantic import Field

from headrace.run.settings import RecipeSettings
from headrace.settings import Names
from headrace.storage.settings import Places


class EveryNth(RecipeSettings):
    """Keep every n-th row of each file, in order."""

    recipe_name: ClassVar = "every_nth"

    source: Places = Field(
        min_length=1, description="Files, directories or glob patterns of tables."
    )
    step: int = Field(10, ge=1, description="Keep one row in this many.")
    columns: Names | None = Field(None, description="Columns to keep.")


@dataclass(frozen=True)
class ThinOptions:
    """Look at files, and write a configuration that thins them out."""

    source: Annotated[
        list[str], typer.Argument(help="Files, directories or glob patterns of tables.")
    ]
    out: Annotated[str, typer.Option(help="Output directory of the run.")]
