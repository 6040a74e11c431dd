"""Write a configuration for packed chats, from names of files and columns and a sample of rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headrace.arrays import I64
from headrace.cli.init.commented import Aside, Section, proposed_settings
from headrace.cli.init.look import WHOLE, Data, evenly
from headrace.cli.init.options import InitPackOptions
from headrace.dataset.tables import with_paths
from headrace.errors import InputError, SettingsError
from headrace.formats.dialect import TextDialect
from headrace.formats.listing import Listing, list_files
from headrace.packing.blend import SPLITS, Split, is_blend_file, plain
from headrace.packing.chats import hub
from headrace.packing.chats.certificate import lines_of
from headrace.packing.chats.layouts import (
    Conversation,
    Sample,
    Text,
    TokenSample,
    is_transcript,
    layout_of,
    sample_of,
)
from headrace.packing.chats.messages import ROLES
from headrace.packing.chats.reader import BrokenRow, Row, read_rows
from headrace.packing.chats.rejections import RowRejected, preview
from headrace.packing.chats.settings import ChatForm, ChatSettings
from headrace.packing.chats.tokenise import ChatEncoder, EncodedChats
from headrace.packing.chats.words import (
    FAULTS,
    Words,
    sentence_of,
    summed_words,
    transcripts_in_words,
)
from headrace.packing.config import PackedSequences
from headrace.packing.stand_in import write_stand_in
from headrace.report.words import pluralise, size
from headrace.storage.places import path_of

Value = TypeVar("Value")

# limits of the sample; rows over all files
_FILES = 16
_ROWS = 2000
_MOST_FILES = 1024
_MOST_ROWS = 1 << 20
_FEW_BAD = 0.05  # share of rows
_LEAST_BIN = 4096
_MOST_BIN = 131_072
CHARACTERS_A_TOKEN = 4  # for English text and usual tokenizers; fewer for other languages and code
USERS = (
    "question",
    "problem",
    "query",
    "user",
    "human",
    "instruction",
    "prompt",
    "input",
    "source",
)
ASSISTANTS = (
    "assistant",
    "answer",
    "answers",
    "response",
    "solution",
    "generated_solution",
    "completion",
)
MODELS = ("gpt", "bot", "model", "output", "target", "chosen")
_CONTENTS = ("content", "value")  # keys of a message's text, or of a list of its parts
_MATERIALS = ("input", "context")  # what an instruction is about
_WITHOUT_BLANKS = re.compile("[\u0e00-\u0eff\u3040-\u9fff]")  # Thai, Chinese, Japanese
_ID = re.compile(r"(?=.*\d)[0-9a-fA-F-]{8,64}")
_SPLIT_WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation", "oot"), "test"),
}


@dataclass(frozen=True)
class Sampled:
    """Sampled rows of a dataset, and the file and line of each.

    complete: whether these are all rows of the dataset.
    """

    rows: list[Row]
    wheres: list[str]
    complete: bool

    @property
    def columns(self) -> list[str]:
        """The columns that all rows have, in the order of the first row."""
        rows = self.objects
        result = []
        for name in rows[0]:
            if all(name in row for row in rows):
                result.append(name)
        return result

    @property
    def objects(self) -> list[Mapping[str, Any]]:
        """The rows that are JSON objects."""
        result = []
        for row in self.rows:
            if isinstance(row, Mapping):
                result.append(row)
        return result


@dataclass(frozen=True)
class _Look(Sampled):
    """The reading of a sample of rows, and the rows that cannot be read.

    tokens: lengths of the rows that are read, [n]. how: the way they were counted. rejected:
    reasons by row. notes: what becomes of the rows' texts, and what the template does.
    unanswered, silent: chats whose
    last message is not the assistant's, and those without one of the assistant's.
    """

    mapping: dict[str, str]
    layouts: Counter[str]
    tokens: I64
    how: str
    rejected: dict[int, str]
    notes: Sequence[str] = ()
    unanswered: int = 0
    silent: int = 0

    @property
    def usual(self) -> str:
        """The layout of most rows."""
        return self.layouts.most_common(1)[0][0]


def pack_sections(options: InitPackOptions, data: Data) -> tuple[list[Section], str]:
    """Write the sections of the configuration, and a line about the data.

    Raises `SettingsError`, `InputError`.
    """
    listing, dataset = dataset_of(data)
    tokenizer = pinned(options.tokenizer)
    look = _look(listing, data.once(read_some), tokenizer)
    about = (
        f"{sampled_words(listing, look)}: layout"
        f" {look.usual}{f', mapping {look.mapping}' if look.mapping else ''}"
    )
    if look.unanswered:
        about += (
            f"; {look.silent / len(look.rows):.0%} have no answer,"
            f" {look.unanswered / len(look.rows):.0%} do not end with one"
        )
    blend, why = split_by_names(
        listing, look, dataset | ({"mapping": look.mapping} if look.mapping else {})
    )
    sections = [
        first_section(
            "pack", about, {"recipe": "packed_sequences", "out": options.out}, "packing.md"
        ),
        Section(f"{_about_layouts(look)} {why}".strip(), {"blend": blend}),
        *([data.unusual] if data.unusual.settings else []),
        *(
            [tokenizer_section(tokenizer, pack_size=_bin_size(look) * 2 * CHARACTERS_A_TOKEN)]
            if tokenizer is not None or look.how != "counted"
            else [_NO_TOKENIZER]
        ),
        _size_section(look),
        *bad_rows_section(look, look.rejected),
        *_lost_section(look),
        shares_section(look, blend, "the order of packing"),
        ENTITY,
        Section(
            "The reader: megatron, 32 bins a row group, or headrace, 1000, which decodes faster. At"
            " most this many rows of each dataset: sample.",
            {"reader": "megatron", "sample": Aside(1000)},
        ),
    ]
    PackedSequences(**proposed_settings(sections))  # raises what the run would raise
    return sections, about


def first_section(word: str, about: str, settings: dict[str, Any], page: str) -> Section:
    """Say how a configuration was made. word: of the command. page: explains the settings."""
    return Section(
        f"Written by `headrace init {word}` after a look at the data: {about}.\nPaths are relative"
        f" to where the command is run. Every setting is explained in docs/{page}.",
        settings,
    )


def _about_layouts(look: _Look) -> str:
    """Describe the layouts of rows, and name the columns that are not read."""
    words = f"Rows are of layout {look.usual}"
    if len(look.layouts) > 1:
        counts = ", ".join(f"{layout} {count:,}" for layout, count in look.layouts.most_common())
        words = f"Rows are of several layouts, each detected row by row ({counts})"
    beside = [name for name in ("tools", "system", "chat_template_kwargs") if name in look.columns]
    if look.mapping:
        words += ", under other names: mapping says which column is which"
        read = {*look.mapping.values(), *beside, "instruction", "input", "history"}
        unread = [name for name in look.columns if name not in read]
        if unread:
            words += f"; not read: {', '.join(unread)}"
    words += f", with {', '.join(beside)} beside." if beside else "."
    if look.unanswered:
        fraction = look.unanswered / len(look.rows)
        words += (
            f" {look.unanswered:,} of {len(look.rows):,} looked at ({fraction:.0%}) do not end with"
            " an answer of the assistant, and what comes after the last one is not trained on;"
            f" {look.silent:,} have none at all."
        )
    return words


def dataset_of(data: Data) -> tuple[Listing, dict[str, Any]]:
    """List the files of one dataset, with its name and paths in the form of a blend.

    Raises `SettingsError`.
    """
    source = data.source
    path = path_of(source[0])
    if len(source) == 1 and is_blend_file(path):
        raise SettingsError(
            "is a blend file already",
            path=path,
            remedy=(
                f"write `blend: {path}` into a configuration, or give init the files of one dataset"
            ),
        )
    (dataset,) = plain([path_of(path) for path in source])["datasets"]
    return data.listing, {"name": dataset["name"], "path": [str(path) for path in source]}


def pinned(tokenizer: str | None) -> str | None:
    """Pin a name on the hub to its commit; a path stays as it is."""
    if tokenizer is None or not hub.is_name(tokenizer):
        return tokenizer
    return hub.pinned(tokenizer)


def sampled_words(listing: Listing, sampled: Sampled) -> str:
    """Describe the amount of data, and the number of rows that were looked at."""
    return (
        f"{pluralise(len(listing.names), 'file')}, {size(int(listing.sizes.sum()))};"
        f" looked at {pluralise(len(sampled.rows), 'row')}"
    )


ENTITY = Section(
    "Rows that belong together, e.g. by task, stay in one split if entity names their field.",
    {"entity": Aside("task")},
)
_NO_TOKENIZER = Section("Rows are tokens already: no tokenizer is needed.", {})


def shares_section(sampled: Sampled, blend: Mapping[str, Any], decided: str) -> Section:
    """Propose a seed, and the shares of the splits if the blend does not give the splits."""
    if "datasets" not in blend:
        return Section(f"The seed decides {decided}.", {"seed": 42})
    few_rows = sampled.complete and len(sampled.rows) < 3
    words = "Shares of rows, exactly; the seed decides which. A share above 0 has one row at least."
    if few_rows:
        words += " Too few rows to hold some out."
    if few_rows:
        train, held_out = (1.0, 0.0)
    else:
        train, held_out = (0.98, 0.01)
    return Section(
        words, {"train_ratio": train, "val_ratio": held_out, "test_ratio": held_out, "seed": 42}
    )


def bad_rows_section(sampled: Sampled, rejected: Mapping[int, str]) -> list[Section]:
    """Allow twice the sample's share of bad rows, or 5 % more than it, plus 1 %; nothing if all its
    rows are good. Of more than a few, the user decides: they mean that something is wrong.
    """
    bad = len(rejected)
    rows = len(sampled.rows)
    if not bad:
        return []
    reasons = "; ".join(
        f"{reason} {number:,}" for reason, number in sorted(Counter(rejected.values()).items())
    )
    words = (
        f"{bad:,} of the {rows:,} rows looked at give no sequence: {reasons}, the first in"
        f" {sampled.wheres[min(rejected)]}. Bad rows are left out and counted, up to this share of"
        " all."
    )
    bad_share = bad / rows
    most = round(min(1.0, bad_share + min(bad_share, _FEW_BAD) + 0.01), 2)
    if bad <= _FEW_BAD * rows:
        return [Section(words, {"max_bad_share": most})]
    words += " These are many: look at them before you allow so many."
    allowed = Aside(most, needed=True, stand_in=lambda _: {"max_bad_share": most})
    return [Section(words, {"max_bad_share": allowed})]


def tokenizer_section(tokenizer: str | None, **of_bytes: int) -> Section:
    """Name the tokenizer, or ask for one.

    of_bytes: settings with which the others are tried on bytes as tokens.
    """
    words = (
        "tokenizer.json, the directory that holds it with tokenizer_config.json, or the name on the"
        " Hugging Face hub, pinned to its commit, of the model to be trained."
    )
    if tokenizer is None:
        words += " NOT SET: give it here, or with --set tokenizer=DIRECTORY."

        def stand_in(folder: Path) -> dict[str, Any]:
            return {"tokenizer": str(write_stand_in(folder)), **of_bytes}

        return Section(words, {"tokenizer": Aside("DIRECTORY", needed=True, stand_in=stand_in)})
    words += " Its own chat template is used unless chat_template gives a Jinja file."
    return Section(words, {"tokenizer": tokenizer, "chat_template": Aside("template.jinja")})


def _bin_size(look: _Look) -> int:
    """Return a power of two that holds nearly all rows."""
    bin_size = _LEAST_BIN
    while bin_size < np.quantile(look.tokens, 0.995) and bin_size < _MOST_BIN:
        bin_size *= 2
    return bin_size


def _size_section(look: _Look) -> Section:
    """Propose the size of a bin."""
    tokens = look.tokens
    bin_size = _bin_size(look)
    words = (
        f"Tokens of a bin, e.g. what the model takes at a time. Lengths ({look.how}): half up to"
        f" {int(np.median(tokens)):,}, 99 % up to {int(np.quantile(tokens, 0.99)):,}, longest"
        f" {int(tokens.max()):,}. {int((tokens > bin_size).sum()):,} of {len(tokens):,} looked at"
        " are longer than pack_size. Those are dropped and counted; truncate cuts them, split"
        " makes several, error ends the run."
    )
    return Section(words, {"pack_size": bin_size, "too_long": "drop"})


def read_some(listing: Listing, dialect: TextDialect) -> Sampled:
    """Read some rows of some files.

    Raises `InputError`, and `SettingsError` if there are no rows.
    """
    is_small = bool(listing.sizes.sum() <= WHOLE)  # read whole, and looked at evenly
    chosen = evenly(len(listing.names), _MOST_FILES if is_small else _FILES)
    rows: list[Row] = []
    wheres: list[str] = []
    complete = len(chosen) == len(listing.names)
    for number in chosen:
        room = _MOST_ROWS if is_small else max(1, _ROWS // len(chosen))
        path = listing.path(number)
        name = listing.names[number]
        for batch in read_rows(path, name=name, batch_rows=_ROWS, dialect=dialect):
            rows += batch.rows[:room]
            wheres += [batch.where(at) for at in range(min(room, len(batch.rows)))]
            room -= len(batch.rows)
            if room < 0:
                complete = False
                break
    if len(rows) > _ROWS:
        complete = False
        spread = evenly(len(rows), _ROWS)
        rows = [rows[at] for at in spread]
        wheres = [wheres[at] for at in spread]
    if not rows:
        raise SettingsError("holds no rows", path=listing.names[0], remedy="give data to look at")
    return Sampled(rows, wheres, complete)


def _look(listing: Listing, sampled: Sampled, tokenizer: str | None) -> _Look:
    """Read sampled rows as chats.

    Raises `InputError`, and `SettingsError` if no column holds chats.
    """
    rows = sampled.rows
    for row, where in zip(rows, sampled.wheres, strict=True):
        # before a mapping, because two columns of answers look like a chat
        reason = read_or_reason(sample_of, row)
        if isinstance(reason, RowRejected) and reason.reason == "preference_data":
            raise SettingsError(f"{reason.detail}", path=where, remedy="write that in a blend file")
    mapping = _mapping(sampled, listing.names[0])
    read = []
    rejected = {}
    layouts = Counter[str]()
    for number, row in enumerate(rows):
        sample = read_or_reason(partial(sample_of, columns=mapping), row)
        if isinstance(sample, RowRejected):
            rejected[number] = sample.reason
            continue
        read.append(sample)
        if tokenizer is None and _is_silent(sample):
            rejected[number] = "nothing_trained"  # as the encoder would say
        if isinstance(row, Mapping):
            layouts[layout_of(row, mapping)] += 1
    _refuse_ids(read, listing.names[0])
    tokens = np.array([_length(sample) for sample in read], np.int64)
    how = "counted"
    notes = _notes_of_texts(read)
    if not isinstance(read[0], TokenSample) and tokenizer is None:
        how = f"estimated, {CHARACTERS_A_TOKEN} characters a token"
    elif tokenizer is not None and not isinstance(read[0], TokenSample):
        encoder = ChatEncoder(ChatSettings(tokenizer=tokenizer))
        encoded = encoded_sample(rows, ChatForm(mapping=mapping), encoder, listing.names[0])
        tokens = encoded.lengths
        how = "counted with this tokenizer"
        rejected |= {rejection.row: rejection.reason for rejection in encoded.rejected}
        notes += _notes(encoder, encoded)
    look = _Look(rows, sampled.wheres, sampled.complete, mapping, layouts, tokens, how, rejected)
    return replace(look, notes=notes, unanswered=_unanswered(read), silent=_unanswered_at_all(read))


def _notes_of_texts(samples: Sequence[Sample]) -> list[str]:
    """Say how many plain texts look like chats, if any do."""
    texts = [sample.text for sample in samples if isinstance(sample, Text)]
    transcripts = sum(map(is_transcript, texts))
    return [f"{transcripts_in_words(transcripts, len(texts))}."] if transcripts else []


def _unanswered(samples: Sequence[Sample]) -> int:
    """Count the chats whose last message is not the assistant's."""
    count = 0
    for sample in samples:
        if isinstance(sample, Conversation) and sample.messages:
            count += not _answers(sample.messages[-1])
    return count


