"""Check the laws of packed sequences again from the output alone.

For every bin: equal lengths of tokens and mask; starts that begin with 0, rise strictly and stay
inside; a mask of 0 and 1, with 0 on the last position of every sequence; ids inside the vocabulary;
at most the pack size; the padding multiple; the limit of sequences; a label to train on. For every
dataset in every split: bins, tokens, labels and the fingerprint of its set of sequences, which was
taken of the input before packing. So every sequence is there, once, unchanged. For the tree: links
lead to the split's shards, each shard in one split. For a tokenizer that was given by name: its
files, if this machine's cache of the hub holds them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I32, I64, U64, concatenated, distinct
from headrace.bins.rows import PackedRows, first_fault
from headrace.dataset.manifest import CONFIG, read_config
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import sha256_file
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard, MissingExtra
from headrace.gate.json import interpreting
from headrace.near.stages import find_near
from headrace.packing.blend import SPLITS
from headrace.packing.chats.hub import cached_directory, digests_in
from headrace.packing.config import PackedSequences
from headrace.packing.near import of_shard, read_bins_of
from headrace.packing.sequences import sequence_prints
from headrace.packing.shards import BLEND, Linked, blend_json, links_of, split_directory
from headrace.run.context import RunContext
from headrace.storage.places import place_of


@dataclass
class SeenStops:
    """Trained turns of one shard."""

    turns: int = 0
    other_ends: int = 0  # those that end with no stop of the template
    first_other: str = ""

    def add(self, ids: I32, stops: Sequence[int], where: Callable[[int], str]) -> None:
        """Count turns that end with these ids. where: describes the position of the n-th."""
        others = np.flatnonzero(~np.isin(ids, stops))
        self.turns += len(ids)
        self.other_ends += len(others)
        if len(others) and not self.first_other:
            first = int(others[0])
            self.first_other = f"{where(first)}, token {ids[first]}"


@dataclass
class _SeenBins(SeenStops):
    """Results of reading one shard. prints: the sum of the fingerprints of its sequences."""

    bins: int = 0
    sequences: int = 0
    tokens: int = 0
    labels: int = 0
    prints: int = 0
    compared: U64 = field(
        default_factory=lambda: np.empty(0, np.uint64)
    )  # fingerprints of sequences long enough to compare
    problem: str | None = None


def verify_packed(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Read every shard once and check the laws above. O(row group) of memory per worker."""
    config = read_config(run.root, run.manifest)
    # No law depends on the packer, which may be gone from newer versions; the tokenizer need not be
    # on this machine.
    for name in ("recipe", "algorithm", "tokenizer", "chat_template"):
        config.pop(name, None)
    with interpreting(run.root / CONFIG):
        settings = PackedSequences(**config)
    groups = run.manifest.metadata["groups"]
    names = [name for group in groups for name in group["shards"]]
    looks = [partial(_look_at, run, settings, name) for name in names]
    workers = workers or default_workers()
    packed = _Packed(
        run, settings, groups, dict(zip(names, run_tasks(looks, workers), strict=True))
    )
    return [
        packed.check_bins(),
        packed.check_sequences(),
        *packed.check_stops(),
        packed.check_splits(),
        packed.check_content(),
        *packed.check_near(workers),
        packed.check_links(),
        check_files(run),
        _tokens_check(run),
        *check_tokenizer(run),
    ]


