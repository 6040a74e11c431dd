"""The settings of the recipe, each written once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from headrace.run.settings import RecipeSettings
from headrace.settings import Names
from headrace.storage.settings import Places


class EveryNth(RecipeSettings):
    """Keep every n-th row of each file, in order."""

    recipe_name: ClassVar = "every_nth"

    source: Places = Field(min_length=1, description="Files, directories or glob patterns of tables.")
    step: int = Field(10, ge=1, description="Keep one row of so many.")
    first: int = Field(0, ge=0, description="Row of each file to begin with.")
    codec: Literal["none", "zstd"] = Field("none", description="Compression of the output.")
    columns: Names | None = Field(None, description="Columns to keep.")

    def execute(self, context: Any, files: Sequence[tuple[Path, str]]) -> Any:
        """Do the work in the run directory."""
        from every_nth.stages import execute

        return execute(self, context, files)