def _unanswered_at_all(samples: Sequence[Sample]) -> int:
    """Count the chats in which no message is an answer."""
    count = 0
    for sample in samples:
        if isinstance(sample, Conversation) and sample.messages:
            count += not any(map(_answers, sample.messages))
    return count


def _answers(message: Mapping[str, Any]) -> bool:
    """Return whether a message is an answer of the assistant that says or calls something."""
    if message.get("role") != "assistant":
        return False
    content = message.get("content")
    says = bool(content.strip()) if isinstance(content, str) else bool(content)
    return says or bool(message.get("tool_calls") or message.get("reasoning_content"))


def _refuse_ids(samples: Sequence[Sample], file: str) -> None:
    """Raise `SettingsError` for texts most of which are ids: digits of base 16, maybe in groups."""
    ids = 0
    for sample in samples:
        if not isinstance(sample, Conversation | TokenSample):
            ids += _ID.fullmatch(sample.text.strip()) is not None
    if 2 * ids > len(samples):
        raise SettingsError(
            "most of its texts are ids rather than texts",
            path=file,
            remedy="give files of texts or chats",
        )


def _is_silent(sample: Sample) -> bool:
    """Return whether a sample is a chat without any message of the assistant."""
    if not isinstance(sample, Conversation) or not sample.messages:
        return False
    return all(message.get("role") != "assistant" for message in sample.messages)


