"""A recipe on a sample of its source: the same settings, less data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.estimate.heads import take_sample
from headrace.cli.estimate.sized import SizedFile
from headrace.cli.init.look import evenly

_LEAST_SAMPLE = 32  # rows of a dataset, of a recipe that takes a sample itself


@dataclass(frozen=True)
class Reduced:
    """bytes: of the source that the recipe now reads; of: all that it would.

    rows, entities: of the whole source, where they had to be counted. kept: how many of so many rows the whole run
    would take, where it takes a sample itself.
    """

    recipe: Any
    bytes: int
    of: int
    rows: int | None = None
    entities: int | None = None
    kept: Callable[[int], float] | None = None


def reduced(recipe: Any, files: Sequence[SizedFile], directory: Path, sample_bytes: int) -> Reduced:
    """The recipe on about so many bytes of its files. directory: a new one, for the sample.

    Raises `InputError` where no sample can be taken.
    """
    return _REDUCE[recipe.recipe_name](recipe, files, directory, sample_bytes)


def _of_source(recipe: Any, files: Sequence[SizedFile], directory: Path, sample_bytes: int) -> Reduced:
    taken = take_sample(files, directory, sample_bytes)
    places = tuple(sorted({(directory / file.name).parent for file in files if (directory / file.name).exists()}))
    return Reduced(recipe.model_copy(update={"source": places}), taken, sum(file.size for file in files))


def _rewrite(recipe: Any, files: Sequence[SizedFile], directory: Path, sample_bytes: int) -> Reduced:
    """Plain shards, of a prepared dataset as well: what a split is does not change what rows cost."""
    made = _of_source(recipe, files, directory / "source", sample_bytes)
    return Reduced(made.recipe.model_copy(update={"cache_dir": directory / "cache"}), made.bytes, made.of)


def _packed(recipe: Any, _files: Sequence[SizedFile], directory: Path, sample_bytes: int) -> Reduced:
    """The same share of each dataset; a recipe that takes a sample of each takes that share of it, if not too few."""
    from headrace.recipes.packed_sequences.tasks import datasets_of

    datasets = datasets_of(recipe)
    sizes = [sum(each.sizes) for each in datasets]
    total = max(1, sum(sizes))
    blend: dict[str, list[Any]] = {}
    taken = 0
    for place, each in enumerate(datasets):
        inside = directory / str(place)
        parts = [
            SizedFile(path, Path(name).name, size)
            for path, name, size in zip(each.paths, each.names, each.sizes, strict=True)
        ]
        taken += take_sample(parts, inside, max(1, sample_bytes * sizes[place] // total))
        source = each.source.model_copy(update={"path": (inside,)})
        blend.setdefault(each.split or "datasets", []).append(source)
    update: dict[str, Any] = {name: tuple(blend.get(name, ())) for name in ("datasets", "train", "valid", "test")}
    update = {"blend": recipe.blend.model_copy(update=update), "num_shards": None}
    if recipe.sample is None:
        return Reduced(recipe.model_copy(update=update), taken, sum(sizes))
    most = int(recipe.sample)
    update["sample"] = max(round(most * taken / total), min(most, _LEAST_SAMPLE))
    return Reduced(
        recipe.model_copy(update=update),
        taken,
        sum(sizes),
        kept=lambda rows: sum(min(most, rows * size / total) for size in sizes),
    )


def _series(recipe: Any, files: Sequence[SizedFile], directory: Path, sample_bytes: int) -> Reduced:
    """Some whole entities: their files, or their rows of long tables."""
    from headrace.cli.estimate.long_tables import take_entities
    from headrace.recipes.series.config import FILE_NAME
    from headrace.recipes.series.files import SERIES, entity_files

    if recipe.entity != FILE_NAME:
        tables = [file for file in files if file.name.startswith(f"{SERIES}/")]
        taken = take_entities(recipe, tables, directory, sample_bytes)
        whole = sum(file.size for file in tables)
        return Reduced(taken.recipe, taken.bytes, whole, rows=taken.rows_of, entities=taken.entities_of)
    every = entity_files(recipe, [file.pair for file in files])
    entities = [each for each in every if each.paths]
    size_of = {file.path: file.size for file in files}
    sizes = [sum(size_of[path] for path in each.paths) for each in entities]
    count = max(1, sample_bytes * len(entities) // max(1, sum(sizes)))
    chosen = evenly(len(entities), min(count, len(entities)))
    names = tuple(entities[place].entity for place in chosen)
    sample = recipe.model_copy(update={"entities": names, "entities_file": None})
    return Reduced(sample, sum(sizes[place] for place in chosen), sum(sizes), entities=len(every))


_REDUCE: Mapping[str, Callable[[Any, Sequence[SizedFile], Path, int], Reduced]] = {
    "histories": _of_source,
    "packed_sequences": _packed,
    "rewrite": _rewrite,
    "series": _series,
    "temporal_split": _of_source,
}
