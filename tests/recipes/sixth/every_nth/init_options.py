"""Flags of `headrace init thin`."""

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True)
class ThinOptions:
    """Look at files, and write a configuration that thins them out.

    Example:  headrace init thin raw --out thinned --config thin.yaml
    """

    source: Annotated[list[str], typer.Argument(help="Files, directories or glob patterns of tables.")]
    out: Annotated[str, typer.Option(help="Output directory of the run.")]
