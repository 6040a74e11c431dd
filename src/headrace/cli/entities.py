"""Entities on the command line: the flags that name them, and what is told of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.output import cell, emit, printer, say, table
from headrace.errors import SettingsError

if TYPE_CHECKING:
    from headrace.arrays import I64
    from headrace.dataset.index import SplitIndex
    from headrace.stream.loader.dataset import Dataset
    from headrace.stream.order.whereabouts import Sightings

_SHOWN = 20  # lines of a table; --json has all

EntityColumn = Annotated[
    str | None,
    typer.Option(help="Column whose values name entities; default: the run's.", show_default=False),
]


@dataclass(frozen=True)
class EntityRows:
    """The rows of entities in a split. entity: of each row, by its number in `names`; rows: of the split; parallel."""

    column: str
    names: list[str]
    entity: I64
    rows: I64


@dataclass(frozen=True, kw_only=True)
class AskedEntities:
    """The entities that a command is about."""

    entity: Annotated[list[str] | None, typer.Option(help="An entity; may be repeated.", show_default=False)] = None
    entities: Annotated[Path | None, typer.Option(help="A file of entities, one a line.", show_default=False)] = None
    entity_column: EntityColumn = None

    @property
    def given(self) -> bool:
        """Tell whether any of the flags was given."""
        return any(each is not None for each in (self.entity, self.entities, self.entity_column))

    def names(self) -> list[str]:
        """Return the entities, each once, in their order. Raises `SettingsError` if there are none."""
        names = list(self.entity or ())
        if self.entities is not None:
            try:
                names += self.entities.read_text("utf-8-sig").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(
                    f"{self.entities}: cannot be read as UTF-8 text ({error}); give a file of one entity a line"
                ) from error
        found = [name for name in dict.fromkeys(names) if name]
        if not found:
            raise SettingsError("no entity is given; name one with --entity, or a file of them with --entities")
        return found

    def rows_in(self, dataset: Dataset, split: str) -> EntityRows:
        """Find the rows of the entities in a split; progress is shown while their index is made."""
        from headrace.cli.progress import index_progress

        names = self.names()
        with index_progress() as on_progress:
            index = dataset.entity_index(self.entity_column, on_progress=on_progress)
        return EntityRows(index.column, names, *index.rows_of(split, names))


def say_absent(absent: int, asked: int, where: str) -> None:
    """Say how many entities have no row, as a name that is written otherwise looks the same as one that is absent."""
    if absent:
        say(
            f"{absent:,} of {asked:,} entities have no row in {where}; an entity is named by the text of its column,"
            " where 17, 17.0 and 017 are three"
        )


def index_entities(dataset: Dataset, column: str | None, *, as_json: bool) -> None:
    """Make the index of entities, and print what it holds."""
    from headrace.cli.progress import index_progress

    with index_progress() as on_progress:
        index = dataset.entity_index(column, on_progress=on_progress)
    counts = {split: index.count(split) for split in dataset.splits}
    if as_json:
        splits = {split: {"entities": entities, "rows": rows} for split, (entities, rows) in counts.items()}
        emit({"path": str(index.path), "column": index.column, "bytes": index.bytes, "splits": splits})
        return
    for split, (entities, rows) in counts.items():
        say(f"{split}: {rows:,} rows of {entities:,} entities, by {index.column}")
    say(f"index  {index.path} ({index.bytes:,} bytes)")


def answer(
    index: SplitIndex,
    asked: EntityRows,
    found: Sightings,
    verb: Literal["delivered", "received"],
    *,
    epoch: int,
    told: Literal["steps", "positions"] = "steps",
    as_json: bool,
) -> None:
    """Print where the rows of entities are delivered, or were received.

    told: by steps, ranks and places in batches, or by positions in the global order alone.
    """
    import numpy as np

    from headrace.stream.order.whereabouts import row_in_shard

    which, row = asked.entity[found.row], asked.rows[found.row]
    rows, deliveries = (np.bincount(each, minlength=len(asked.names)) for each in (asked.entity, which))
    shard, inside = row_in_shard(index, row)
    numbers = {"row": inside, "position": found.position}
    if told == "steps":
        numbers |= {"step": found.step, "rank": found.rank, "place": found.place}
    if as_json:
        names = list(index.shards)
        records = [
            {"shard": names[each], **dict(zip(numbers, values, strict=True))}
            for each, *values in zip(shard.tolist(), *(each.tolist() for each in numbers.values()), strict=True)
        ]
        ends = np.cumsum(deliveries).tolist()
        entities: dict[str, Any] = {
            name: {"rows": count, verb: own, "deliveries": records[end - own : end]}
            for name, count, own, end in zip(asked.names, rows.tolist(), deliveries.tolist(), ends, strict=True)
        }
        emit({"split": index.split, "epoch": epoch, "column": asked.column, "entities": entities})
        return
    title = f"{asked.column} in {index.split}, epoch {epoch}: {len(row):,} rows {verb} of {len(asked.rows):,}"
    made = table(title, ("entity", "rows", verb), numbers_from=1)
    for name, count, own in list(zip(asked.names, rows.tolist(), deliveries.tolist(), strict=True))[:_SHOWN]:
        made.add_row(cell(name), f"{count:,}", f"{own:,}")
    printer().print(made)
    say_absent(rows.tolist().count(0), len(asked.names), index.split)
    heads = [name for name in ("step", "rank", "place", "position") if name in numbers]
    made = table(None, ("entity", "shard:row", *heads), numbers_from=2)
    for number in range(min(_SHOWN, len(row))):
        place = f"{index.shards[int(shard[number])]}:{inside[number]}"
        values = (f"{numbers[name][number]:,}" for name in heads)
        made.add_row(cell(asked.names[int(which[number])]), cell(place), *values)
    if len(row):
        printer().print(made)
    if len(asked.names) > _SHOWN or len(row) > _SHOWN:
        say(f"{len(asked.names):,} entities and {len(row):,} rows in all; --json has them")