@dataclass(frozen=True)
class _Packed:
    """A run, the datasets of its splits, and the results of its shards."""

    run: FinishedRun
    settings: PackedSequences
    groups: Sequence[Mapping[str, Any]]
    seen: Mapping[str, _SeenBins]

    def shards(self, group: Mapping[str, Any]) -> list[_SeenBins]:
        return [self.seen[name] for name in group["shards"]]

    def check_bins(self) -> Check:
        every = self.seen.values()
        bins = sum(shard.bins for shard in every)
        tokens = sum(shard.tokens for shard in every)
        size = self.settings.pack_size
        check = partial(
            Check,
            "bins",
            f"{bins:,} bins of up to {size:,}, {tokens:,} tokens; starts, masks and ids are right",
        )
        for shard in every:
            if shard.problem is not None:
                return check(shard.problem)
        for group in self.groups:
            counted = sum(shard.bins for shard in self.shards(group))
            if counted != group["bins"]:
                where = f"{group['split']}/{group['dataset']}"
                return check(f"{where}: {counted:,} bins, the manifest says {group['bins']:,}")
        return check()

    def check_sequences(self) -> Check:
        every = sum(shard.sequences for shard in self.seen.values())
        check = partial(
            Check,
            "every sequence once",
            f"{every:,} sequences are those that were packed, each once",
        )
        for group in self.groups:
            shards = self.shards(group)
            if any(shard.problem for shard in shards):
                return check("not compared: a shard could not be read as bins")
            where = f"{self.run.root}: {group['dataset']} in {group['split']}"
            count = sum(shard.sequences for shard in shards)
            total = sum(shard.prints for shard in shards) % (1 << 64)
            if f"{count}:{total:016x}" != group["print"]:
                packed = group["print"].partition(":")[0]
                return check(
                    f"{where}: {count:,} sequences are not the {packed} that were packed, with"
                    " their tokens and labels"
                )
            labels = sum(shard.labels for shard in shards)
            if self.settings.loss_mask_alignment == "shift_left" and labels != group["labels"]:
                return check(f"{where}: {labels:,} labels, {group['labels']:,} were packed")
        return check()

    def check_stops(self) -> list[Check]:
        """Compare the ends of trained turns with the certificate of the template."""
        if self.settings.loss_mask_alignment != "shift_left":
            return []
        return check_stops(self.run, list(self.seen.values()))

    def check_splits(self) -> Check:
        owner: dict[str, str] = {}
        for group in self.groups:
            for name in group["shards"]:
                if owner.setdefault(name, group["split"]) != group["split"]:
                    return Check(
                        "splits apart", "", f"{name}: is in {owner[name]} and in {group['split']}"
                    )
        return Check("splits apart", f"each of {len(owner):,} shards is in one split")

    def check_content(self) -> Check:
        """Compare the sequences of each split with those of the others, token for token and label
        for label.
        """
        prints: dict[str, list[U64]] = {split: [] for split in SPLITS}
        for group in self.groups:
            prints[group["split"]] += (shard.compared for shard in self.shards(group))
        which = "sequences"
        if self.settings.too_long == "split":
            which = "sequences of a whole bin"
        claim = f"no sequence of a split is in another ({which} compared)"
        return check_content(prints, which, claim, self.settings.duplicates_are)

    def check_near(self, workers: int) -> list[Check]:
        """Look for near sequences in different splits, if the settings ask for it."""
        near = self.settings.near
        if near is None:
            return []
        check = partial(Check, "near content apart")
        claim = (
            f"no sequence of a split has a Jaccard index of {near:g} or more with one of another"
        )
        if any(shard.problem for shard in self.seen.values()):
            return [check(claim, "not compared: a shard could not be read as bins")]
        across = self._near_pairs_across(near, workers)
        message = claim
        if across:
            message = (
                f"{across:,} pairs of sequences in different splits have one of {near:g} or more"
            )
        if self.settings.duplicates_are not in ("group", "drop"):
            return [check(f"not asked for: {message}", category="count")]
        # the run records that these were not compared
        unseen = self.run.manifest.metadata["duplicates"]["near_not_compared"]
        return [check(message, message if across > unseen else None)]

    def _near_pairs_across(self, near: float, workers: int) -> int:
        """Count the pairs of near sequences that are in different splits."""
        blank = None
        if self.settings.pad_multiple > 1:
            blank = self.run.manifest.metadata["encoder"]["pad_id"]
        documents = []
        splits: list[int] = []
        sizes: list[int] = []
        for group in self.groups:
            for name in group["shards"]:
                documents.append(of_shard(self.settings, self.run.root / name, blank))
                splits.append(SPLITS.index(group["split"]))
                sizes.append(self.seen[name].sequences)
        side = np.repeat(splits, sizes)
        with TemporaryDirectory(prefix="headrace-near-") as folder:
            context = RunContext(Path(folder), workers, lambda _: None)
            pairs = find_near(context, documents, near)
        return int((side[pairs.first] != side[pairs.second]).sum())

    def check_links(self) -> Check:
        run = self.run
        links = [
            Linked(group["split"], group["dataset"], name, self.seen[name].tokens)
            for group in self.groups
            for name in group["shards"]
        ]
        splits = [split for split in SPLITS if split in run.manifest.splits]
        expected: dict[str, str] = {}
        actual: dict[str, str] = {}
        check = partial(Check, "links", "blend.json names the shards; an object store has no links")
        if place_of(run.root).has_links:
            expected = links_of(links)
            check = partial(
                Check,
                "links",
                f"{len(expected):,} links lead to their shards; blend.json names them",
            )
            for directory in (run.root / split_directory(split) for split in splits):
                if not directory.is_dir():
                    return check(f"{directory}: is missing")
                for link in sorted(directory.iterdir()):
                    name = link.relative_to(run.root).as_posix()
                    if link.is_symlink():
                        actual[name] = os.readlink(link)
                    else:
                        actual[name] = "a file"
                    if not link.exists():
                        return check(f"{link}: leads nowhere ({actual[name]})")
        if actual != expected:
            wrong = sorted(set(actual.items()) ^ set(expected.items()))[0]
            return check(
                f"{run.root / wrong[0]}: {wrong[1]} is not the link of this run, or is missing"
            )
        blend = run.root / BLEND
        if not blend.is_file() or blend.read_bytes() != blend_json(
            run.manifest.run_id, splits, links
        ):
            return check(f"{blend}: is not the blend of these shards")
        return check()


