"""Define groups of flags: frozen dataclasses whose fields are flags, for commands that share them or have many.

`@with_groups` decorates a command whose parameters may be such dataclasses. The command line sees each field as a
separate flag; the command receives the group.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from headrace.errors import SettingsError
from headrace.printable import shown

if TYPE_CHECKING:
    from headrace.dataset.index import SplitIndex
    from headrace.stream.loader.dataset import Dataset
    from headrace.stream.order.plan import Plan


unless_given = partial(typer.Option, show_default=False)
_machines = partial(unless_given, rich_help_panel="More than one machine")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Report = Annotated[
    Literal["auto", "never"],
    typer.Option(
        envvar="HEADRACE_REPORT",
        help="auto: write report.html where the extra `report` is installed.",
        show_envvar=True,
    ),
]
WorkDir = Annotated[
    Path | None,
    _machines(
        help=(
            "Local directory with free space where a run for an object store is built; ~/.cache/headrace unless given."
        ),
    ),
]

Source = Annotated[
    str, typer.Argument(metavar="PATH", help="A prepared dataset, or plain shards: directory, file, glob.")
]
Split = Annotated[str | None, typer.Option(help="The split; needed only if there are several.")]
Ranks = Annotated[int, typer.Option(min=1, max=1 << 20, help="World size.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows per batch of one rank.")]
Shuffle = Annotated[bool, typer.Option("--shuffle/--no-shuffle", help="Shuffle rows, or read files in order.")]
Seed = Annotated[int, typer.Option(help="Seed of the shuffled order.")]
Samples = Annotated[int | None, typer.Option("--samples-per-epoch", min=1, help="Rows per epoch; default: all.")]
Distribution = Annotated[
    Literal["balanced", "round_robin", "by_size"],
    typer.Option(help="balanced, or whole shards: round_robin, by_size."),
]


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the fields of its groups as keyword parameters, required without a default.

    Raises `ValueError` if two flags have the same name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    flags: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if not is_dataclass(hints[name]):
            flags.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        group = groups[name] = hints[name]
        own = get_type_hints(group, include_extras=True)
        flags += (flag(field.name, own[field.name], field.default) for field in fields(group))

    @functools.wraps(command)
    def called(**values: Any) -> Any:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **made)

    return with_parameters(called, flags)


def flag(name: str, annotation: Any, default: Any = MISSING) -> inspect.Parameter:
    """Make a keyword parameter, which is required if it has no default."""
    given = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given, annotation=annotation)


def with_parameters(command: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> Callable[..., Any]:
    """Give a command that takes any keywords a signature for the command line."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect looks for it first
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Run options of every preparing command. None of them changes a byte of the output."""

    workers: Annotated[int | None, unless_given(help="Tasks at a time; default: one per core.")] = None
    fingerprint_by: Annotated[
        Literal["stat", "content"] | None,
        unless_given(
            help=(
                "How source files are identified: by size and time (stat, the default), or by their bytes, which "
                "are read once more (content)."
            ),
        ),
    ] = None
    engine: Annotated[
        Literal["local", "ray"] | None,
        _machines(help="Where tasks run: here (local, the default), or on a Ray cluster over shared storage."),
    ] = None
    address: Annotated[
        str | None,
        _machines(
            help=(
                "Address of the Ray cluster; auto: the one this machine belongs to. Unless given, Ray is started here."
            )
        ),
    ] = None
    work_dir: WorkDir = None
    report: Report = "auto"
    as_json: Json = False

    @property
    def how(self) -> Literal["stat", "content"]:
        """Return what identifies source files, "stat" or "content". Raises `SettingsError` for any other word."""
        if self.fingerprint_by not in (None, "stat", "content"):
            raise SettingsError(f"fingerprint_by is {shown(self.fingerprint_by)}; give stat or content")
        return "content" if self.fingerprint_by == "content" else "stat"

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of `prepare`."""
        return {
            "workers": self.workers,
            "fingerprint_by": self.how,
            "engine": self.engine or "local",
            "address": self.address,
            "work_dir": self.work_dir,
        }


