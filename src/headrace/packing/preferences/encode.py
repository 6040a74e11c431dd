"""Encode prompts and answers as tokens: the first stage of a run.

A prompt is rendered with each of its answers. The tokens before the answer are the prompt's, and
both renderings must agree on them. Text that a template writes after an answer's end token is left
out, so a model produces every token of an answer. A spool has one sequence for each answer, which
is the prompt and the answer, with a mask of 1 on the answer. For rows of prompts it has the prompt
alone. Columns that are passed through are stored beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I32, U8
from headrace.errors import InputError, setting
from headrace.formats.column_paths import value_at
from headrace.packing.chats.messages import with_json_arguments
from headrace.packing.chats.reader import filter_row
from headrace.packing.chats.rejections import RowRejected
from headrace.packing.chats.settings import ChatForm
from headrace.packing.chats.tokenise import ChatEncoder, EncodedChats
from headrace.packing.chats.words import RowWords, joined, left_out
from headrace.packing.encode import (
    TOO_LONG,
    Chosen,
    EncodeTask,
    Encoding,
    SequenceBatch,
    run_encoding,
)
from headrace.packing.preferences.layouts import Question, question_of
from headrace.packing.preferences.settings import ANSWERS, LABEL, Preferences, copies_all
from headrace.run.context import TaskFiles
from headrace.stream.audit.overlap import Benchmarks

COLUMNS = ".columns.arrow"
SEEN = b"seen"  # key of the metadata of a file with rows: the named columns that a row has

FORMS = {False: ChatForm(layout="prompt_completion"), True: ChatForm(layout="raw_completion")}


def encode(
    task: EncodeTask,
    files: TaskFiles,
    settings: Preferences,
    encoder: ChatEncoder,
    benchmarks: Benchmarks | None,
) -> dict[str, Any]:
    """Encode the rows of a task. benchmarks: rows that overlap these are left out.

    O(batch) of memory, and O(columns passed through).
    """
    return run_encoding(task, files, partial(_Questions, settings, task, encoder, benchmarks))


@dataclass(frozen=True, slots=True)
class _AcceptedAnswer:
    """A sequence of prompt and answer. index: of its row among the chosen rows."""

    index: int
    content: bytes
    ids: I32
    mask: U8


class _RenderedRows:
    """The last sequence of each rendered row, or why the row has none."""

    def __init__(self, encoded: EncodedChats) -> None:
        self._encoded = encoded
        self._ends = encoded.offsets
        self._last = dict(zip(encoded.rows.tolist(), range(len(encoded.rows)), strict=True))
        self._wrong = {rejection.row: rejection for rejection in encoded.rejected}

    def answered(self, row: int) -> tuple[I32, int]:
        """Return the sequence of a row, and the number of its prompt's tokens.

        Raises `RowRejected`.
        """
        if row in self._wrong:
            raise RowRejected(self._wrong[row].reason, self._wrong[row].detail)
        sequence = slice(self._ends[self._last[row]], self._ends[self._last[row] + 1])
        return _answered(self._encoded.tokens[sequence], self._encoded.mask[sequence])

    def content(self, row: int) -> bytes:
        """Return the digest of a row's content."""
        return self._encoded.contents[self._last[row]]