def check_stops(run: FinishedRun, shards: Sequence[SeenStops]) -> list[Check]:
    """Compare the ends of trained turns with the certificate of the template."""
    templates = run.manifest.metadata.get("templates")
    if templates is None:
        return []
    if not templates["certain"]:
        message = "not compared: the template has turns without one, or not all rows are chats"
        return [Check("stops", message, category="count")]
    turns = others = 0
    first = ""
    for shard in shards:
        turns += shard.turns
        others += shard.other_ends
        first = first or shard.first_other
    problem = None
    if others:
        problem = f"{others:,} of {turns:,} trained turns end with no stop; the first: {first}"
    return [Check("stops", f"{turns:,} trained turns end with a stop of the template", problem)]


def check_content(
    prints: Mapping[str, Sequence[U64]], which: str, claim: str, duplicates: str
) -> Check:
    """Compare the fingerprints of each split with those of the others.

    duplicates: whether they must be apart.
    """
    unique_prints = {}
    for split, arrays in prints.items():
        unique_prints[split] = distinct(concatenated(arrays, np.uint64))
    again = []
    for early, late in combinations(unique_prints, 2):
        common = np.intersect1d(unique_prints[late], unique_prints[early], assume_unique=True)
        if len(common):
            again.append(f"{len(common):,} {which} are in {late} and {early}")
    listed = "; ".join(again)
    if duplicates in ("group", "drop"):
        return Check("content apart", claim, listed or None)
    return Check("content apart", f"not asked for: {listed or claim}", category="count")


def check_files(run: FinishedRun) -> Check:
    """Compare the files beside the shards with the digests that were published."""
    files = run.manifest.metadata["files"]
    for name, digest in files.items():
        path = run.root / name
        if not path.is_file() or sha256_file(path) != digest:
            return Check(
                "files beside", "", f"{path}: is missing, or not the file that was published"
            )
    return Check("files beside", f"{', '.join(files)} are as they were published")


def _tokens_check(run: FinishedRun) -> Check:
    metadata = run.manifest.metadata
    for name in ("labels", "tokens"):
        before = metadata["encoded"][f"encoded_{name}"]
        packed = metadata["packed"][name]
        gone = sum(loss[name] for loss in metadata["lost"].values())
        # A run that repeats nothing does not list it.
        more = sum(repeats[name] for repeats in metadata.get("repeated", {}).values())
        if before + more != packed + gone:
            what = (
                f"{before:,} {name} and {more:,} repeated, {packed:,} packed and {gone:,} left out"
            )
            return Check("tokens conserved", what, f"{run.root}: {what}; they do not add up")
    again = ""
    if more:
        again = f" + {more:,} repeated"
    return Check(
        "tokens conserved", f"{before:,} tokens{again} = {packed:,} in bins + {gone:,} left out"
    )


def check_tokenizer(run: FinishedRun) -> list[Check]:
    """Compare the files of a tokenizer that was given by name, if this machine has them."""
    created_with = run.manifest.metadata["encoder"].get("tokenizer")
    if created_with is None:
        return []
    name = f"{created_with['repository']}@{created_with['commit']}"
    check = partial(Check, "tokenizer", category="here")
    try:
        directory = cached_directory(name)
    except MissingExtra as error:
        return [check(f"{name}: not compared, {error}")]
    if directory is None:
        return [check(f"{name}: not compared, it is not in the hub's cache on this machine")]
    recorded = created_with["files"]
    for file, digest in digests_in(directory).items():
        if digest != recorded.get(file, digest):
            path = directory / file
            return [
                check(
                    name,
                    f"{path}: is not the file that the run was made with; fetch {name} again",
                )
            ]
    return [check(f"{name}: the files in the hub's cache are those that the run was made with")]