def _notes(encoder: ChatEncoder, encoded: EncodedChats) -> list[str]:
    """Describe what becomes of the texts of rows, and what the template does."""
    words = Words()
    faults = Counter[str]()
    first: dict[str, str] = {}
    words.add(encoded.words)
    for row_words in encoded.words:
        faults.update(row_words.faults.keys())
        first = row_words.faults | first
    notes = [f"Of the rows looked at, {sentence_of(summed_words([words.record()]))}."]
    for fault, rows in sorted(faults.items()):
        notes.append(f"{pluralise(rows, 'row')}: {FAULTS[fault]} ({first[fault]}).")
    if encoded.chats:
        for name, certificate in encoder.certificates.items():
            if certificate is not None:
                notes += lines_of(name, certificate, encoder.ends)
    return notes


def _lost_section(look: _Look) -> list[Section]:
    """Show the account of the sample, and propose a share of rows that may lose words."""
    if not look.notes:
        return []
    lost = any(fault in note for note in look.notes for fault in FAULTS.values())
    allowed: Any = Aside(0)
    if lost:
        allowed = Aside(1.0, needed=True)
    return [Section("\n".join(look.notes), {"max_lost_share": allowed})]


def encoded_sample(
    rows: Sequence[Row], form: ChatForm, encoder: ChatEncoder, file: str
) -> EncodedChats:
    """Encode rows to count their tokens. Raises `SettingsError` if no row becomes tokens."""
    encoded = encoder.encode(rows, form)
    if not len(encoded.lengths):
        worst = encoded.rejected[0]
        raise SettingsError(
            f"no row looked at becomes tokens, the first: {worst.reason}: {worst.detail}",
            path=file,
            setting="tokenizer",
            remedy="give another, or fix the data",
        )
    return encoded


