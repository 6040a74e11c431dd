"""`headrace peek --mask`: conversations as their tokens say them, with the trained parts in colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.for_machines import tell
from headrace.cli.printing import printer
from headrace.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.packing.chats.reader import RowBatch
    from headrace.packing.chats.tokenise import ChatEncoder


@dataclass(frozen=True, kw_only=True)
class AskedMask:
    """--mask, and what it needs beside the chats."""

    mask: Annotated[
        bool, typer.Option("--mask", help="Show chats as a packing run would encode them: trained text in colour.")
    ] = False
    tokenizer: Annotated[
        Path | None, typer.Option(help="With --mask: tokenizer.json, or the directory that holds it and its template.")
    ] = None
    chat_template: Annotated[
        str | None, typer.Option(help="With --mask: another template, a file; default: the tokenizer's own.")
    ] = None
    layout: Annotated[str, typer.Option(help="With --mask: the layout of the rows; default: found per row.")] = "auto"
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--mapping",
            metavar="NAME=COLUMN",
            help="With --mask: other column names, e.g. user=question,assistant=answer.",
        ),
    ] = None
    reasoning: Annotated[str, typer.Option(help="With --mask: template, or every_user_turn.")] = "template"


_BATCH_ROWS = 16
_OPEN, _CLOSE = "⟦", "⟧"


@dataclass(frozen=True)
class Shown:
    """One row of a file: its sequences, each (tokens, parts of text with 0 or 1), or why it has none."""

    file: str
    unit: str
    number: int
    sequences: list[tuple[int, list[tuple[str, int]], int]]
    reason: str | None = None
    detail: str | None = None

    def record(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {"file": self.file, self.unit: self.number}
        if self.reason is not None:
            return {**found, "rejected": self.reason, "detail": self.detail}
        found["sequences"] = [
            {
                "tokens": tokens,
                "trained_tokens": trained,
                "parts": [{"text": text, "trained": bool(mask)} for text, mask in parts],
            }
            for tokens, parts, trained in self.sequences
        ]
        return found


def show_masks(source: str, rows: int, asked: AskedMask, *, as_json: bool) -> None:
    """Print the first rows of chat files with their loss mask. Raises `SettingsError`, `InputError`."""
    from headrace.packing.chats.settings import ChatSettings, RowForm
    from headrace.packing.chats.tokenise import ChatEncoder

    if asked.tokenizer is None:
        raise SettingsError("--mask needs --tokenizer; give a tokenizer.json or the directory that holds it")
    encoder = ChatEncoder(
        ChatSettings(tokenizer=asked.tokenizer, chat_template=asked.chat_template, reasoning=asked.reasoning),
        RowForm(layout=asked.layout, mapping=columns_of(asked.columns)),
    )
    shown = _first_rows(source, rows, encoder)
    if as_json:
        tell({"rows": [each.record() for each in shown]})
        return

    console = printer(soft_wrap=True, highlight=False)
    for each in shown:
        _print(console, each)


def columns_of(words: Sequence[str] | None) -> Mapping[str, str]:
    """NAME=COLUMN, repeated or with commas between. Raises `SettingsError`."""
    found: dict[str, str] = {}
    for word in (part for text in words or () for part in text.split(",") if part.strip()):
        name, equals, column = word.partition("=")
        if not equals or not column.strip():
            raise SettingsError(f"--mapping {word!r} is no NAME=COLUMN; give for example user=question")
        found[name.strip()] = column.strip()
    return found


def _first_rows(source: str, rows: int, encoder: ChatEncoder) -> Iterator[Shown]:
    from headrace.formats.source import find_files
    from headrace.packing.chats.reader import read_rows

    left = rows
    for path, name in find_files([source]):
        for batch in read_rows(path, name=name, batch_rows=min(left, _BATCH_ROWS)):
            yield from _shown(batch, left, encoder)
            left -= min(left, len(batch.rows))
            if not left:
                return


def _shown(batch: RowBatch, most: int, encoder: ChatEncoder) -> Iterator[Shown]:
    rows = batch.rows[:most]
    encoded = encoder.encode(rows)
    texts, bounds = encoder.texts(encoded), encoded.offsets
    rejected = {each.row: each for each in encoded.rejected}
    for place, number in enumerate(batch.numbers[: len(rows)]):
        if place in rejected:
            yield Shown(batch.file, batch.unit, number, [], rejected[place].reason, rejected[place].detail)
            continue
        own = [sequence for sequence, row in enumerate(encoded.rows.tolist()) if row == place]
        yield Shown(
            batch.file,
            batch.unit,
            number,
            [
                (int(encoded.lengths[each]), texts[each], int(encoded.mask[bounds[each] : bounds[each + 1]].sum()))
                for each in own
            ],
        )


def _print(console: Console, shown: Shown) -> None:
    """Trained text is green and bold, or in brackets where there are no colours."""
    from rich.text import Text

    where = f"{shown.file}: {shown.unit} {shown.number}"
    if shown.reason is not None:
        console.print(
            Text.assemble((where, "bold"), ": ", (f"rejected, {shown.reason}", "bold red"), f": {shown.detail}")
        )
        return
    plain = not console.is_terminal or console.no_color
    for tokens, parts, trained in shown.sequences:
        share = f"{trained:,} of {tokens:,} tokens trained ({100 * trained / max(1, tokens):.0f} %)"
        console.print(Text.assemble((where, "bold"), f": {share}"))
        for text, mask in parts:
            if plain:
                console.print(Text(f"{_OPEN}{text}{_CLOSE}" if mask else text), end="")
            else:
                console.print(Text(text, style="bold green" if mask else "dim"), end="")
        console.print("\n" if parts and not parts[-1][0].endswith("\n") else "")
