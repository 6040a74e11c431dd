"""Write a configuration for preferences, from names of files and columns and a sample of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np

from headrace.cli.init.commented import Aside, Section, proposed_settings
from headrace.cli.init.look import Data
from headrace.cli.init.options import InitPreferencesOptions
from headrace.errors import SettingsError
from headrace.packing.chats.layouts import NAMES
from headrace.packing.chats.rejections import RowRejected, preview
from headrace.packing.chats.settings import ChatForm, ChatSettings
from headrace.packing.chats.tokenise import ChatEncoder
from headrace.packing.init import (
    ASSISTANTS,
    CHARACTERS_A_TOKEN,
    ENTITY,
    MODELS,
    USERS,
    Sampled,
    bad_rows_section,
    dataset_of,
    encoded_sample,
    first_section,
    is_prose,
    pinned,
    read_or_reason,
    read_some,
    reads_most,
    sampled_words,
    shares_section,
    split_by_names,
    tokenizer_section,
    why_no_object,
)
from headrace.packing.preferences.encode import FORMS
from headrace.packing.preferences.layouts import LABELS, Question, question_of
from headrace.packing.preferences.settings import Kind, Preferences

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


def preference_sections(options: InitPreferencesOptions, data: Data) -> tuple[list[Section], str]:
    """Write the sections of the configuration, and a line about the data.

    Raises `SettingsError`, `InputError`.
    """
    listing, dataset = dataset_of(data)
    tokenizer = pinned(options.tokenizer)
    sampled = data.once(read_some)
    row_type, mapping = _kind_and_mapping(sampled, options.kind, listing.names[0])
    rejected = {}
    rows: list[dict[str, Any]] = []
    for index, row in enumerate(sampled.rows):
        question = read_or_reason(_reader(mapping, row_type), row)
        if isinstance(question, RowRejected):
            rejected[index] = question.reason
        else:
            rows += question.rows()
    about = f"{sampled_words(listing, sampled)}: {row_type}"
    if mapping:
        about += f", mapping {mapping}"
        dataset |= {"mapping": mapping}
    blend, why = split_by_names(listing, sampled, dataset)
    sections = [
        first_section(
            "preferences", about, {"recipe": "preferences", "out": options.out}, "preferences.md"
        ),
        Section(
            f"Rows have {_MEANING[row_type]}, {'as asked' if options.kind else _FOUND}.",
            {"kind": row_type},
        ),
        Section(
            f"What is read{', mapping says from which columns' if mapping else ''}. {why}".strip(),
            {"blend": blend},
        ),
        *([data.unusual] if data.unusual.settings else []),
        tokenizer_section(tokenizer),
        _lengths_section(rows, tokenizer, listing.names[0]),
        *bad_rows_section(sampled, rejected),
        *_unread_section(sampled, row_type, mapping),
        shares_section(sampled, blend, "samples and mixes"),
        ENTITY,
    ]
    # raises what the run would raise; the tokenizer is still to be given
    Preferences(**{"tokenizer": ".", **proposed_settings(sections)})
    return sections, about


def _lengths_section(
    rows: Sequence[Mapping[str, Any]], tokenizer: str | None, file: str
) -> Section:
    """Propose `max_tokens` after the lengths of rendered rows, counted or estimated."""
    if tokenizer is not None:
        encoder = ChatEncoder(ChatSettings(tokenizer=tokenizer))
        lengths = encoded_sample(rows, FORMS[False], encoder, file).lengths
        how = "counted with this tokenizer"
    else:
        texts = [str(row["prompt"]) + str(row["completion"]) for row in rows]
        lengths = np.array([max(2, len(text) // CHARACTERS_A_TOKEN) for text in texts], np.int64)
        how = f"estimated, {CHARACTERS_A_TOKEN} characters a token"
    return Section(
        "Rows with more tokens than max_tokens are left out and counted. Lengths of prompt and"
        f" answer ({how}): half up to {int(np.median(lengths)):,}, 99 % up to"
        f" {int(np.quantile(lengths, 0.99)):,}, longest {int(lengths.max()):,}.",
        {"max_tokens": Aside(1 << int(lengths.max() - 1).bit_length())},
    )


def _unread_section(sampled: Sampled, row_type: Kind, mapping: Mapping[str, str]) -> list[Section]:
    """List the columns that are not read, unless rows of prompts pass them through anyway."""
    read = {*NAMES, *LABELS, *mapping.values(), "conversations", "messages"}
    others = [name for name in sampled.columns if name not in read]
    if row_type == "prompts" or not others:
        return []
    unread = "Columns that are not read; list them in columns to copy them to the output."
    return [Section(unread, {"columns": Aside(others)})]


def _kind_and_mapping(
    sampled: Sampled, requested: Kind | None, file: str
) -> tuple[Kind, dict[str, str]]:
    """Return the first kind, and proposal for its columns, that reads most rows.

    Raises `SettingsError`.
    """
    objects = sampled.objects
    if not objects:
        raise SettingsError(why_no_object(sampled.rows), path=file, remedy="give rows with prompts")
    first = objects[0]
    for row_type in [requested] if requested is not None else get_args(Kind):
        for mapping in _proposals(first, row_type):
            if row_type == "prompts" and _names_things(objects, mapping):
                continue
            if reads_most(objects, _reader(mapping, row_type)):
                return row_type, mapping
    wrong = read_or_reason(_reader({}, requested or "pairs"), first)
    if isinstance(wrong, RowRejected):
        reason = f"; as they are, the first row is {wrong.reason}: {wrong.detail}"
    else:
        reason = ""
    raise SettingsError(
        f"no columns are known to hold {requested or 'pairs, judged answers or prompts'},"
        f" there are {preview(list(first))}{reason}",
        path=file,
        remedy=(
            'write a blend file with "mapping", e.g. {"prompt": "task", "chosen":'
            ' "better", "rejected": "worse"}, or with "layout": "raw_completion" if the'
            " texts have their roles written into them"
        ),
    )


def _names_things(rows: Sequence[Mapping[str, Any]], mapping: Mapping[str, str]) -> bool:
    """Return whether the column that would be the prompt holds names, such as those of users."""
    name = mapping.get("prompt")
    if name is None or not all(isinstance(row.get(name), str | None) for row in rows):
        return False
    return not is_prose(rows, name)


def _reader(mapping: Mapping[str, str], row_type: Kind) -> Callable[[Any], Question]:
    """Return what reads a row of this kind."""
    return partial(question_of, form=ChatForm(mapping=mapping), row_type=row_type)


def _proposals(row: Mapping[str, Any], row_type: Kind) -> Iterator[dict[str, str]]:
    """Yield mappings of columns, those that rename fewest first."""
    names = {name.lower(): name for name in row}
    answers: list[dict[str, str]] = [{}]
    if row_type == "pairs":
        for better, worse in _BETTER_AND_WORSE:
            pairs = []
            for name in names:
                if worse in name:
                    pairs.append((name.replace(worse, better), name))
            answers += [
                {"chosen": names[good], "rejected": names[bad]}
                for good, bad in pairs
                if good in names
            ]
    elif row_type == "judged":
        labels = [{}, *({"label": name} for name, value in row.items() if isinstance(value, bool))]
        completions = [
            {},
            *({"completion": names[name]} for name in (*ASSISTANTS, *MODELS) if name in names),
        ]
        answers = [label | answer for label in labels for answer in completions]
    prompts = [{}, *({"prompt": names[name]} for name in USERS if name in names)]
    for answer in answers:
        for prompt in prompts:
            yield {name: column for name, column in (prompt | answer).items() if name != column}
