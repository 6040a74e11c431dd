"""`headrace index`: publish the index of plain shards, so that nobody reads all of them again."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from headrace.cli.flags import Json, with_groups
from headrace.cli.for_machines import tell
from headrace.cli.opening import index_progress
from headrace.cli.printing import say
from headrace.cli.text_columns import PlainShards
from headrace.errors import InputError


@with_groups
def index(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Plain shards: a directory, a file or a glob.")],
    *,
    place: Annotated[
        str | None,
        typer.Option(
            help="beside (in PATH/.headrace) or cache; default: beside, or the cache where PATH cannot be written.",
            show_default=False,
        ),
    ] = None,
    shards: PlainShards,
    as_json: Json = False,
) -> None:
    """Publish the index of plain shards beside them. Whoever opens PATH afterwards reads no shard to find its blocks.

    The index holds the rows of every block and the columns. It is used while the files keep their names, sizes and
    times; of files that changed an index is made anew, and the log says so. Give the --types and --null-values that
    PATH is opened with.

    Example:  headrace index raw

    Example:  headrace index raw --types price=float32 --place cache
    """
    from headrace.checks import check_word
    from headrace.dataset.open import is_prepared
    from headrace.dataset.plain import Place, publish_index
    from headrace.storage.places import path_of

    if place is not None:
        check_word("--place", place, get_args(Place))
    if is_prepared(path_of(path)):
        raise InputError(f"{path}: is a prepared dataset, whose runs have an index; give a directory of plain shards")
    with index_progress() as hear:
        found = publish_index(path, place=place, **shards.options(), on_progress=hear)  # type: ignore[arg-type]  # checked
    splits = {name: found.dataset.split_index(name) for name in found.dataset.splits}
    record = {
        "path": str(found.path),
        "place": found.place,
        "how": found.how,
        "bytes": found.path.stat().st_size,
        "splits": {
            name: {"shards": len(each.shards), "blocks": len(each.rows), "rows": each.total_rows}
            for name, each in splits.items()
        },
    }
    if as_json:
        tell(record)
        return
    for name, each in splits.items():
        say(f"{name}: {each.total_rows:,} rows in {len(each.rows):,} blocks of {len(each.shards):,} shards")
    kept = ", which is that of the files as they are" if found.how == "kept" else ""
    say(f"index  {found.path}{kept}")
    if place is None and found.place == "cache":
        say("the directory of the shards cannot be written, so the index is in the cache of this user alone")
