"""Draw figures of packed sequences: their content, fill and lengths, and what did not fit.

Reads a sample of bins.
"""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from headrace.arrays import F64, I64
from headrace.packing.chats.words import FATES, sentence_of
from headrace.packing.read.packed_rows import sequences_in
from headrace.report import charts, common
from headrace.report.bins import counted, edges_for, even_edges, thinned
from headrace.report.figure import Figure, Tone
from headrace.report.report_data import ReportData
from headrace.report.words import listed, percentage, pluralise

Mark = tuple[float, str] | None

_MOST_BLOCKS = 48  # row groups read per split, evenly spaced
_MOST_GROUPS = 24
_FATE_ROLES = {  # the colours of the page
    "trained": "trained",
    "context": "context",
    "removed": "dropped",
    "cut": "warning",
    "unread": "shared",
    "left_out": "empty",
}
_PARTS = {"trained": "in the loss", "context": "context", "empty": "empty room"}


def figures(report_data: ReportData) -> list[Figure]:
    """Draw all figures, in the order of the page."""
    return [
        contents_figure(report_data),
        *_role_figures(report_data),
        *_word_figures(report_data),
        fill_figure(report_data),
        *_length_figures(report_data),
        common.rows_figure(report_data),
        *_left_out_figures(report_data),
    ]


def contents_figure(report_data: ReportData) -> Figure:
    """Draw how much of the bins' capacity trains the model."""
    groups = report_data.manifest.metadata["groups"]
    splits = [
        split for split in report_data.splits if any(group["split"] == split for group in groups)
    ]
    parts: dict[str, list[float]] = {name: [] for name in _PARTS}
    for split in splits:
        in_split = [group for group in groups if group["split"] == split]
        tokens, labels = (sum(group[name] for group in in_split) for name in ("tokens", "labels"))
        room = sum(group["bins"] * group["metrics"]["capacity"] for group in in_split)
        for name, value in zip(
            _PARTS, (labels, tokens - labels, max(0, room - tokens)), strict=True
        ):
            parts[name].append(value)
    room = sum(map(sum, parts.values()))
    answer = (
        f"{percentage(sum(parts['trained']), room)} of the room in the bins are tokens in the"
        f" loss, {percentage(sum(parts['context']), room)} are context,"
        f" {percentage(sum(parts['empty']), room)} are empty or padding."
    )
    chart = charts.stacked_bars(splits, parts, unit="tokens", names=_PARTS)
    return Figure("contents", "How much of the room is in the loss?", answer, chart)


def _role_figures(report_data: ReportData) -> list[Figure]:
    """Draw how many messages of each role are in the loss; nothing if the rows are not
    conversations.
    """
    counts = report_data.manifest.metadata.get("messages")
    if not counts:
        return []
    roles = sorted(
        counts, key=lambda role: (-counts[role]["trained"], -sum(counts[role].values()), role)
    )
    trained = [role for role in roles if counts[role]["trained"]]
    phrases = [
        f"{counts[role]['trained']:,} of {pluralise(sum(counts[role].values()), f'{role} message')}"
        for role in trained
    ]
    answer = (
        f"In the loss: {listed(phrases, len(phrases)) or 'no message'}, with the tokens that end"
        " their turns."
    )
    others = []
    for role in roles:
        if role not in trained:
            others.append(pluralise(counts[role]["context"], f"{role} message"))
    if others:
        answer += f" Context: {listed(others, len(others))}."
    parts = {}
    for name in ("trained", "context"):
        parts[name] = [counts[role][name] for role in roles]
    chart = charts.stacked_bars(roles, parts, unit="messages", names=_PARTS, shares=False)
    return [Figure("roles", "Which roles are in the loss?", answer, chart)]


def _word_figures(report_data: ReportData) -> list[Figure]:
    """Draw where the characters of the source ended up, by kind of text."""
    account = report_data.manifest.metadata["words"]
    kinds = []
    fates_present: set[str] = set()
    for text_type, fates_of_type in account.items():
        if any(count for count, _ in fates_of_type.values()):
            kinds.append(text_type)
            fates_present |= fates_of_type.keys()
    if not kinds:
        return []
    fates = [fate for fate in FATES if fate in fates_present]
    parts = {}
    for fate in fates:
        counts = [account[text_type].get(fate, (0, 0))[0] for text_type in kinds]
        parts[_FATE_ROLES[fate]] = counts
    names = {_FATE_ROLES[fate]: fate.replace("_", " ") for fate in fates}
    chart = charts.stacked_bars(kinds, parts, unit="characters", names=names, shares=False)
    answer = f"{sentence_of(account).capitalize()}. They add up to every text of the source."
    return [Figure("words", "Where did the words of the source go?", answer, chart)]


