"""Find entities that are one: names that differ in spelling, and values that two entities share.

**Spellings.** Names that are the same without case, blanks and Unicode form are one entity's. Names
that are the same by a looser rule may be, and are only named: see `spelled`.

**Links.** In a column such as an e-mail address, nearly every value belongs to one entity. Where a
few entities in different splits have the same one, they may be one customer, device or household.
A value that many entities have is a placeholder or a hub, and links nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import U64
from headrace.formats.content import NOTHING, among
from headrace.formats.text_columns import as_text
from headrace.formats.types import is_text
from headrace.near.words import plain_names
from headrace.stream.audit.near import SplitBlocks
from headrace.stream.audit.units import entity_hashes

_EXAMPLES = 5
HUB = 5  # entities; a value of more links nothing
_MOST_COLUMNS = 4
_LEAST_VALUES = 32
_LONGEST = 64  # bytes on average
_OF_ONE = 0.8  # share of a column's values that belong to one entity
_VALUES_EACH = 3  # of an entity on average; more are of its rows


@dataclass(frozen=True, kw_only=True)
class NearIds:
    """Entities with several names that differ only in their spelling.

    separate: the number of them with names in different splits.
    fraction: of a split's entities, those that have another name in an earlier split; the largest
    over all splits, 0 to 1.
    """

    entities: int
    separate: int
    fraction: float
    examples: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Link:
    """A column whose values link entities of different splits.

    entities: those of later splits that share a value with another entity in an earlier one.
    fraction: of a split's entities; the largest over all splits, 0 to 1. values: shared ones. hubs:
    values of more than five entities, which link nothing; largest_hub: entities of the largest.
    example: SHARD:ROW in the earlier split and in the later one, rows from 0.
    """

    column: str
    entities: int
    fraction: float
    values: int
    hubs: int
    largest_hub: int
    example: tuple[str, str]


def spelled(names: pl.Series) -> pl.Series:
    """Return a key that is equal for spellings of one name. names: as `plain_names` returns them.

    Beyond `plain_names`: numbers by their value (007, 7.0, +7), addresses without what follows a
    plus sign, letters without accents, SURNAME, NAME turned round, phone numbers by their digits,
    and no punctuation or blanks but between two digits.
    """
    numbers = (
        names.str.replace_all(r"^([0-9]{1,3})((,[0-9]{3})+)$", "$1$2")
        .str.extract(r"^[+]?([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,15}(?:[.][0-9]*)?(?:e[+]?[0-9])?)$")
        .str.replace_all(",", "")
        .cast(pl.Float64, strict=False)
        .cast(pl.String)
        .str.strip_suffix(".0")
    )
    phones = (
        names.str.extract(r"^([+]?[0-9][0-9 ()/-]{6,})$")
        .str.replace_all(r"[^0-9]", "")
        .str.replace(r"^0+", "")
    )
    phones = pl.select(pl.when(phones.str.len_bytes() >= 7).then(phones)).to_series()
    words = (
        names.str.replace(r"\+[^@+]*@", "@")
        .str.replace(r"^([^,@]+), ([^,@]+)$", "$2 $1")
        .str.normalize("NFD")
        .str.replace_all(r"\p{Mn}", "")
        .str.replace_all(r"([0-9])[^\p{L}\p{N}]+([0-9])", "$1\x00$2")
        .str.replace_all(r"[^\p{L}\p{N}\x00]+", "")
        .str.replace_all(r"(^|[^0-9])0+([0-9])", "$1$2")
    )
    words = pl.select(pl.when(words != "").then(words)).to_series()
    return pl.select(pl.coalesce(numbers, phones, words, names)).to_series()


def distinct_names(
    splits: Sequence[SplitBlocks], entity: str, null_values: Sequence[str]
) -> list[pl.DataFrame]:
    """Return the distinct names of entities of each split, as `raw`, and its number as `split`."""

    def distinct(table: pa.Table) -> pl.DataFrame:
        texts = pl.Series("raw", pl.from_arrow(as_text(table[entity], null_values, entity)))
        return texts.drop_nulls().unique().to_frame()

    parts = []
    for number, split in enumerate(splits):
        names_of_blocks = [pl.DataFrame(schema={"raw": pl.String}), *split.map([entity], distinct)]
        names_of_split = pl.concat(names_of_blocks).unique()
        parts.append(names_of_split.with_columns(pl.lit(number).alias("split")))
    return parts


def same_names(parts: Sequence[pl.DataFrame]) -> tuple[NearIds, NearIds]:
    """Group entities whose names are the same by `plain_names`, and those that are by `spelled`.

    parts: as `distinct_names`.
    """
    ids = pl.concat(parts)
    plain = plain_names(ids["raw"])
    return _grouped(parts, ids, plain), _grouped(parts, ids, spelled(plain))


def _grouped(parts: Sequence[pl.DataFrame], ids: pl.DataFrame, key: pl.Series) -> NearIds:
    """Group entities by a key of their names."""
    # Nearly every key has one name: hashes of 8 bytes find the others without a list for each key.
    pairs = pl.DataFrame({"plain": key.hash(), "raw": ids["raw"].hash()})
    several = pairs.unique().group_by("plain").len().filter(pl.col("len") > 1)["plain"]
    ids = ids.with_columns(key.alias("plain")).filter(pairs["plain"].is_in(several.implode()))
    names = ids.group_by("plain", "raw").agg(pl.col("split").min().alias("first"))
    groups = (
        ids.group_by("plain")
        .agg(pl.col("raw").unique().sort(), (pl.col("split").n_unique() > 1).alias("apart"))
        .filter(pl.col("raw").list.len() > 1)
        .sort("plain")
    )
    # The first split of an entity's other names: the smallest, or the second smallest if that is
    # this name's own.
    firsts = (
        names.group_by("plain")
        .agg(pl.col("first").sort().alias("firsts"))
        .filter(pl.col("firsts").list.len() > 1)
    )
    other = pl.col("firsts").list.get(
        (pl.col("first") == pl.col("firsts").list.first()).cast(pl.Int8)
    )
    again = (
        ids.join(firsts, on="plain")
        .join(names, on=["plain", "raw"])
        .filter(other < pl.col("split"))["split"]
    )
    examples = (
        groups.sort("apart", descending=True, maintain_order=True)["raw"].head(_EXAMPLES).to_list()
    )
    return NearIds(
        entities=len(groups),
        separate=int(groups["apart"].sum()),
        fraction=max(
            int((again == number).sum()) / max(1, len(ids_of_split))
            for number, ids_of_split in enumerate(parts)
        ),
        examples=tuple(tuple(row) for row in examples),
    )


def linking_columns(
    looked_at: pa.Table, entity: str, columns: Sequence[str], null_values: Sequence[str]
) -> list[str]:
    """Select the columns whose values, in the rows looked at, nearly all belong to one entity each;
    at most four.
    """
    of_row = pl.Series("entity", pl.from_arrow(as_text(looked_at[entity], null_values, entity)))
    selected = []
    for name in columns:
        column = looked_at[name]
        is_short_text = (
            is_text(column.type)
            and (pc.mean(pc.binary_length(column)).as_py() or _LONGEST) < _LONGEST
        )
        if not (is_short_text or pa.types.is_integer(column.type)):
            continue
        values = pl.Series("value", pl.from_arrow(as_text(column, null_values, name)))
        pairs = pl.DataFrame([of_row, values]).drop_nulls().unique()
        entities = pairs["entity"].n_unique()
        holders = pairs.group_by("value").len()["len"]
        if (
            len(holders) >= max(_LEAST_VALUES, entities // 2)
            and len(pairs) <= _VALUES_EACH * entities
            and int((holders == 1).sum()) >= _OF_ONE * len(holders)
        ):
            selected.append(name)
    return selected[:_MOST_COLUMNS]


def find_links(
    splits: Sequence[SplitBlocks],
    entity: str,
    columns: Sequence[str],
    null_values: Sequence[str],
    entities: Sequence[int],
) -> tuple[Link, ...]:
    """Find the columns that link entities of different splits.

    entities: their number in each split. Memory: 8 bytes for each row and column.
    """
    if not columns or len(splits) < 2:
        return ()
    hashes = [entity_hashes(split, entity, null_values, columns) for split in splits]
    links = []
    for number, name in enumerate(columns, start=1):
        pairs = _pairs([(of_split[0], of_split[number]) for of_split in hashes])
        link = _link(name, pairs, splits, entities)
        if link is not None:
            links.append(link)
    return tuple(links)


def _pairs(hashes: Sequence[tuple[U64, U64]]) -> pl.DataFrame:
    """Return the pairs of an entity and a value that several splits have, each at its first row.

    hashes: of the entity and the value of each row, by split.
    """
    known = [np.sort(values) for _, values in hashes]
    frames = []
    for number, (entity, values) in enumerate(hashes):
        others = np.zeros(len(values), np.bool_)
        for other in range(len(hashes)):
            if other != number:
                others |= among(values, known[other])
        rows = np.flatnonzero(others & (values != NOTHING) & (entity != NOTHING))
        frame = pl.DataFrame({"entity": entity[rows], "value": values[rows], "row": rows})
        frame = frame.unique(["entity", "value"], keep="first", maintain_order=True)
        frames.append(frame.with_columns(pl.lit(number).alias("split")))
    return pl.concat(frames)


def _link(
    name: str, pairs: pl.DataFrame, splits: Sequence[SplitBlocks], entities: Sequence[int]
) -> Link | None:
    """Judge the values of a column that several splits have; None if they link no entities."""
    holders = pairs.group_by("value").agg(pl.col("entity").n_unique().alias("entities"))
    hubs = holders.filter(pl.col("entities") > HUB)
    rare = holders.filter(pl.col("entities").is_between(2, HUB)).select("value")
    some = pairs.join(rare, on="value")
    both = (
        some.join(some, on="value", suffix="_later")
        .filter(
            (pl.col("entity") != pl.col("entity_later")) & (pl.col("split") < pl.col("split_later"))
        )
        .sort("split", "row", "split_later", "row_later")
    )
    if not len(both):
        return None
    linked = both.select("split_later", "entity_later").unique()
    shares = [
        int((linked["split_later"] == number).sum()) / max(1, count)
        for number, count in enumerate(entities)
    ]
    first = both.row(0, named=True)
    return Link(
        column=name,
        entities=linked["entity_later"].n_unique(),
        fraction=max(shares),
        values=both["value"].n_unique(),
        hubs=len(hubs),
        largest_hub=int(hubs["entities"].max() or 0),  # type: ignore[arg-type]  # a number
        example=(
            splits[first["split"]].location(first["row"]),
            splits[first["split_later"]].location(first["row_later"]),
        ),
    )