def read_or_reason(read: Callable[[Any], Value], row: Row) -> Value | RowRejected:
    """Read a row, or return why it cannot be read."""
    if isinstance(row, BrokenRow):
        return RowRejected(row.reason, row.detail)
    try:
        return read(row)
    except RowRejected as wrong:
        return wrong


def reads_most(rows: Sequence[Row], read: Callable[[Row], object]) -> bool:
    """Return whether more than half of the rows can be read."""
    good = 0
    for row in rows:
        good += not isinstance(read_or_reason(read, row), RowRejected)
    return 2 * good > len(rows)


def why_no_object(rows: Sequence[Row]) -> str:
    broken = next(row for row in rows if isinstance(row, BrokenRow))
    return f"no row is a JSON object, the first: {broken.detail}"


def _length(sample: Sample) -> int:
    """Return the tokens of a row: counted if the row is tokens, else estimated."""
    if isinstance(sample, TokenSample):
        return len(sample.ids)
    if not isinstance(sample, Conversation):
        return len(sample.text) // CHARACTERS_A_TOKEN
    characters = len(str(sample.tools or ""))
    for message in sample.messages:
        for name, value in message.items():
            if name != "role":
                characters += len(str(value))
    return characters // CHARACTERS_A_TOKEN


def _mapping(sampled: Sampled, file: str) -> dict[str, str]:
    """Return the first proposal for the columns that reads most rows. Raises `SettingsError`."""
    objects = sampled.objects
    if not objects:
        raise InputError(why_no_object(sampled.rows), path=file, remedy="give files of chats")
    for proposal in _proposals(objects):
        if reads_most(objects, partial(sample_of, columns=proposal)):
            return proposal
    raise SettingsError(
        f"none of the columns is known to hold chats; there are {preview(list(objects[0]))}",
        path=file,
        remedy=(
            'write a blend file with "mapping", e.g. {"user": "problem", "assistant":'
            ' "solution"} or {"messages": "chat"}'
        ),
    )


