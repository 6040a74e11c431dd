"""A recipe on a sample of its source: the same settings, less data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.estimate.heads import take_sample
from headrace.cli.init.look import evenly
from headrace.errors import InputError
from headrace.storage.remote_path import is_remote


@dataclass(frozen=True)
class Reduced:
    """bytes: of the source that the recipe now reads; of: all that it would."""

    recipe: Any
    bytes: int
    of: int


def reduced(recipe: Any, files: list[tuple[Path, str]], directory: Path, sample_bytes: int) -> Reduced:
    """The recipe on about so many bytes of its files. directory: a new one, for the sample.

    Raises `InputError` where no sample can be taken.
    """
    if any(is_remote(path) for path, _ in files):
        raise InputError("the source lies in an object store, of which no sample is taken")
    return _REDUCE[recipe.recipe_name](recipe, files, directory, sample_bytes)


def _size(files: list[tuple[Path, str]]) -> int:
    return sum(path.stat().st_size for path, _ in files)


def _of_source(recipe: Any, files: list[tuple[Path, str]], directory: Path, sample_bytes: int) -> Reduced:
    taken = take_sample(files, directory, sample_bytes)
    places = tuple(sorted({(directory / name).parent for _, name in files if (directory / name).exists()}))
    return Reduced(recipe.model_copy(update={"source": places}), taken, _size(files))


def _rewrite(recipe: Any, files: list[tuple[Path, str]], directory: Path, sample_bytes: int) -> Reduced:
    """Plain shards, of a prepared dataset as well: what a split is does not change what rows cost."""
    made = _of_source(recipe, files, directory / "source", sample_bytes)
    return Reduced(made.recipe.model_copy(update={"cache_dir": directory / "cache"}), made.bytes, made.of)


def _packed(recipe: Any, _files: list[tuple[Path, str]], directory: Path, sample_bytes: int) -> Reduced:
    from headrace.recipes.packed_sequences.tasks import datasets_of

    if recipe.sample is not None:
        raise InputError("sample takes rows of all tasks, so that no part stands for the whole")
    datasets = datasets_of(recipe)
    total = sum(sum(each.sizes) for each in datasets)
    blend: dict[str, list[Any]] = {}
    taken = 0
    for place, each in enumerate(datasets):
        room = max(1, sample_bytes * sum(each.sizes) // max(1, total))
        inside = directory / str(place)
        pairs = [(path, Path(name).name) for path, name in zip(each.paths, each.names, strict=True)]
        taken += take_sample(pairs, inside, room)
        source = each.source.model_copy(update={"path": (inside,)})
        blend.setdefault(each.split or "datasets", []).append(source)
    update = {name: tuple(blend.get(name, ())) for name in ("datasets", "train", "valid", "test")}
    sample = recipe.model_copy(update={"blend": recipe.blend.model_copy(update=update), "num_shards": None})
    return Reduced(sample, taken, total)


def _series(recipe: Any, files: list[tuple[Path, str]], _directory: Path, sample_bytes: int) -> Reduced:
    """Some whole entities where each has its files, else some rows of each table."""
    from headrace.recipes.series.config import FILE_NAME
    from headrace.recipes.series.files import entity_files

    if recipe.entity != FILE_NAME:
        raise InputError("entities lie in long tables, of which no part stands for the whole")
    entities = [each for each in entity_files(recipe, files) if each.paths]
    sizes = [sum(path.stat().st_size for path in each.paths) for each in entities]
    count = max(1, sample_bytes * len(entities) // max(1, sum(sizes)))
    chosen = evenly(len(entities), min(count, len(entities)))
    names = tuple(entities[place].entity for place in chosen)
    sample = recipe.model_copy(update={"entities": names, "entities_file": None})
    return Reduced(sample, sum(sizes[place] for place in chosen), sum(sizes))


_REDUCE: Mapping[str, Callable[[Any, list[tuple[Path, str]], Path, int], Reduced]] = {
    "histories": _of_source,
    "packed_sequences": _packed,
    "rewrite": _rewrite,
    "series": _series,
    "temporal_split": _of_source,
}