@dataclass(frozen=True, kw_only=True)
class PlainShards:
    """Options for opening a dataset: how to read plain shards, and which fold of a prepared dataset."""

    fold: Annotated[
        int | None, unless_given(min=0, help="Fold of a dataset that was prepared in folds, counted from 0.")
    ] = None
    types: Annotated[
        list[str] | None,
        unless_given(
            metavar="NAME=TYPE",
            help="Type of a column of plain CSV or TSV shards, e.g. price=float32; repeat it, or use commas.",
        ),
    ] = None
    null_values: Annotated[
        list[str] | None, unless_given(help="Text that means missing in typed columns; repeatable.")
    ] = None
    cache_dir: Annotated[
        Path | None, unless_given(help="Directory for the index of plain shards; ~/.cache/headrace unless given.")
    ] = None

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of `open` and `Rewrite`. Raises `SettingsError`."""
        types, null_values = types_of(self.types), null_values_of(self.null_values)
        return {"types": types, "null_values": null_values, "cache_dir": self.cache_dir}

    def open(self, path: str) -> Dataset:
        """Open a dataset; if many plain shards must be indexed, show progress on a terminal."""
        from headrace.cli.progress import shard_progress
        from headrace.stream.loader.dataset import open_dataset

        options = self.options()
        with shard_progress("index the shards") as on_progress:
            dataset = open_dataset(path, **options, on_progress=on_progress)
        return dataset if self.fold is None else dataset.fold(self.fold)


def types_of(words: Sequence[str] | None) -> dict[str, str]:
    """Parse NAME=TYPE pairs; the word infer becomes {"*": "infer"}.

    Raises `SettingsError` for invalid words and for names with two types.
    """
    types: dict[str, str] = {}
    for word in (part.strip() for each in words or () for part in each.split(",")):
        name, equals, kind = word.rpartition("=")
        if not word:
            continue
        if word == "infer":
            types["*"] = word
            continue
        if not equals or not name:
            raise SettingsError(
                f"--types: expected NAME=TYPE or infer, got {word!r}; write e.g. --types distance=int32"
            )
        if types.setdefault(name.strip(), kind.strip()) != kind.strip():
            raise SettingsError(
                f"--types: {name.strip()!r} is given as {types[name.strip()]} and as {kind.strip()}; give one type"
            )
    return types


def pairs_of(
    flag: str, texts: Iterable[str], form: str, example: str, *, empty: Literal["refuse", "take"] = "refuse"
) -> dict[str, str]:
    """Parse texts of a form such as NAME=COLUMN, split at the first "="; blank texts are skipped.

    empty: whether to refuse or take empty values. Raises `SettingsError` for an invalid text.
    """
    pairs: dict[str, str] = {}
    for text in filter(str.strip, texts):
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name or (not value and empty == "refuse"):
            raise SettingsError(f"{flag}: expected {form}, got {text!r}; write e.g. {example}")
        pairs[name] = value
    return pairs


def null_values_of(words: Sequence[str] | None) -> tuple[str, ...]:
    """Return the distinct texts; each argument may hold several, separated by commas."""
    return tuple(dict.fromkeys(part.strip() for each in words or () for part in each.split(",")))


@dataclass(frozen=True, kw_only=True)
class OneEpoch:
    """The flags that `plan` and `where` share: an epoch of a split."""

    split: Split = None
    remainder: Annotated[
        Literal["pad", "drop", "exact"] | None,
        typer.Option(help="What the last step holds; default: exact for one rank, else pad."),
    ] = None
    shuffle: Shuffle = True
    seed: Seed = 0
    epoch: Annotated[int, typer.Option(min=0, help="The epoch, counted from 0.")] = 0
    lanes: Annotated[
        int | None, typer.Option(min=1, help="Lanes; default: what a stream of this topology chooses.")
    ] = None
    shuffle_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows that a reader shuffles together; default: what a stream chooses.")
    ] = None
    samples_per_epoch: Samples = None
    distribution: Distribution = "balanced"
    balance: Annotated[
        Literal["none", "flops"],
        typer.Option(
            help="flops: give all ranks packed bins of similar cost in each step. Counts the tokens of all bins."
        ),
    ] = "none"

    def index_of(self, dataset: Dataset, state: Any = None) -> SplitIndex:
        """Return the index of the split; if steps are balanced, by flag or in the state, it has token counts."""
        from headrace.stream.order.state import StreamState

        saved = None if state is None else StreamState.from_dict(state).balance
        if self.balance == "none" and saved is None:
            return dataset.split_index(self.split)
        return dataset.counted_index(self.split)

    def plan(self, index: Any, *, ranks: int, batch_size: int, state: Any = None) -> Plan:
        """Plan the epoch over the split's index, or the rest of the epoch that a saved state leaves, in its order.

        ranks: the world size. batch_size: rows per batch of one rank.

        Raises `SettingsError`, `InputError` for blocks without a table, and `StreamError` for a state of other rows.
        """
        from headrace.formats.source import file_type_of_word
        from headrace.stream.loader.options import StreamOptions
        from headrace.stream.loader.passes import RowPasses
        from headrace.stream.order.balance import CostModel
        from headrace.stream.order.state import StreamState
        from headrace.stream.ranks.topology import Topology

        for word in dict.fromkeys(index.formats):
            file_type_of_word(word)  # raises for formats that cannot be streamed
        settings = {**asdict(self), "batch_size": batch_size}
        epoch = settings.pop("epoch")
        del settings["split"]
        if state is not None:
            saved = StreamState.from_dict(state)
            settings |= {name: getattr(saved, name) for name in ("seed", "shuffle", "samples_per_epoch")}
            if saved.balance is not None:
                settings["balance"] = CostModel(linear=saved.balance[1], quadratic=1)
        options = StreamOptions(**settings, batch_format="numpy")  # validates the settings
        passes = RowPasses(index, _reads_nothing, options, Topology(rank=0, world_size=ranks))
        return (passes.begin(epoch) if state is None else passes.resume(state)).plan()


def _reads_nothing(block: int, columns: Any) -> Any:
    raise AssertionError(f"a plan reads no block: {block}, {columns}")
