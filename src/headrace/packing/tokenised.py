"""Tokenise the rows of a recipe over chats, and report what was read in the manifest and to the
user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from headrace.errors import (
    HeadraceError,
    InputError,
    MissingExtra,
    StoreError,
    setting,
    setting_name,
)
from headrace.machine import library_version
from headrace.near.stages import Near
from headrace.packing.blend import SPLITS, BlendDataset
from headrace.packing.chat_recipe import ChatRecipe
from headrace.packing.chats.certificate import PLACES, check_stops
from headrace.packing.chats.hub import record_of
from headrace.packing.chats.rejections import CURES
from headrace.packing.chats.tokenise import ChatEncoder
from headrace.packing.chats.words import (
    FAULTS,
    empty_in_words,
    summed_words,
    transcripts_in_words,
)
from headrace.packing.choose import Choice, choose
from headrace.packing.encode import NOT_BAD, EncodeTask, encode_tasks
from headrace.packing.sequences import Origins
from headrace.run.context import RunContext, TaskFiles, read_arrow
from headrace.run.events import Note
from headrace.run.receipts import Receipt
from headrace.stream.audit.exclude import read_excluded
from headrace.stream.audit.overlap import Benchmarks

# shares of all rows above which a note becomes a warning
_SEEN_SHARE = 0.001
_LARGE_UNIT = 0.01
_TRANSCRIPTS = 0.1  # of texts
_REMEDIES: dict[str, Callable[[], str]] = {
    "reasoning_removed": lambda: (
        f"give a template that writes it, leave it out with {setting('reasoning', 'drop')}, or"
        " allow a larger share"
    ),
    "unread_key": lambda: (
        f"name the key of the content with mapping, give a flag as weight, name the key in"
        f" {setting_name('unread')}, or allow a larger share"
    ),
    "unread_prompt": lambda: (
        f"put the prompt into the messages, read it with mapping, name the column in"
        f" {setting_name('unread')}, or allow a larger share"
    ),
}


@dataclass(frozen=True)
class Tokenised:
    """The rows of a run as tokens.

    receipts: receipts of the tasks. origins: origins of each dataset's sequences.
    """

    settings: ChatRecipe
    context: RunContext
    encoder: ChatEncoder
    datasets: Sequence[BlendDataset]
    tasks: Sequence[EncodeTask]
    receipts: Sequence[Receipt]
    benchmarks: Benchmarks | None
    origins: Sequence[Origins]

    @property
    def rows_read(self) -> int:
        """Count the rows of all files."""
        return sum(receipt.rows_in for receipt in self.receipts)

    @property
    def joined_origins(self) -> Origins:
        """Join the origins of all datasets end to end."""
        return Origins.joined(self.origins, [len(dataset.names) for dataset in self.datasets])

    def choice(self, *, least_tokens: int = 1, near: Near | None = None) -> Choice:
        """Choose a split for each sequence by the settings; see `choose`."""
        settings = self.settings
        return choose(
            self.datasets,
            self.origins,
            ratios=settings.ratios,
            keyed=settings.entity is not None,
            seed=settings.seed,
            duplicates=settings.duplicates_are,
            least_tokens=least_tokens,
            near=near,
        )

    def summed(self, *names: str) -> dict[str, int]:
        """Add up counts of the tasks."""
        return summed(self.receipts, *names)

    def dropped(self, choice: Choice) -> Counter[str]:
        """Count the rows that were left out before splits were chosen, by reason."""
        dropped: Counter[str] = Counter()
        for receipt in self.receipts:
            dropped.update(receipt.extra["dropped"])
        for reason, loss in choice.left_out.items():
            dropped[reason] += loss["rows"]
        return dropped

    def rejected(self) -> bytes:
        """Read the list of rows without a sequence, one row per line."""
        return b"".join(
            (self.context.run / task.file(".rejected.jsonl")).read_bytes() for task in self.tasks
        )

    def source_facts(self, files: Sequence[tuple[Path, str]]) -> dict[str, Any]:
        """Return the manifest's facts about the source: files, bytes, rows, and the files without a
        row.
        """
        holding = {name for receipt in self.receipts for name in receipt.extra["rows_of"]}
        return {
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": self.rows_read,
            "empty_shards": sorted(
                name for dataset in self.datasets for name in dataset.names if name not in holding
            ),
        }

    def metadata(self, choice: Choice, pad_id: int | None) -> dict[str, Any]:
        """Return the manifest's facts about the tokenizer, duplicates, benchmarks and splits."""
        settings = self.settings
        encoder = self.encoder
        libraries: tuple[str, ...] = ()
        if settings.tokenizer is not None:
            libraries = ("tokenizers", "jinja2")
        created_with: dict[str, Any] = {
            "fingerprint": encoder.fingerprint,
            "vocabulary": encoder.vocabulary,
            "pad_id": pad_id,
            "libraries": {name: library_version(name) for name in libraries},
        }
        if isinstance(settings.tokenizer, str):
            created_with["tokenizer"] = record_of(settings.tokenizer)
        messages: dict[str, dict[str, int]] = {}  # by role: trained, and only read
        for role, weight, count in sorted(
            chain.from_iterable(receipt.extra["messages"] for receipt in self.receipts)
        ):
            role_counts = messages.setdefault(role, {"trained": 0, "context": 0})
            role_counts["trained" if weight else "context"] += count
        excluded = [receipt.extra["excluded"] for receipt in self.receipts]
        return {
            "encoder": {**created_with, **self._backend_metadata()},
            "duplicates": choice.duplicates,
            **({"messages": messages} if messages else {}),
            "words": summed_words([receipt.extra["words"] for receipt in self.receipts]),
            **({"templates": self._template_metadata()} if messages else {}),
            **(
                {}
                if self.benchmarks is None
                else {"benchmarks": self.benchmarks.metadata(excluded)}
            ),
            "units": [{"of": what, **units} for what, units in choice.units],
        }

    def _template_metadata(self) -> dict[str, Any]:
        """Return what the templates do, and the ids of the tokens that end trained turns."""
        certificates = self.encoder.certificates
        counts = self.summed("chat_sequences", "read_sequences")
        stops = set()
        certain = bool(certificates) and counts["chat_sequences"] == counts["read_sequences"]
        for certificate in certificates.values():
            stops |= set() if certificate is None else {*certificate["stops"].values()}
            certain &= certificate is not None and not certificate["spaced"]
        ids = [self.encoder.tokenizer.token_to_id(stop) for stop in sorted(stops - {""})]
        return {
            "certificates": certificates,
            "ends": self.encoder.ends,
            "stop_ids": [number for number in ids if number is not None],
            # whether every trained turn must end with one of these
            "certain": certain and "" not in stops and None not in ids,
        }

    def _backend_metadata(self) -> dict[str, Any]:
        """Count how often a library that made the ids was compared with `tokenizers`, and warn if
        it ever differed.
        """
        name = self.encoder.backend
        if name is None:
            return {}
        counts = self.summed("backend_compared", "backend_different")
        if counts["backend_different"]:
            self.context.warn(
                [
                    f"{name} gave other ids than tokenizers in {counts['backend_different']} tasks;"
                    " tokenizers did them and all later ones; to be certain of the others, which"
                    " were compared in part, delete the run and give"
                    f" {setting('tokenizer_backend', 'tokenizers')}"
                ]
            )
        return {
            "backend": {
                "name": name,
                "compared": counts["backend_compared"],
                "different": counts["backend_different"],
            }
        }


