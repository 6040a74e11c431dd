"""A configuration for packed chats, from a look at the data: layout, lengths, bins, splits, tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.cli.init.asked import AskedPack
from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.errors import SettingsError
from headrace.packing.blend import Source, is_blend_file, plain
from headrace.packing.config import PackedSequences
from headrace.packing.init_chats import Chats, look_at_chats
from headrace.packing.init_splits import Splits, splits_of
from headrace.storage.places import path_of

_LEAST_BIN, _MOST_BIN = 4096, 131_072
_CHARACTERS_A_TOKEN = 4  # of English text by usual tokenizers; other languages and code have fewer
_TOKENIZERS = ("tokenizer.json", "tokenizer.json.gz")
_BESIDE = ("tools", "system", "chat_template_kwargs")


@dataclass(frozen=True)
class Lengths:
    """Of the rows that were looked at, [N]. how: by what they were counted. unfit: rows that gave no sequence."""

    tokens: npt.NDArray[np.int64]
    how: str
    unfit: dict[str, int]


def pack_sections(asked: AskedPack) -> tuple[list[Section], str]:
    """The sections of the configuration, and a line about the data. Raises `SettingsError`, `InputError`."""
    path = path_of(asked.source[0])
    if len(asked.source) == 1 and is_blend_file(path):
        raise SettingsError(
            f"{path}: is a blend file already, and says what lies where; write `blend: {path}` into a configuration, "
            f"or give init the files of one dataset"
        )
    chats = look_at_chats(asked.source)
    (dataset,) = plain([path_of(each) for each in asked.source])["datasets"]
    dataset = {"name": dataset["name"], "path": [str(each) for each in asked.source]}
    if chats.mapping:
        dataset["mapping"] = chats.mapping
    splits = splits_of(chats, dataset)
    tokenizer = _tokenizer(asked, chats)
    lengths = _lengths(chats, dataset, tokenizer)
    about = (
        f"{len(chats.names):,} files, {chats.bytes / 1e6:,.1f} MB; looked at {len(chats.rows):,} rows: "
        f"layout {chats.layout}{f', mapping {chats.mapping}' if chats.mapping else ''}"
    )
    sections = _sections(asked, chats, splits, lengths, tokenizer, about)
    PackedSequences(**{name: value for name, value in settings_of(sections).items() if name not in ("recipe", "out")})
    return sections, about


def _tokenizer(asked: AskedPack, chats: Chats) -> str | None:
    """The directory or file that was given, or one that lies beside the data."""
    if asked.tokenizer is not None:
        return asked.tokenizer
    if chats.layout == "tokens":
        return None
    for directory in (chats.root, chats.root / "tokenizer", chats.root.parent / "tokenizer"):
        if any((Path(directory) / name).is_file() for name in _TOKENIZERS):
            return str(directory)
    return None


def _lengths(chats: Chats, dataset: dict[str, Any], tokenizer: str | None) -> Lengths:
    bad = dict(chats.rejected)
    if chats.layout == "tokens":
        return Lengths(np.array(chats.lengths, np.int64), "counted", bad)
    if tokenizer is None:
        tokens = np.array(chats.lengths, np.int64) // _CHARACTERS_A_TOKEN
        return Lengths(tokens, f"estimated, {_CHARACTERS_A_TOKEN} characters a token", bad)
    from headrace.packing.encoder import Encoder

    settings = PackedSequences(blend={"datasets": [dataset]}, tokenizer=Path(tokenizer))
    encoded = Encoder(settings).of(Source(**dataset))(chats.rows)
    unfit: dict[str, int] = {}
    for each in encoded.rejected:
        unfit[each.reason] = unfit.get(each.reason, 0) + 1
    if not len(encoded.lengths):
        worst = encoded.rejected[0]
        raise SettingsError(
            f"{chats.names[0]}: no row looked at becomes tokens, the first: {worst.reason}: {worst.detail}; give "
            f"another --tokenizer, or mend the data"
        )
    return Lengths(encoded.lengths.astype(np.int64), "counted with this tokenizer", unfit)


def _sections(
    asked: AskedPack, chats: Chats, splits: Splits, lengths: Lengths, tokenizer: str | None, about: str
) -> list[Section]:
    sections = [
        Section(
            f"Written by `headrace init pack` after a look at the data: {about}.\n"
            "Paths are relative to where the command is run. Every setting is explained in docs/packing.md.",
            {"recipe": "packed_sequences", "out": asked.out},
        ),
        Section(f"{_layout_words(chats)} {splits.words}".strip(), {"blend": splits.blend}),
        _tokenizer_section(chats, tokenizer),
        _bins(lengths),
        *_bad_rows(chats, lengths),
    ]
    if splits.by_ratio:
        few = chats.whole and len(chats.rows) < 3
        ratios = (1.0, 0.0, 0.0) if few else (0.98, 0.01, 0.01)
        words = "Shares of rows, exactly; the seed decides which. A share above 0 has one row at least."
        if few:
            words += " Too few rows to hold some out."
        names = ("train_ratio", "valid_ratio", "test_ratio")
        sections.append(Section(words, {**dict(zip(names, ratios, strict=True)), "seed": 42}))
    else:
        sections.append(Section("The seed decides the order of packing.", {"seed": 42}))
    key: Any = splits.key or "task"
    sections += [
        Section(splits.key_words, {"split_key": key if splits.certain else Aside(key)}),
        Section(
            "For whom: megatron, 32 bins a row group, or headrace, 1000, which decodes faster. At most so many rows "
            "of each dataset: sample.",
            {"reader": "megatron", "sample": Aside(1000)},
        ),
    ]
    return sections


def _layout_words(chats: Chats) -> str:
    words = f"Rows are of layout {chats.layout}"
    if len(chats.layouts) > 1:
        counts = ", ".join(f"{layout} {count:,}" for layout, count in chats.layouts.most_common())
        words = f"Rows are of several layouts, each found out by itself ({counts})"
    if chats.mapping:
        words += ", under other names: mapping says which column is which"
        read = {*chats.mapping.values(), *_BESIDE, "instruction", "input", "history"}
        unread = [name for name in chats.columns if name not in read]
        words += f"; not read: {', '.join(unread)}" if unread else ""
    more = [name for name in _BESIDE if name in chats.columns]
    return f"{words}{f', with {chr(44).join(more)} beside' if more else ''}."


def _tokenizer_section(chats: Chats, tokenizer: str | None) -> Section:
    if chats.layout == "tokens" and tokenizer is None:
        return Section("Rows are tokens already: no tokenizer is needed.", {})
    words = "tokenizer.json, or the directory that holds it with tokenizer_config.json, of the model to be trained."
    if tokenizer is None:
        return Section(
            f"{words} NOT SET: give it here, or with --set tokenizer=DIRECTORY.",
            {"tokenizer": Aside("DIRECTORY", needed=True)},
        )
    template = "Its own chat template is used unless chat_template gives a Jinja file."
    return Section(f"{words} {template}", {"tokenizer": tokenizer, "chat_template": Aside("template.jinja")})


def _bins(lengths: Lengths) -> Section:
    tokens = lengths.tokens
    wanted = float(np.quantile(tokens, 0.995))
    size = _LEAST_BIN
    while size < wanted and size < _MOST_BIN:
        size *= 2
    beyond = int((tokens > size).sum())
    words = (
        f"Tokens of a bin, e.g. what the model takes at a time. Lengths ({lengths.how}): half up to "
        f"{int(np.median(tokens)):,}, 99 % up to {int(np.quantile(tokens, 0.99)):,}, longest {int(tokens.max()):,}. "
        f"{beyond:,} of {len(tokens):,} looked at are longer than pack_size. Those are dropped and counted; truncate "
        "cuts them, split makes several, error ends the run."
    )
    return Section(words, {"pack_size": size, "too_long": "drop"})


def _bad_rows(chats: Chats, lengths: Lengths) -> list[Section]:
    """The share of rows that may be bad, where more than a hundredth of those looked at is."""
    count = sum(number for reason, number in lengths.unfit.items() if reason != "filtered")
    if not count:
        return []
    share = count / len(chats.rows)
    where = "; ".join(f"{reason} {number:,}" for reason, number in sorted(lengths.unfit.items()))
    first = next(iter(chats.first_rejected.values()), "")
    words = f"{count:,} of the {len(chats.rows):,} rows looked at give no sequence: {where}"
    words += f", the first in {first}." if first else "."
    if share <= 0.005:
        return [Section(f"{words} More than a hundredth of all would end the run.", {"max_bad_share": Aside(0.01)})]
    allowed = min(1.0, round(2 * share + 0.01, 2))
    return [Section(f"{words} Bad rows are left out and counted, up to this share of all.", {"max_bad_share": allowed})]
