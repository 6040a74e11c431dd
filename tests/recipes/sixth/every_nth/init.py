"""A configuration from a look at the data."""

from every_nth.init_options import ThinOptions
from headrace.cli.init.commented import Section
from headrace.cli.init.look import look


def sections(options: ThinOptions) -> tuple[list[Section], str]:
    """Propose a step that leaves about a tenth of the rows."""
    seen = look(options.source)
    about = f"{len(seen.names)} files"
    return [Section(f"Looked at {about}.", {"recipe": "every_nth", "source": options.source[0], "out": options.out, "step": 10})], about  # fmt: skip