def summed(receipts: Sequence[Receipt], *names: str) -> dict[str, int]:
    """Add up counts of receipts."""
    result = {}
    for name in names:
        result[name] = sum(receipt.extra[name] for receipt in receipts)
    return result


def check_conserved(counts: Iterable[tuple[str, int, int, int]]) -> None:
    """Raise `HeadraceError` unless each count is conserved.

    counts: name, before, retained, left out.
    """
    for name, before, retained, gone in counts:
        if before != retained + gone:
            raise HeadraceError(
                f"{name} are not conserved: {before:,} before, {retained:,} kept and {gone:,} left"
                " out; this is a bug in headrace, and nothing was published",
                remedy="report it with config.json of the run",
            )


def tokenise(
    settings: ChatRecipe,
    context: RunContext,
    encoder: ChatEncoder,
    work: Callable[..., dict[str, Any]],
    published: Sequence[str],
) -> Tokenised:
    """Tokenise all rows, task by task. work: encodes a task, given its files and `benchmarks`.

    published: names of links beside the runs that will be made. Raises `StoreError` if one is
    taken, `InputError` if too many rows are bad or none is left.
    """
    run = context.run
    for name in published:
        link = run.parents[1] / name
        if link.exists() and not link.is_symlink():
            raise StoreError(
                "is in the way of a link of that name",
                path=link,
                remedy=f"move it, or choose another {setting_name('out')}",
            )
    datasets = settings.blend.find_files()
    _certify(context, encoder)
    tasks = encode_tasks(settings, context, datasets)
    benchmarks = read_excluded(settings.exclude, settings.exclude_ngram)
    encode_task: Callable[[EncodeTask, TaskFiles], dict[str, Any]] = partial(
        work, benchmarks=benchmarks
    )
    receipts = context.stage("tokenise", [task.task(encode_task) for task in tasks], durable=False)
    _refuse_bad(settings, context, receipts)
    _refuse_lost(settings, receipts)
    _warn_of_transcripts(context, receipts)
    empty = summed(receipts, "empty_answers")["empty_answers"]
    if empty:
        context.warn([empty_in_words(empty)])
    origins = []
    for owner in range(len(datasets)):
        names = []
        for task in tasks:
            if task.owner == owner:
                names.append(task.file(".origins.arrow"))
        origins.append(Origins.joined([Origins.of_table(read_arrow(run / name)) for name in names]))
    return Tokenised(settings, context, encoder, datasets, tasks, receipts, benchmarks, origins)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Rows by reason, of all tasks. first: where the first row of each reason is."""

    read: int
    rows: Counter[str]
    first: dict[str, str]


def _counted(encoded: Sequence[Receipt], counts: str, first: str) -> _Counted:
    """Add up what the receipts count under these two names."""
    result = _Counted(sum(receipt.rows_in for receipt in encoded), Counter(), {})
    for receipt in encoded:
        result.rows.update(receipt.extra[counts])
        for reason, where in receipt.extra[first].items():
            result.first.setdefault(reason, where)
    return result


def _refuse_bad(settings: ChatRecipe, context: RunContext, encoded: Sequence[Receipt]) -> None:
    """Raise `InputError` if more rows are bad than `max_bad_share` allows, or if none is left."""
    dropped = _counted(encoded, "dropped", "first")
    read = dropped.read
    first = dropped.first
    counts = {reason: rows for reason, rows in dropped.rows.items() if reason not in NOT_BAD}
    bad = sum(counts.values())
    if bad > settings.max_bad_share * read:
        listed = "; ".join(
            f"{reason} {rows:,}, first {first[reason]}" for reason, rows in sorted(counts.items())
        )
        most = max(sorted(counts), key=counts.__getitem__)
        raise InputError(
            f"{bad:,} of {read:,} rows are bad, more than {setting_name('max_bad_share')}"
            f" {settings.max_bad_share:g}: {listed}; all are listed in"
            f" {context.run / 'stage'}/*.rejected.jsonl",
            value=settings.max_bad_share,
            remedy=f"{CURES.get(most, 'correct them')}, or allow a larger share",
        )
    if read and not any(receipt.extra["sequences"] for receipt in encoded):
        listed = "; ".join(
            f"{reason} {rows:,}" + (f", first {first[reason]}" if reason in first else "")
            for reason, rows in sorted(dropped.rows.items())
            if rows
        )
        raise InputError(
            f"no row of {read:,} gives a sequence to pack: {listed}",
            remedy="correct the data or the settings",
        )


def _refuse_lost(settings: ChatRecipe, encoded: Sequence[Receipt]) -> None:
    """Raise `InputError` if more rows lose words than `max_lost_share` allows."""
    faults = _counted(encoded, "faults", "first_fault")
    for fault, rows in sorted(faults.rows.items()):
        if rows > settings.max_lost_share * faults.read:
            raise InputError(
                f"{rows:,} of {faults.read:,} rows lose words, more than"
                f" {setting_name('max_lost_share')} {settings.max_lost_share:g}: {FAULTS[fault]};"
                f" the first is {faults.first[fault]}",
                setting="max_lost_share",
                value=settings.max_lost_share,
                remedy=_REMEDIES[fault](),
            )


def _warn_of_transcripts(context: RunContext, encoded: Sequence[Receipt]) -> None:
    """Warn about chats in plain texts, whose questions are trained too."""
    counts = summed(encoded, "transcripts", "chat_sequences", "read_sequences")
    texts = counts["read_sequences"] - counts["chat_sequences"]
    if counts["transcripts"] > _TRANSCRIPTS * texts:
        context.warn([transcripts_in_words(counts["transcripts"], texts)])


def _certify(context: RunContext, encoder: ChatEncoder) -> None:
    """Warn about turns that end with no token that a model could stop with."""
    with suppress(MissingExtra):  # rows without a template may not need the library
        for name, certificate in encoder.certificates.items():
            if certificate is None:
                continue
            check = check_stops(certificate, encoder.ends)
            positions = ", ".join(PLACES[position] for position in check.missing)
            if not check.trained:
                context.warn(
                    [
                        f"template {name} ends no turn with a special token: no stop in the loss;"
                        f" {setting_name('chat_template')} may give one that writes a token"
                    ]
                )
            elif positions:
                context.warn(
                    [
                        f"template {name} ends turns with no special token {positions}: no stop is"
                        f" trained there; {setting_name('chat_template')} may give one that writes"
                        " a token"
                    ]
                )


def report_splits(settings: ChatRecipe, context: RunContext, choice: Choice) -> None:
    """Report how rows were split and how many repeat, and warn about results that a user is
    unlikely to want.
    """
    for what, units in choice.units:
        listed = ", ".join(f"{split} {units[split]:,}" for split in settings.requested_splits)
        context.on_event(Note("info", f"{what}: {listed} {'keys' if what == 'keys' else 'rows'}"))
    for split in settings.requested_splits:
        if not any((side == SPLITS.index(split)).any() for side in choice.splits):
            context.warn([f"{split} is empty: no row is left for it; see the dropped rows"])
    if choice.duplicates is not None:
        _report_duplicates(settings, context, choice.duplicates)


def _report_duplicates(
    settings: ChatRecipe, context: RunContext, duplicates: Mapping[str, int]
) -> None:
    """Report how many rows repeat others, and warn where a setting may not fit them."""
    again = duplicates["same_content"]
    rows = duplicates["rows"]
    seen = duplicates["seen_in_earlier_splits"]
    largest = duplicates["largest"]
    near = duplicates.get("near_pairs")
    not_compared = duplicates.get("near_not_compared")
    if again:
        context.on_event(Note("info", f"{again:,} of {rows:,} rows ask what an earlier row asks"))
    if near:
        context.on_event(Note("info", f"{near:,} pairs of sequences are near"))
    if not_compared:
        most = f"at most {not_compared:,} pairs of sequences were not compared"
        context.warn([f"near: {most}: they look like too many others"])
    if seen > _SEEN_SHARE * rows and settings.duplicates_are == "count":
        what = f"{seen:,} rows of valid and test ask, or say, what rows of train or valid do"
        context.warn([f"{what}; choose {setting('duplicates', 'group')} to keep them apart"])
    elif largest > max(100, _LARGE_UNIT * rows):
        what = f"{largest:,} of {rows:,} rows are joined by what they ask, and are in one split"
        cure = f"name the columns that tell them apart with {setting('content')}"
        context.warn([f"{what}; {cure}, or choose {setting('duplicates', 'allow')}"])
