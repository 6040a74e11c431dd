"""Write a configuration for preferences, judged answers or prompts, from the columns of a sample of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from headrace.arrays import I64
from headrace.cli.init.asked import AskedPreferences
from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.errors import SettingsError
from headrace.packing import init as pack
from headrace.packing.chats.layouts import NAMES
from headrace.packing.chats.reader import BrokenRow, Row
from headrace.packing.chats.settings import RowForm
from headrace.packing.chats.tokenise import ChatEncoder
from headrace.packing.chats.words import RowRejected, shown
from headrace.packing.preferences.encode import FORMS
from headrace.packing.preferences.layouts import LABELS, Question, question_of
from headrace.packing.preferences.settings import ANSWERS, Kind, Preferences

_BETTER_AND_WORSE = (
    ("chosen", "rejected"),
    ("preferred", "dispreferred"),
    ("accepted", "rejected"),
    ("better", "worse"),
    ("winner", "loser"),
)
_MEANING = {
    "pairs": "a chosen and a rejected answer (DPO, ORPO, reward models)",
    "judged": "one answer that was liked or not (KTO)",
    "prompts": "prompts that the model answers itself (GRPO, PPO)",
}
_FOUND = "detected from the columns; change it here or with --kind of init"


def preference_sections(asked: AskedPreferences) -> tuple[list[Section], str]:
    """Write the sections of the configuration, and a line about the data. Raises `SettingsError`, `InputError`."""
    listing, dataset = pack.dataset_of(asked.source)
    given = pack.pinned(asked.tokenizer)
    sampled = pack.read_some(listing)
    kind, mapping = _kind_and_mapping(sampled.rows, asked.kind, listing.names[0])
    form = RowForm(mapping=mapping)
    questions = [_question(row, form, kind) for row in sampled.rows]
    rejected = {index: each.reason for index, each in enumerate(questions) if isinstance(each, RowRejected)}
    lengths, how = _lengths([each for each in questions if isinstance(each, Question)], given)
    about = f"{pack.sampled_words(listing, sampled)}: {kind}{f', mapping {mapping}' if mapping else ''}"
    blend, why = pack.split_by_names(listing, sampled, dataset | ({"mapping": mapping} if mapping else {}))
    sections = [
        Section(
            f"Written by `headrace init preferences` after a look at the data: {about}.\n"
            "Paths are relative to where the command is run. Every setting is explained in docs/preferences.md.",
            {"recipe": "preferences", "out": asked.out},
        ),
        Section(f"Rows have {_MEANING[kind]}, {'as asked' if asked.kind else _FOUND}.", {"kind": kind}),
        Section(
            f"What is read{', mapping says from which columns' if mapping else ''}. {why}".strip(), {"blend": blend}
        ),
        pack.tokenizer_section(given),
        Section(
            f"Rows with more tokens than max_tokens are left out and counted. Lengths of prompt and answer ({how}): "
            f"half up to {int(np.median(lengths)):,}, 99 % up to {int(np.quantile(lengths, 0.99)):,}, longest "
            f"{int(lengths.max()):,}.",
            {"max_tokens": Aside(1 << int(lengths.max() - 1).bit_length())},
        ),
        *pack.bad_rows_section(sampled, Counter(rejected.values()), sampled.wheres[min(rejected)] if rejected else ""),
        *_columns_section(sampled.columns, mapping, kind),
        pack.shares_section(sampled, blend, "samples and mixes"),
        pack.ENTITY,
    ]
    proposed = {name: value for name, value in settings_of(sections).items() if name not in ("recipe", "out")}
    Preferences(**{"tokenizer": ".", **proposed})  # raises what the run would raise; the tokenizer is still to be given
    return sections, about


def _columns_section(columns: Sequence[str], mapping: Mapping[str, str], kind: Kind) -> list[Section]:
    """Propose to pass through the columns that nothing reads; rows of prompts pass through all columns anyway."""
    read = {*NAMES, *LABELS, *mapping.values(), "conversations", "messages"}
    others = [name for name in columns if name not in read]
    if kind == "prompts" or not others:
        return []
    return [
        Section(
            "Columns that are not read; list them in columns to copy them to the output.", {"columns": Aside(others)}
        )
    ]


def _lengths(questions: Sequence[Question], tokenizer: str | None) -> tuple[I64, str]:
    """Count the tokens of prompts with each answer, and say how. Raises `SettingsError` if no row becomes tokens."""
    rows = [row for question in questions for row in question.rows()]
    if tokenizer is None:
        texts = [str(row["prompt"]) + str(row["completion"]) for row in rows]
        sizes = np.array([max(2, len(text) // pack.CHARACTERS_A_TOKEN) for text in texts], np.int64)
        return sizes, f"estimated, {pack.CHARACTERS_A_TOKEN} characters a token"
    settings = Preferences(blend={"datasets": [{"name": "sample", "path": "."}]}, tokenizer=tokenizer)
    encoded = ChatEncoder(settings).encode(rows, FORMS[False])
    if not len(encoded.lengths):
        worst = encoded.rejected[0]
        raise SettingsError(
            f"no row looked at becomes tokens, the first: {worst.reason}: {worst.detail}; give another --tokenizer, or "
            "fix the data"
        )
    return encoded.lengths, "counted with this tokenizer"


def _question(row: Row, form: RowForm, kind: Kind) -> Question | RowRejected:
    try:
        if isinstance(row, BrokenRow):
            raise RowRejected(row.reason, row.detail)
        return question_of(row, form, kind)
    except RowRejected as wrong:
        return wrong


def _kind_and_mapping(rows: Sequence[Row], asked: Kind | None, file: str) -> tuple[Kind, dict[str, str]]:
    """Return the first kind, and proposal for its columns, that reads most rows. Raises `SettingsError`."""
    objects = [row for row in rows if isinstance(row, Mapping)]
    if not objects:
        broken = next(row for row in rows if isinstance(row, BrokenRow))
        raise SettingsError(f"{file}: no row is a JSON object, the first: {broken.detail}; give rows with prompts")
    first = objects[0]
    for kind in [asked] if asked is not None else get_args(Kind):
        for mapping in _proposals(first, kind):
            form = RowForm(mapping=mapping)
            read = sum(isinstance(_question(row, form, kind), Question) for row in objects)
            if 2 * read > len(objects):
                return kind, mapping
    wrong = _question(first, RowForm(), asked or "pairs")
    reason = f"; as they are, the first row is {wrong.reason}: {wrong.detail}" if isinstance(wrong, RowRejected) else ""
    raise SettingsError(
        f"{file}: no columns are known to hold {asked or 'pairs, judged answers or prompts'}, there are "
        f'{shown(list(first))}{reason}; write a blend file with "mapping", e.g. '
        '{"prompt": "task", "chosen": "better", "rejected": "worse"}, or with "layout": "raw_completion" if the texts '
        "have their roles written into them"
    )


def _proposals(row: Mapping[str, Any], kind: Kind) -> Iterator[dict[str, str]]:
    """Yield mappings of columns, those that rename fewest first."""
    names = {name.lower(): name for name in row}
    answers: list[dict[str, str]] = [{}]
    if kind == "pairs":
        pairs = [
            (better, name.replace(worse, better), name)
            for better, worse in _BETTER_AND_WORSE
            for name in names
            if worse in name
        ]
        answers += [
            dict(zip(ANSWERS[kind], (names[good], names[bad]), strict=True)) for _, good, bad in pairs if good in names
        ]
    elif kind == "judged":
        labels: list[dict[str, str]] = [
            {},
            *({"label": name} for name, value in row.items() if isinstance(value, bool)),
        ]
        told = [{}, *({"completion": names[each]} for each in (*pack.ASSISTANTS, *pack.MODELS) if each in names)]
        answers = [label | answer for label in labels for answer in told]
    prompts = [{}, *({"prompt": names[each]} for each in pack.USERS if each in names)]
    for answer in answers:
        for prompt in prompts:
            yield {name: column for name, column in (prompt | answer).items() if name != column}
