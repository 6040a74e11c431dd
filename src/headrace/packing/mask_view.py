"""Print conversations as decoded tokens, with the trained parts in colour: `headrace peek
--mask`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.output import emit, printer
from headrace.cli.settings_flags import pairs_of
from headrace.errors import InputError, SettingsError, setting_name
from headrace.formats.dialect import PLAIN, TextDialect

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.packing.chat_recipe import ChatRecipe
    from headrace.packing.chats.settings import ChatForm
    from headrace.packing.chats.tokenise import ChatEncoder


@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """--mask, and what it needs beside the chats."""

    mask: Annotated[
        bool,
        typer.Option(
            "--mask", help="Show chats as a packing run would encode them: trained text in colour."
        ),
    ] = False
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help=(
                "With --mask: tokenizer.json, the directory that holds it and its template, or"
                " ORG/NAME."
            )
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        typer.Option(
            help="With --mask: a file with another template; default: that of the tokenizer."
        ),
    ] = None
    template_values: Annotated[
        str | None,
        typer.Option(
            metavar="YAML",
            help="With --mask: variables for the template, e.g. {enable_thinking: false}.",
        ),
    ] = None
    layout: Annotated[
        str, typer.Option(help="With --mask: the layout of the rows; default: found per row.")
    ] = "auto"
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--mapping",
            metavar="NAME=COLUMN",
            help="With --mask: other column names, e.g. user=question,assistant=answer.",
        ),
    ] = None
    reasoning: Annotated[
        str, typer.Option(help="With --mask: template, keep, every_user_turn, mask or drop.")
    ] = "template"


_BATCH_ROWS = 16
_LOOKED_AT = 64  # rows, of which the first that has a sequence is shown
_LONGEST = 2000  # characters shown


def show_masks(source: str, rows: int, options: MaskOptions, *, as_json: bool) -> None:
    """Print the first rows of chat files with their loss mask.

    Raises `SettingsError`, `InputError`.
    """
    from headrace.dataset.open import find_run
    from headrace.packing.chats.settings import ChatForm, ChatSettings
    from headrace.packing.chats.tokenise import ChatEncoder
    from headrace.settings import load_yaml

    with suppress(InputError):  # chats are not a prepared dataset
        run, _ = find_run(source)
        raise SettingsError(
            f"is the prepared dataset {run.name}, and {setting_name('mask')} encodes chats",
            path=source,
            remedy="give the files it was made of",
        )
    if options.tokenizer is None:
        raise SettingsError(
            f"{setting_name('mask')} needs {setting_name('tokenizer')}",
            setting="tokenizer",
            remedy="give a tokenizer.json or the directory that holds it",
        )
    mapping = pairs_of(
        "columns", ",".join(options.columns or ()).split(","), "NAME=COLUMN", "user=question"
    )
    form = ChatForm(layout=options.layout, mapping=mapping)
    encoder = ChatEncoder(
        ChatSettings(
            tokenizer=options.tokenizer,
            chat_template=options.chat_template,
            template_values=load_yaml(options.template_values or "{}"),
            reasoning=options.reasoning,
        )
    )
    records = _records(source, rows, encoder, form)
    if as_json:
        emit({"rows": list(records)})
        return
    console = printer(soft_wrap=True, highlight=False)
    for record in records:
        _print(console, record)


def _records(
    source: str,
    rows: int,
    encoder: ChatEncoder,
    form: ChatForm,
    *,
    dialect: TextDialect = PLAIN,
) -> Iterator[dict[str, Any]]:
    """Yield each of the first rows with its sequences, or with the reason why it has none."""
    import numpy as np

    from headrace.formats.source import find_files
    from headrace.packing.chats.reader import read_rows
    from headrace.packing.chats.words import words_by_kind

    left = rows
    for path, file in find_files([source]):
        size = min(left, _BATCH_ROWS)
        for batch in read_rows(path, name=file, batch_rows=size, dialect=dialect):
            first_rows = batch.rows[:left]
            encoded = encoder.encode(first_rows, form)
            texts = encoder.texts(encoded)
            bounds = encoded.offsets
            rejected = {rejection.row: rejection for rejection in encoded.rejected}
            for index, number in enumerate(batch.numbers[: len(first_rows)]):
                record: dict[str, Any] = {"file": batch.file, batch.unit: number}
                if index in rejected:
                    yield {
                        **record,
                        "rejected": rejected[index].reason,
                        "detail": rejected[index].detail,
                    }
                    continue
                record["words"] = words_by_kind(encoded.words[index])
                record["faults"] = encoded.words[index].faults
                record["sequences"] = []
                for sequence in np.flatnonzero(encoded.rows == index).tolist():
                    mask = encoded.mask[bounds[sequence] : bounds[sequence + 1]]
                    parts = [{"text": text, "trained": bool(one)} for text, one in texts[sequence]]
                    tokens = {"tokens": len(mask), "trained_tokens": int(mask.sum())}
                    record["sequences"].append({**tokens, "parts": parts})
                yield record
            left -= len(first_rows)
            if not left:
                return


def masked_lines(settings: ChatRecipe) -> list[str]:
    """Return the first row of the first dataset as lines, what is in the loss in brackets; none
    if it has no sequence.
    """
    from headrace.packing.chats.tokenise import ChatEncoder

    if settings.tokenizer is None:  # rows are tokens
        return []
    dataset = settings.blend.groups()[0][1][0]
    encoder = ChatEncoder(settings)
    for record in _records(
        str(dataset.path[0]), _LOOKED_AT, encoder, dataset, dialect=settings.dialect
    ):
        for sequence in record.get("sequences", ()):
            text = "".join(
                f"⟦{part['text']}⟧" if part["trained"] else part["text"]
                for part in sequence["parts"]
            )
            if len(text) > _LONGEST:
                text = f"{text[:_LONGEST]}…"
            fraction = f"{sequence['trained_tokens']:,} of {sequence['tokens']:,} tokens"
            return [f"a row, ⟦in the loss⟧: {fraction}", *text.rstrip("\n").split("\n")]
    return []


def _print(console: Console, record: dict[str, Any]) -> None:
    """Print trained text in bold green, or in brackets if there are no colours."""
    from rich.text import Text

    from headrace.packing.chats.words import FAULTS, sentence_of

    (unit, number) = list(record.items())[1]
    where = f"{record['file']}: {unit} {number}"
    if "rejected" in record:
        reason = (f"rejected, {record['rejected']}", "bold red")
        console.print(Text.assemble((where, "bold"), ": ", reason, f": {record['detail']}"))
        return
    plain = not console.is_terminal or console.no_color
    for sequence in record["sequences"]:
        tokens = sequence["tokens"]
        trained = sequence["trained_tokens"]
        parts = sequence["parts"]
        summary = (
            f"{trained:,} of {tokens:,} tokens in the loss ({100 * trained / max(1, tokens):.0f} %)"
        )
        console.print(Text.assemble((where, "bold"), f": {summary}"))
        for text, mask in ((part["text"], part["trained"]) for part in parts):
            if plain:
                console.print(Text(f"⟦{text}⟧" if mask else text), end="")
            else:
                console.print(Text(text, style="bold green" if mask else "dim"), end="")
        console.print("\n" if parts and not parts[-1]["text"].endswith("\n") else "")
    console.print(Text(sentence_of(record["words"]), style="dim"))
    for fault, what in record["faults"].items():
        console.print(Text(f"{FAULTS[fault]}: {what}", style="bold red"))
