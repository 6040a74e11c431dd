"""The root of all commands: the place where every command line comes by, to be parsed or completed."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from headrace.cli.for_machines import complaints_kept
from headrace.credentials import refuse_credentials


class Commands(TyperGroup):
    """The commands of headrace. A wrong command line is told as JSON too; a shell is offered more than options."""

    def make_context(self, *given: Any, **options: Any) -> Any:
        if options.get("resilient_parsing"):  # a shell asks
            from headrace.cli.completing import attach

            attach(self)
        else:
            refuse_credentials(_words(given, options))
        with complaints_kept():
            return super().make_context(*given, **options)

    def invoke(self, ctx: Any) -> Any:
        with complaints_kept():
            return super().invoke(ctx)


def _words(given: tuple[Any, ...], options: dict[str, Any]) -> list[str]:
    """The command line, of which any message may repeat a part."""
    return list(options["args"] if "args" in options else given[1])
