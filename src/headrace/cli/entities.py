"""Handle entities on the command line: the flags that name them, and reports on their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from headrace.cli.flags import unless_given
from headrace.cli.output import cell, emit, printer, say, table
from headrace.errors import SettingsError
from headrace.report.words import many, many_entities

if TYPE_CHECKING:
    from headrace.arrays import I64
    from headrace.dataset.index import SplitIndex
    from headrace.stream.loader.dataset import Dataset
    from headrace.stream.order.whereabouts import Sightings

_SHOWN = 20  # most lines of a table; --json has all

EntityFile = Annotated[Path | None, unless_given("--entities", help="A file of entities, one per line.")]
EntityColumn = Annotated[
    str | None,
    unless_given(help="Column that names the entity; default: the one of the run."),
]


@dataclass(frozen=True)
class EntityRows:
    """The rows of entities in a split.

    entity: for each row, its entity's index in `names`. rows: row numbers in the split. Both are parallel.
    """

    column: str
    names: list[str]
    entity: I64
    rows: I64


@dataclass(frozen=True, kw_only=True)
class AskedEntities:
    """Flags that name the entities of a question."""

    entity: Annotated[list[str] | None, unless_given(help="An entity; may be repeated.")] = None
    entities: EntityFile = None
    entity_column: EntityColumn = None

    @property
    def given(self) -> bool:
        """True if any of the flags was given."""
        return any(each is not None for each in (self.entity, self.entities, self.entity_column))

    def rows_in(self, dataset: Dataset, split: str) -> EntityRows:
        """Find the rows of the entities in a split; if their index must be built, show progress."""
        from headrace.cli.progress import shard_progress

        names = names_of(self.entity or (), self.entities)
        with shard_progress("index the shards") as on_progress:
            index = dataset.entity_index(self.entity_column, on_progress=on_progress)
        return EntityRows(index.column, names, *index.rows_of(split, names))


def names_of(named: Sequence[str], file: Path | None) -> list[str]:
    """Return the distinct entities from arguments and a file. Raises `SettingsError` if there are none."""
    names = list(named)
    if file is not None:
        try:
            names += file.read_text("utf-8-sig").split("\n")  # splitlines would also split at form feeds
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"{file}: cannot be read as UTF-8 text ({error}); give a file with one entity per line"
            ) from error
    found = [name for name in dict.fromkeys(names) if name]
    if not found:
        raise SettingsError("no entity was given; name one, or give a file of them with --entities")
    return found


def say_absent(absent: int, asked: int, where: str) -> None:
    """Report how many entities have no row, because a misspelled name looks the same as an absent one."""
    if absent:
        say(
            f"{absent:,} of {asked:,} entities have no row in {where}; write entities exactly as the text of "
            "their column, where 17, 17.0 and 017 are three different entities"
        )


def index_entities(dataset: Dataset, column: str | None, *, as_json: bool) -> None:
    """Build the index of entities, and print its contents in numbers."""
    from headrace.cli.progress import shard_progress

    with shard_progress("index the shards") as on_progress:
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
    """Print where the rows of entities are delivered or were received.

    told: "steps" for steps, ranks and places in batches, "positions" for positions in the global order only.
    """
    import numpy as np

    from headrace.stream.order.whereabouts import row_in_shard

    order = np.lexsort((found.position, asked.entity[found.row]))
    found = replace(found, **{each.name: getattr(found, each.name)[order] for each in fields(found)})
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
        say(f"{many_entities(len(asked.names))} and {many(len(row), 'row')} in total; --json prints them all")
