"""What tests of `headrace init` share: a source in parts, and a configuration as it is read again."""

from pathlib import Path
from typing import Any

import polars as pl
import yaml

from headrace.cli.init.commented import Section, commented_yaml, settings_of


def write_parts(root: Path, frame: pl.DataFrame, kind: str = "csv", shards: int = 3) -> Path:
    """The rows of a table dealt out to files of a new directory."""
    root.mkdir()
    for shard in range(shards):
        part, path = frame[shard::shards], root / f"part-{shard}.{kind}"
        part.write_csv(path) if kind == "csv" else part.write_parquet(path)
    return root


def read_again(sections: list[Section]) -> tuple[dict[str, Any], str]:
    """The settings that a YAML reader finds in the file, which are those meant; and all its words in one line."""
    text = commented_yaml(sections)
    record = yaml.safe_load(text)

    assert settings_of(sections) == record
    return record, " ".join(line.removeprefix("# ") for line in text.splitlines())