def fill_figure(report_data: ReportData) -> Figure:
    """Draw how full the bins of each dataset in each split are."""
    groups = [group for group in report_data.manifest.metadata["groups"] if group["bins"]]
    question = "How full are the bins?"
    if not groups:
        return Figure("fill", question, "There are no bins.", None, "warning")
    fills = [100 * group["metrics"]["fill"] for group in groups]
    worst = min(range(len(groups)), key=fills.__getitem__)
    bins = sum(group["bins"] for group in groups)
    bound = sum(group["metrics"]["bound"] for group in groups)
    average = sum(fill * group["bins"] for fill, group in zip(fills, groups, strict=True)) / bins
    answer = (
        f"{average:.2f} % over {pluralise(bins, 'bin')}; no packing of the same sequences can do"
        f" with fewer than {bound:,}. Least full is {groups[worst]['split']} of"
        f" {groups[worst]['dataset']} with {fills[worst]:.2f} %."
    )
    if average >= 95:
        tone: Tone = "good"
    elif average < 80:
        tone = "warning"
    else:
        tone = "plain"
    if len(groups) > _MOST_GROUPS:
        edges = even_edges(min(fills), max(fills), integral=False)
        parts = {}
        for split in report_data.splits:
            parts[split] = counted(
                np.array(
                    [
                        fill
                        for fill, group in zip(fills, groups, strict=True)
                        if group["split"] == split
                    ],
                    np.float64,
                ),
                edges,
            )
        chart = charts.histogram(
            edges, parts, of="datasets", title="% of the room used", grows=False
        )
    else:
        several = len({group["dataset"] for group in groups}) > 1
        labels = []
        for group in groups:
            labels.append(f"{group['split']} {group['dataset']}" if several else group["split"])
        chart = charts.bars(
            labels,
            fills,
            [group["split"] for group in groups],
            unit="of the room",
            texts=[f"{fill:.2f} %" for fill in fills],
        )
    return Figure("fill", question, answer, chart, tone)


def _length_figures(report_data: ReportData) -> list[Figure]:
    """Draw the lengths of sequences, from the shards themselves; nothing without Parquet shards."""
    samples = {split: _sequence_lengths(report_data, split) for split in report_data.splits}
    lengths = {split: sample[0] for split, sample in samples.items() if sample is not None}
    if not lengths:
        return []
    every = np.concatenate(list(lengths.values()))
    bins = sum(sample[1] for sample in samples.values() if sample is not None)
    all_bins = sum(report_data.manifest.splits[split].rows for split in lengths)
    if bins == all_bins:
        sample_text = "all bins"
    else:
        sample_text = f"{bins:,} of {all_bins:,} bins, evenly taken"
    answer = (
        f"Median {np.median(every):,.0f} tokens, {np.percentile(every, 99):,.0f} at the 99th"
        f" percentile, {every.max():,.0f} at most ({sample_text})."
    )
    mark: Mark = None
    pack_size = int(report_data.config.get("pack_size") or 0)
    if pack_size:
        answer += (
            f" {percentage(int((every >= pack_size).sum()), len(every))} fill a bin of"
            f" {pack_size:,} alone."
        )
        mark = (float(pack_size), "pack_size")
    edges, grows = edges_for(every)
    counts = {split: counted(values, edges) for split, values in lengths.items()}
    chart = charts.histogram(
        edges, counts, of="sequences", title="tokens of a sequence", grows=grows, mark=mark
    )
    return [Figure("lengths", "How long are the sequences?", answer, chart)]


def _sequence_lengths(report_data: ReportData, split: str) -> tuple[F64, int] | None:
    """Read the lengths of the sequences in some bins of a split, and the number of these bins; None
    without Parquet.
    """
    blocks = report_data.blocks.filter(pc.equal(report_data.blocks["split"], split))
    if (
        report_data.manifest.splits[split].rows == 0
        or "parquet" not in blocks["format"].to_pylist()
    ):
        return None
    index = report_data.run.split_index(split)
    read = report_data.run.block_reader(split, verify="never")
    lengths: list[I64] = []
    bins = 0
    for block in thinned(np.arange(len(index.rows)), _MOST_BLOCKS).tolist():
        tokens_of_bins, _, lengths_of_block = sequences_in(
            read(block, ["seq_start_id", "loss_mask"])
        )
        bins += len(tokens_of_bins)
        lengths.append(lengths_of_block)
    return np.concatenate(lengths).astype(np.float64), bins


def _left_out_figures(report_data: ReportData) -> list[Figure]:
    """Draw tokens that were encoded and are in no bin, and sequences that were cut."""
    known = report_data.manifest.metadata
    lost = {reason: loss for reason, loss in known["lost"].items() if loss["tokens"]}
    cut = {name: count for name, count in known["too_long"].items() if count}
    encoded = int(known["encoded"]["encoded_tokens"])
    words = {
        "truncated": "cut at the end",
        "too_long_dropped": "left out",
        "divided": "divided into pieces",
    }
    cuts = ", ".join(f"{pluralise(count, 'sequence')} {words[name]}" for name, count in cut.items())
    long = "No sequence was longer than a bin."
    if cut:
        long = f"Sequences longer than a bin: {cuts}."
    question = "What is not in the bins?"
    if not lost:
        answer = f"Every encoded token is in a bin. {long}"
        return [Figure("left-out", question, answer, None, "warning" if cut else "good")]
    order = sorted(lost, key=lambda reason: (-lost[reason]["tokens"], reason))
    total = sum(loss["tokens"] for loss in lost.values())
    answer = (
        f"{percentage(total, encoded)} of {encoded:,} encoded tokens are in no bin, because: "
        f"{listed([report_data.reason_in_words(reason) for reason in order])}. {long}"
    )
    values = [lost[reason]["tokens"] for reason in order]
    texts = [f"{value:,} · {percentage(value, encoded)}" for value in values]
    roles = ["dropped"] * len(order)
    chart = None
    if len(order) > 1:
        chart = charts.bars(order, values, roles, unit="tokens", texts=texts)
    return [
        Figure("left-out", question, answer, chart, "warning" if total > encoded / 10 else "plain")
    ]
