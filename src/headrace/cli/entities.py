"""Handle entities on the command line: the flags that name them, and reports on their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from headrace.cli.output import cell, emit, printer, say, table
from headrace.cli.settings_flags import unless_given
from headrace.errors import SettingsError, setting
from headrace.report.words import many_entities, pluralise

if TYPE_CHECKING:
    from headrace.arrays import I64
    from headrace.dataset.index import SplitIndex
    from headrace.stream.loader.dataset import Dataset
    from headrace.stream.order.whereabouts import Sightings

_MOST_LINES = 20  # of a table; --json has all

EntityFile = Annotated[
    Path | None, unless_given("--entities", help="A file of entities, one per line.")
]
EntityColumn = Annotated[
    str | None,
    unless_given(help="Column that names the entity; default: the one of the run."),
]


@dataclass(frozen=True)
class EntityRows:
    """The rows of entities in a split.

    entity: for each row, its entity's index in `names`. rows: row numbers in the split.
    """

    column: str
    names: list[str]
    entity: I64
    rows: I64


@dataclass(frozen=True, kw_only=True)
class EntityQuestion:
    """Flags that name the entities of a question."""

    entity: Annotated[list[str] | None, unless_given(help="An entity; may be repeated.")] = None
    entities: EntityFile = None
    entity_column: EntityColumn = None

    @property
    def requested(self) -> bool:
        """True if any of the flags was given."""
        return any(flag is not None for flag in (self.entity, self.entities, self.entity_column))

    def rows_in(self, dataset: Dataset, split: str) -> EntityRows:
        """Find the rows of the entities in a split; if their index must be built, show progress."""
        from headrace.cli.progress import shard_progress

        names = entity_names(self.entity or (), self.entities)
        with shard_progress("index the shards") as on_progress:
            index = dataset.entity_index(self.entity_column, on_progress=on_progress)
        return EntityRows(index.column, names, *index.rows_of(split, names))


def entity_names(arguments: Sequence[str], file: Path | None) -> list[str]:
    """Return the distinct entities from arguments and a file.

    Raises `SettingsError` if there are none.
    """
    names = list(arguments)
    if file is not None:
        try:
            # splitlines would also split at form feeds
            names += file.read_text("utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            problem = f"cannot be read as UTF-8 text ({error})"
            remedy = "give a file with one entity per line"
            raise SettingsError(problem, path=file, remedy=remedy) from error
    distinct = [name for name in dict.fromkeys(names) if name]
    if not distinct:
        remedy = f"name one, or give a file of them with {setting('entities')}"
        raise SettingsError("no entity was given", remedy=remedy)
    return distinct


def report_absent(absent: int, total: int, where: str) -> None:
    """Report how many entities have no row, because a misspelled name looks the same as an absent
    one.
    """
    if absent:
        say(
            f"{absent:,} of {total:,} entities have no row in {where}; write entities exactly as "
            "the text of their column, where 17, 17.0 and 017 are three different entities"
        )


def index_entities(dataset: Dataset, column: str | None, *, as_json: bool) -> None:
    """Build the index of entities, and print its contents in numbers."""
    from headrace.cli.progress import shard_progress

    with shard_progress("index the shards") as on_progress:
        index = dataset.entity_index(column, on_progress=on_progress)
    counts = {split: index.count(split) for split in dataset.splits}
    if as_json:
        splits = {}
        for split, (entities, rows) in counts.items():
            splits[split] = {"entities": entities, "rows": rows}
        emit(
            {
                "path": str(index.path),
                "column": index.column,
                "bytes": index.bytes,
                "splits": splits,
            }
        )
        return
    for split, (entities, rows) in counts.items():
        say(f"{split}: {rows:,} rows of {entities:,} entities, by {index.column}")
    say(f"index  {index.path} ({index.bytes:,} bytes)")


@dataclass(frozen=True, kw_only=True)
class EntityAnswer:
    """Where the rows of entities are delivered or were received, sorted by entity and position.

    verb: "delivered" or "received". deliveries: for each, the index of its entity and its row,
    int64. numbers: int64 columns of the deliveries, by their names in the output.
    """

    index: SplitIndex
    question: EntityRows
    epoch: int
    verb: Literal["delivered", "received"]
    entity: I64
    shard: I64
    numbers: dict[str, I64]

    @classmethod
    def of(
        cls,
        index: SplitIndex,
        question: EntityRows,
        sightings: Sightings,
        verb: Literal["delivered", "received"],
        *,
        epoch: int,
        detail: Literal["steps", "positions"] = "steps",
    ) -> EntityAnswer:
        """Sort sightings. detail: "steps" with ranks and rows of batches, or only "positions"."""
        import numpy as np

        from headrace.stream.order.whereabouts import row_in_shard

        order = np.lexsort((sightings.position, question.entity[sightings.row]))
        columns = {field.name: getattr(sightings, field.name)[order] for field in fields(sightings)}
        sightings = replace(sightings, **columns)
        shard, row_of_shard = row_in_shard(index, question.rows[sightings.row])
        numbers = {"row": row_of_shard, "position": sightings.position}
        if detail == "steps":
            numbers["step"] = sightings.step
            numbers["rank"] = sightings.rank
            numbers["batch_row"] = sightings.batch_row
        return cls(
            index=index,
            question=question,
            epoch=epoch,
            verb=verb,
            entity=question.entity[sightings.row],
            shard=shard,
            numbers=numbers,
        )

    def counts(self) -> list[tuple[str, int, int]]:
        """Return for each entity its name, its rows and their deliveries."""
        import numpy as np

        names = self.question.names
        rows = np.bincount(self.question.entity, minlength=len(names)).tolist()
        deliveries = np.bincount(self.entity, minlength=len(names)).tolist()
        return list(zip(names, rows, deliveries, strict=True))

    def show(self, *, as_json: bool) -> None:
        """Print the answer."""
        if as_json:
            emit(self._record())
        else:
            self._print()

    def _record(self) -> dict[str, Any]:
        names = list(self.index.shards)
        columns = {name: values.tolist() for name, values in self.numbers.items()}
        deliveries: list[dict[str, Any]] = []
        for number, shard in enumerate(self.shard.tolist()):
            values = {name: column[number] for name, column in columns.items()}
            deliveries.append({"shard": names[shard], **values})
        entities: dict[str, Any] = {}
        first = 0
        for name, rows, count in self.counts():
            entities[name] = {
                "rows": rows,
                self.verb: count,
                "deliveries": deliveries[first : first + count],
            }
            first += count
        return {
            "split": self.index.split,
            "epoch": self.epoch,
            "column": self.question.column,
            "entities": entities,
        }

    def _print(self) -> None:
        counts = self.counts()
        total = len(self.entity)
        column = self.question.column
        split = self.index.split
        title = f"{column} in {split}, epoch {self.epoch}: {total:,} rows {self.verb} of"
        rows = table(
            f"{title} {len(self.question.rows):,}", ("entity", "rows", self.verb), numbers_from=1
        )
        for name, count, deliveries in counts[:_MOST_LINES]:
            rows.add_row(cell(name), f"{count:,}", f"{deliveries:,}")
        printer().print(rows)
        absent = sum(count == 0 for _, count, _ in counts)
        report_absent(absent, len(counts), split)
        heads = [name for name in ("step", "rank", "batch_row", "position") if name in self.numbers]
        rows = table(None, ("entity", "shard:row", *heads), numbers_from=2)
        for number in range(min(_MOST_LINES, total)):
            shard = self.index.shards[int(self.shard[number])]
            values = [f"{self.numbers[name][number]:,}" for name in heads]
            name = self.question.names[int(self.entity[number])]
            rows.add_row(cell(name), cell(f"{shard}:{self.numbers['row'][number]}"), *values)
        if total:
            printer().print(rows)
        if len(counts) > _MOST_LINES or total > _MOST_LINES:
            entities = many_entities(len(counts))
            say(f"{entities} and {pluralise(total, 'row')} in total; --json prints them all")