def _first_filled(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first row that holds a value, else the first."""
    for row in rows:
        if any(value is not None for value in row.values()):
            return row
    return rows[0]


def _proposals(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield mappings of columns of chats, first none."""
    row = _first_filled(rows)
    yield {}
    texts = {}
    for name, value in row.items():
        if isinstance(value, str):
            texts[name.lower()] = name
    for path, value in _paths(row):
        of_list = _of_list(path, value)
        if of_list:
            yield of_list
    material = next((texts[name] for name in _MATERIALS if name in texts), None)
    for user in filter(texts.__contains__, USERS):
        # else they may be users, and models of their devices
        models = MODELS if is_prose(rows, texts[user]) else ()
        for assistant in filter(texts.__contains__, (*ASSISTANTS, *models)):
            # an answer to the instruction alone would be a guess
            if user == "instruction" and material is not None:
                names = {"instruction": texts[user], "input": material, "output": texts[assistant]}
                renamed = {name: column for name, column in names.items() if name != column}
                if renamed:
                    yield renamed
            yield {"user": texts[user], "assistant": texts[assistant]}
    alone = len(texts) == 1 and texts.keys().isdisjoint(USERS)  # else there are prompts alone
    if alone and is_prose(rows, *texts.values()):
        yield {"text": next(iter(texts.values()))}


def _paths(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of a row with their dotted paths, nested ones last."""
    for name, value in row.items():
        yield f"{above}{name}", value
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{name}.")


def is_prose(objects: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return whether most texts of a column are of several words, which ids are not."""
    several = 0
    for row in objects:
        text = str(row.get(name) or "")
        several += len(text.split()) > 1 or _WITHOUT_BLANKS.search(text) is not None
    return 2 * several > len(objects)


def _list_in(value: object) -> Sequence[Any]:
    """Return a list, which may be written as JSON; empty for other values."""
    if isinstance(value, str) and value[:1] == "[":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return value
    return ()


def _holds_roles(messages: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Check whether this key of all messages is a role."""
    return all(str(message.get(key)).lower() in ROLES for message in messages)


def _of_list(name: str, value: object) -> dict[str, str]:
    """Return a mapping for a column of messages or of tokens; empty for others."""
    value = _list_in(value)
    if not value:
        return {}
    if all(isinstance(number, int) and not isinstance(number, bool) for number in value):
        return {"input_ids": name}
    if not all(isinstance(message, Mapping) for message in value):
        return {}
    keys = []
    for key, inner in value[0].items():
        if isinstance(inner, str) or key in _CONTENTS:
            keys.append(key)
    role = next((key for key in keys if _holds_roles(value, key)), None)
    content = next((key for key in keys if key != role), None)
    if role is None or content is None:
        return {}
    mapping = {"messages": name, "role": role, "content": content}
    usual = {"role": ("role", "from"), "content": _CONTENTS}
    result = {}
    for key, column in mapping.items():
        if column not in usual.get(key, ()):
            result[key] = column
    return result


def split_by_names(
    listing: Listing, sampled: Sampled, dataset: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Write the blend and a reason; splits are kept if files or a column are named after them,
    train included.

    Raises `InputError` if files are named after splits that cannot be kept apart here.
    """

    def per_split(parts: Mapping[Split, Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "val" if split == "valid" else split: [{**dataset, **parts[split]}]
            for split in SPLITS
            if split in parts
        }

    # a saved dataset may have splits of any name
    reasons = []
    if set(listing.splits) <= set(_SPLIT_WORDS):
        reasons = listing.splits
    files = _by_split(zip(listing.names, reasons, strict=False))
    if len(files) > 1 and "train" in files:
        listed = "; ".join(f"{split}: {', '.join(names)}" for split, names in files.items())
        paths = {name: str(listing.root / name) for name in listing.names}
        parts = {split: {"path": [paths[name] for name in names]} for split, names in files.items()}
        return per_split(parts), f"Files are named after splits, and stay in them: {listed}."
    list_files(with_paths(dataset["path"]))  # raises for files of several splits, as the run would
    for column in sampled.columns:
        if column.lower() not in ("split", "subset", "partition"):
            continue
        words = sorted({str(row[column]) for row in sampled.rows if isinstance(row, Mapping)})
        if not all(word.lower() in _SPLIT_WORDS for word in words):
            continue
        values = _by_split((word, word.lower()) for word in words)
        if len(values) > 1 and "train" in values:
            return (
                per_split({split: {"filters": {column: words}} for split, words in values.items()}),
                (
                    f"Column {column} names the split of a row ({', '.join(words)}). Rows with"
                    " other words are left out, and counted."
                ),
            )
    return {"datasets": [dict(dataset)]}, ""


def _by_split(pairs: Iterable[tuple[str, str]]) -> dict[Split, list[str]]:
    """Group the first of each pair by the split that the second names."""
    columns: dict[Split, list[str]] = {}
    for name, word in pairs:
        columns.setdefault(_SPLIT_WORDS[word], []).append(name)
    return columns