def _look_at(run: FinishedRun, settings: PackedSequences, name: str) -> _SeenBins:
    path = run.root / name
    seen = _SeenBins()
    encoder = run.manifest.metadata["encoder"]
    aligned = settings.loss_mask_alignment == "shift_left"
    blank = None
    if settings.pad_multiple > 1:
        blank = encoder["pad_id"]
    try:
        with place_of(path).local_copy() as file:
            try:
                for rows in read_bins_of(file, settings.packed_storage):
                    problem = first_fault(rows) or next(_problems(rows, settings, encoder), None)
                    if problem is not None:
                        return _SeenBins(
                            problem=f"{path}: bin {seen.bins + problem[0]}: {problem[1]}"
                        )
                    _look_at_stops(run, settings, rows, seen, path)
                    seen.bins += len(rows)
                    seen.sequences += len(rows.starts)
                    seen.tokens += len(rows.ids)
                    seen.labels += int(np.sum(rows.mask, dtype=np.int64))
                    prints = sequence_prints(
                        rows.ids, rows.mask if aligned else None, rows.sequence_lengths, blank
                    )
                    long = rows.sequence_lengths >= settings.least_compared
                    seen.compared = np.concatenate([seen.compared, prints[long]])
                    seen.prints += int(prints.sum(dtype=np.uint64))
            except CorruptShard as error:
                return _SeenBins(problem=str(error).replace(str(file), str(path)))
    except FileNotFoundError:
        return _SeenBins(problem=f"{path}: is missing")
    return seen


def _look_at_stops(
    run: FinishedRun, settings: PackedSequences, rows: PackedRows, seen: _SeenBins, path: Path
) -> None:
    """Count the trained turns of bins, and those that end with no stop of the template."""
    templates = run.manifest.metadata.get("templates")
    if templates is None or not templates["certain"] or not len(rows.ids):
        return
    following = np.append(rows.mask[1:], 0)
    ends = np.flatnonzero((rows.mask == 1) & (following == 0)) + 1
    ends = ends[ends < len(rows.ids)]
    last = rows.sequence_starts + rows.sequence_lengths - 1
    # a sequence that was cut ends in the middle of a turn
    cut = last[rows.sequence_lengths >= settings.longest]
    ends = np.setdiff1d(ends, cut, assume_unique=True)

    def where(number: int) -> str:
        bin_number = int(np.searchsorted(rows.token_offsets, ends[number], "right")) - 1
        return f"{path}: bin {seen.bins + bin_number}"

    seen.add(rows.ids[ends], templates["stop_ids"], where)


def _problems(
    rows: PackedRows, settings: PackedSequences, encoder: Mapping[str, Any]
) -> Iterator[tuple[int, str]]:
    """Yield (bin, what is wrong with it), the worst first.

    Each check runs only if those before found nothing.
    """
    if not len(rows):
        return
    sizes = np.diff(rows.token_offsets)
    counts = np.diff(rows.start_offsets)
    every = np.arange(len(rows))
    owner = np.repeat(every, counts)
    lengths = rows.sequence_lengths
    extra = 0
    if settings.capacity == "runtime":
        extra = 1
    if extra:
        used = np.bincount(owner, np.maximum(lengths - 1, 1)).astype(np.int64)
    else:
        used = sizes
    size = settings.pack_size
    most = settings.max_sequences_per_bin
    multiple = settings.pad_multiple
    yield from _first(
        used > size, every, lambda at: f"takes {used[at]:,}, more than pack_size {size:,}"
    )
    if most is not None:
        yield from _first(
            counts > most, every, lambda at: f"has {counts[at]} sequences, more than {most}"
        )
    yield from _first(
        (lengths - extra) % multiple != 0,
        owner,
        lambda at: (
            f"a sequence has {lengths[at]} tokens, which pad_multiple {multiple} does not give"
        ),
    )

    bin_of_token = np.repeat(every, sizes)
    yield from _first(rows.mask > 1, bin_of_token, lambda at: f"loss_mask holds {rows.mask[at]}")
    unknown = rows.ids < 0
    if encoder["vocabulary"] is not None:
        unknown |= rows.ids >= encoder["vocabulary"]
    yield from _first(
        unknown, bin_of_token, lambda at: f"token id {rows.ids[at]} is not in the vocabulary"
    )
    if settings.loss_mask_alignment == "shift_left":
        ends = rows.sequence_starts + lengths - 1
        yield from _first(
            rows.mask[ends] != 0, owner, lambda _: "the last position of a sequence has a label"
        )
        if settings.empty_bins == "drop":
            labels = np.add.reduceat(rows.mask, rows.token_offsets[:-1], dtype=np.int64)
            yield from _first(labels == 0, every, lambda _: "has no token in the loss")


def _first(
    wrong: npt.NDArray[np.bool_], owner: I64, say: Callable[[int], str]
) -> Iterator[tuple[int, str]]:
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        yield int(owner[at]), say(at)
