"""Hand the rows of a stream to TRL, which prepares datasets of its own kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.errors import SettingsError, StreamError
from headrace.stream.loader.options import VALID
from headrace.stream.loader.stream_loader import StreamLoader


class RowFeed:
    """Rows for TRL's preparation of a dataset, a batch at a time. prepared: what TRL made of `dataset`."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.prepared: Any = None

    def __call__(self) -> Iterator[dict[str, Any]]:
        yield from self.rows

    def dataset(self) -> Any:
        """Return a dataset of the current rows."""
        from datasets import IterableDataset

        return IterableDataset.from_generator(self)

    @property
    def tokenised(self) -> bool:
        """Tell whether the rows are tokens already, as `headrace preferences` makes them."""
        return "prompt_ids" in self.rows[0]

    def prepare(self, rows: list[dict[str, Any]], *, mismatched: bool) -> list[dict[str, Any]]:
        """Return rows as TRL's data collators take them. Raises `StreamError` if there are more or fewer.

        mismatched: whether each prompt also gets the answer of another one, from which KTO estimates its KL term.
        """
        if self.tokenised and not mismatched:
            return rows
        if self.tokenised:
            return [
                {**row, "KL_completion_ids": before["completion_ids"]}
                for row, before in zip(rows, [*rows[-1:], *rows], strict=False)
            ]
        self.rows = rows
        made = list(self.prepared)
        if len(made) != len(rows):
            raise StreamError(
                f"rows: {len(rows)} were prepared to {len(made)}; a stream's rows are one example each: pack with"
                " headrace, with packing=False for the trainer"
            )
        return made


def first_rows(stream: StreamLoader) -> list[dict[str, Any]]:
    """Return rows from which TRL sees the columns. Raises `SettingsError` unless they are rows or tokens."""
    if stream.options.batch_format == "rows":
        batches = iter(stream)
        rows: Any = next(batches, None)
        del batches
        if not rows:
            raise SettingsError(f"{stream}: has no rows")
        return [{name: row[name] for name in row if name != VALID} for row in rows[:1]]
    names = stream.options.columns or stream.index.schema.names
    if "input_ids" not in names and stream.options.source is None:
        raise SettingsError(
            f"{stream}: has no column input_ids, but {list(names)}; for texts that the trainer tokenises open it with"
            ' batch_format="rows"'
        )
    return [{"input_ids": [0, 0], "labels": [0, 0]}]