@dataclass
class _Questions(Encoding):
    """Encoding state that keeps the sequences of questions.

    columns: the passed-through values of each question. seen: the columns that settings name and a
    row has.
    """

    settings: Preferences
    columns: list[dict[str, Any]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def written(self, files: TaskFiles) -> dict[str, Any]:
        """Also write the columns that are passed through. Raises `InputError` for mixed types."""
        columns = {}
        for name in dict.fromkeys(name for row in self.columns for name in row):
            try:
                columns[name] = pa.array([row.get(name) for row in self.columns])
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise InputError(
                    f"dataset {self.task.dataset.source.name} has values of several types there"
                    f" ({error})",
                    column=name,
                    remedy=f"write them as text, or leave the column out with {setting('columns')}",
                ) from None
        table = pa.table(columns)
        if self.columns:
            table = table.replace_schema_metadata({SEEN: json.dumps(sorted(self.seen))})
        files.write_arrow(self.task.file(COLUMNS), table)
        return super().written(files)

    def encode(self, chosen: Chosen) -> None:
        form = self.task.dataset.source
        self.seen.update(chosen.batch.unread)
        questions = self._questions(chosen)
        rows = [row for _, question in questions for row in question.rows()]
        encoded = self.encoded(rows, FORMS[form.layout == "raw_completion"])
        rendered = _RenderedRows(encoded)
        answers = len(rows) // max(1, len(questions))
        words = [left_out(row.row) for row in chosen.rows]
        accepted: list[_AcceptedAnswer] = []
        for number, (index, question) in enumerate(questions):
            rendered_rows = range(number * answers, (number + 1) * answers)
            try:
                parts = self._checked([rendered.answered(row) for row in rendered_rows])
            except RowRejected as wrong:
                self.reject(chosen.batch, chosen.rows[index].index, wrong.reason, wrong.detail)
                continue
            content = rendered.content(rendered_rows[0])
            sequences = encoded.words[rendered_rows.start : rendered_rows.stop]
            words[index] = self._words(chosen.rows[index].row, question, sequences)
            accepted += [_AcceptedAnswer(index, content, *part) for part in parts]
            self.columns.append(self._handed_on(chosen.rows[index].row, question))
        self.account(chosen, words)
        if accepted:
            self._store_answers(chosen, accepted)

    def _questions(self, chosen: Chosen) -> list[tuple[int, Question]]:
        """Read the question of each row, with the row's index; reject rows that have none."""
        form = self.task.dataset.source
        filters = [(name, frozenset(words)) for name, words in form.filters.items()]
        questions = []
        for index, row in enumerate(chosen.rows):
            try:
                filter_row(row.row, filters)
                questions.append((index, question_of(row.row, form, self.settings.kind)))
            except RowRejected as wrong:
                self.reject(chosen.batch, row.index, wrong.reason, wrong.detail)
        return questions

    def _words(
        self, row: Mapping[str, Any], question: Question, sequences: Sequence[RowWords]
    ) -> RowWords:
        """Account for the texts of a row, each of whose sequences has the prompt."""
        if self.settings.kind == "prompts":  # the answer is a dummy
            known = [fate for fate in sequences[0].fates if fate.fate != "trained"]
            sequences = [RowWords(known, sequences[0].faults)]
        return joined(sequences, question.sizes or [0], row)

    def _store_answers(self, chosen: Chosen, accepted: Sequence[_AcceptedAnswer]) -> None:
        sizes = np.array([len(answer.ids) for answer in accepted], np.int64)
        labels = np.array([answer.mask.sum() for answer in accepted], np.int64)
        self.count.update(
            encoded_sequences=len(sizes),
            encoded_tokens=int(sizes.sum()),
            encoded_labels=int(labels.sum()),
        )
        self.store(
            chosen,
            SequenceBatch(
                rows=np.array([answer.index for answer in accepted]),
                contents=[answer.content for answer in accepted],
                tokens=np.concatenate([answer.ids for answer in accepted]),
                mask=np.concatenate([answer.mask for answer in accepted]),
                sizes=sizes,
                labels=labels,
            ),
        )

    def _checked(self, parts: list[tuple[I32, int]]) -> list[tuple[I32, U8]]:
        """Return the sequences and masks of a question.

        parts: sequence and number of prompt tokens of each answer.

        Raises `RowRejected`.
        """
        (first, prompt), *others = parts
        for ids, length in others:
            if not np.array_equal(first[:prompt], ids[:length]):
                raise RowRejected(
                    "prompts_differ",
                    "the template writes a different prompt before the other answer",
                )
            if np.array_equal(first, ids):
                raise RowRejected(
                    "same_answers", f"both answers are the same {len(ids) - length:,} tokens"
                )
        if not prompt:
            raise RowRejected("no_prompt", "the prompt has no token")
        if self.settings.kind == "prompts":
            parts = [(first[:prompt], prompt)]
        most = max(len(ids) for ids, _ in parts)
        if most > (self.settings.max_tokens or most):
            raise RowRejected(
                TOO_LONG,
                f"prompt and answer have {most:,} tokens, max_tokens is"
                f" {self.settings.max_tokens:,}",
            )
        return [(ids, (np.arange(len(ids)) >= length).astype(np.uint8)) for ids, length in parts]

    def _handed_on(self, row: Mapping[str, Any], question: Question) -> dict[str, Any]:
        settings = self.settings
        mapping = self.task.dataset.source.mapping
        names: Sequence[str] = settings.columns or ()
        self.seen.update(_named_in(row, settings))
        if copies_all(settings):
            parts = ("messages", "conversations", "prompt", *ANSWERS[settings.kind])
            others = {mapping.get(name, name) for name in parts}.union(settings.unread_columns)
            names = [name for name in row if name not in others]
        values = {name: value_at(row, name) for name in names}
        if settings.kind == "judged":
            values[LABEL] = question.label
        if settings.kind != "prompts":
            return values
        if isinstance(question.prompt, str):
            return {**values, "prompt": question.prompt}
        messages = []
        for message in question.prompt:
            if message.get("tool_calls") is not None:  # as JSON, so that all rows have one type
                message = with_json_arguments(message, ensure_ascii=True)
            messages.append({**message})
        return {**values, "prompt": messages}


def _named_in(row: Mapping[str, Any], settings: Preferences) -> Iterator[str]:
    """Iterate over the columns of settings that a row has; of a path to copy, its column counts."""
    for name in settings.drop_columns or ():
        if name in row:
            yield name
    for name in settings.columns or ():
        if name in row or name.partition(".")[0] in row:
            yield name


def _answered(ids: I32, mask: U8) -> tuple[I32, int]:
    """Cut a sequence after its answer; also return the number of tokens before the answer."""
    trained = np.flatnonzero(mask)
    begin = int(trained[0])
    end = int(trained[-1]) + 1
    if len(trained) != end - begin:
        raise RowRejected("several_turns", "the template marks several parts of the answer")
    return ids[:end], begin
