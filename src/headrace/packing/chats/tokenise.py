"""Encode rows of chats as token ids with a loss mask, a batch at a time.

Conversations are rendered as text with trained spans (`render`) and encoded in batches. Each token
is then assigned to the characters that it covers (`account`). A token is trained if all its
characters are in a span. If a token would straddle the border of a span, the text is encoded again
in parts cut at the borders, so a model trains on what it would produce after the prompt. Tokenizers
whose parts do not add up keep the tokens of the complete text; a straddling token is then trained
if it begins inside the span. Text of a special token inside a message stays text (see
`marks.Specials`).
"""

from __future__ import annotations

import platform
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headrace.arrays import I32, I64, U8, concatenated, offsets_from_lengths
from headrace.errors import InputError, SettingsError, setting, setting_name
from headrace.packing.chats.account import (
    FlatIds,
    TokenBytes,
    flat_ids,
    mask_by_bytes,
    mask_of_runs,
    runs_by_offsets,
    token_bytes_of,
)
from headrace.packing.chats.backends import Fastokens, backend_of
from headrace.packing.chats.layouts import (
    Conversation,
    ReadRow,
    Sample,
    Text,
    TokenSample,
    content_of,
    is_transcript,
    read_row,
    texts_beside,
)
from headrace.packing.chats.marks import Span, Specials
from headrace.packing.chats.messages import has_reasoning
from headrace.packing.chats.reader import BrokenRow, Row, filter_row
from headrace.packing.chats.rejections import Rejected, RowRejected, check_text
from headrace.packing.chats.settings import (
    ChatForm,
    ChatSettings,
    fingerprint_of,
    load_tokenizer,
    read_tokenizer,
    template_text,
)
from headrace.packing.chats.turns import last_user, sequences_of
from headrace.packing.chats.words import (
    RowWords,
    fates_of_messages,
    holds_words,
    is_flag,
    left_out,
    lost_reasoning,
)

if TYPE_CHECKING:
    from tokenizers import Encoding

    from headrace.packing.chats.render import Rendered
    from headrace.packing.chats.render_process import ProcessRenderer

SpecialText = Literal["none", "text", "control"]
"""How a conversation's texts of special tokens are encoded; "none": it has no such text."""

_ROWS_AT_ONCE = 128  # rendered while the previous rows are encoded
_ANY_FORM = ChatForm()


@dataclass(frozen=True, eq=False)
class EncodedChats:
    """Encoded sequences, end to end.

    tokens int32 and mask uint8 [sum of lengths], lengths and rows int64 [n].

    rows: index of the input row of each sequence, ascending. rejected: the rows without a sequence,
    in order. special_text: number of rows whose messages hold the text of a special token.
    contents: digest of each row's user turns, see `content_of`. compared: number of texts whose ids
    a backend compared with those of `tokenizers`. messages: number of messages in the sequences of
    conversations, by role and by weight, 1 (trained) or 0. chats: number of sequences of
    conversations. words: the account of each input row's texts. transcripts: number of plain texts
    that look like conversations. empty_answers: number of trained messages without words or calls.
    """

    tokens: I32
    mask: U8
    lengths: I64
    rows: I64
    rejected: list[Rejected]
    contents: list[bytes]
    special_text: int = 0
    compared: int = 0
    messages: Mapping[tuple[str, int], int] = field(default_factory=dict)
    words: list[RowWords] = field(default_factory=list)
    chats: int = 0
    transcripts: int = 0
    empty_answers: int = 0

    @property
    def offsets(self) -> I64:
        """Return the start of each sequence, and the end of the last; int64 [n + 1]."""
        return offsets_from_lengths(self.lengths)


@dataclass(slots=True)
class _SequenceDraft:
    """A sequence in progress: text with spans, or ids with a mask.

    eos, bos: whether the end token is appended, and the begin token put before it.

    special_text: whether a message holds the text of a special token. plain: spans of such texts.
    chat: the conversation that was rendered.
    """

    row: int
    text: str = ""
    spans: Sequence[Span] = ()
    eos: bool = False
    bos: bool = False
    ids: Any = None
    mask: Any = None
    special_text: bool = False
    content: bytes = b""
    chat: Conversation | None = None
    plain: Sequence[Span] = ()
    transcript: bool = False


class ChatEncoder:
    """Encoder of rows with one tokenizer and template; equal rows and settings give equal tokens on
    any machine.

    Thread-safe. A pickled encoder loads its own tokenizer in the other process. Without a
    tokenizer, rows must be tokens already. Raises `SettingsError`, `InputError` and `MissingExtra`
    when built.
    """

    def __init__(self, settings: ChatSettings) -> None:
        self.settings = settings
        self.vocabulary: int | None = None  # number of token ids; None without a tokenizer
        self.eos_id: int | None = None  # the end token, if the tokenizer names one
        if settings.tokenizer is None:
            return
        self.files = read_tokenizer(settings.tokenizer)
        self.tokenizer = load_tokenizer(self.files)
        self._plain = cache(partial(load_tokenizer, self.files, special="text"))
        ids = self.tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocabulary = 1 + max(ids, default=-1)  # ids may have gaps
        eos = self.files.special.get("eos_token")
        if eos is not None:
            self.eos_id = self.tokenizer.token_to_id(eos)
            if self.eos_id is None and settings.eos == "append":
                raise SettingsError(
                    f"the end token {eos!r} is not in the vocabulary",
                    path=self.files.path,
                    remedy="correct tokenizer_config.json",
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (type(self), self.settings, self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the tokenizer's files, the template and every setting that can change a
        token.
        """
        return fingerprint_of(self.settings)

    @property
    def backend(self) -> str | None:
        """The library that makes ids, if it is not `tokenizers`."""
        if self.settings.tokenizer is None or self._backend is None:
            return None
        return "fastokens"

    def encode(self, rows: Sequence[Row], form: ChatForm = _ANY_FORM) -> EncodedChats:
        """Encode rows of this form, in their order.

        Errors of rows are not raised but listed in `rejected`.

        Memory is O(rows); give a few hundred at a time. Raises `SettingsError` if
        a row needs a template or an end token and there is none.
        """
        drafts: list[_SequenceDraft] = []
        rejected: list[Rejected] = []
        words: dict[int, RowWords] = {}
        compared = 0
        waiting: deque[tuple[list[_SequenceDraft], Future[FlatIds | list[Encoding]]]] = deque()
        # encodes some rows while the next are rendered
        with ThreadPoolExecutor(1, "headrace-encode") as pool:
            for begin in range(0, len(rows), _ROWS_AT_ONCE):
                some = rows[begin : begin + _ROWS_AT_ONCE]
                rendered = self._render(some, begin, form, rejected, words)
                drafts += rendered
                texts = [draft for draft in rendered if draft.ids is None]
                waiting.append((texts, pool.submit(self._encode, [draft.text for draft in texts])))
                if len(waiting) > 2:
                    compared += self._finish(*waiting.popleft())
            while waiting:
                compared += self._finish(*waiting.popleft())
        encoded = self._encoded(drafts, rejected, compared)
        for rejection in encoded.rejected:
            words[rejection.row] = left_out(rows[rejection.row])
        return replace(encoded, words=[words[number] for number in range(len(rows))])

    def _encoded(
        self, drafts: Sequence[_SequenceDraft], rejected: list[Rejected], compared: int
    ) -> EncodedChats:
        """Join finished drafts.

        Those with nothing to train on are rejected, unless the settings keep them.
        """
        lengths = np.array([len(draft.ids) for draft in drafts], np.int64)
        tokens = concatenated((draft.ids for draft in drafts), np.int32)
        mask = concatenated((draft.mask for draft in drafts), np.uint8)
        usable = lengths > 0
        if self.settings.nothing_trained == "drop":
            sums = offsets_from_lengths(mask)
            usable &= np.diff(sums[offsets_from_lengths(lengths)]) > 0
        sequences = list(compress(drafts, usable.tolist()))
        if len(sequences) < len(drafts):
            remaining = np.repeat(usable, lengths)
            tokens = tokens[remaining]
            mask = mask[remaining]
            lengths = lengths[usable]
            rows_left = {draft.row for draft in sequences}
            for row in {draft.row for draft in drafts} - rows_left:
                detail = "no token of the row may be trained on"
                rejected.append(Rejected(row, "nothing_trained", detail))
        chats = [draft.chat for draft in sequences if draft.chat is not None]
        roles = [message["role"] for chat in chats for message in chat.messages]
        weights = [weight for chat in chats for weight in chat.weights]
        return EncodedChats(
            tokens=tokens,
            mask=mask,
            lengths=lengths,
            rows=np.array([draft.row for draft in sequences], np.int64),
            rejected=sorted(rejected, key=lambda rejection: rejection.row),
            contents=[draft.content for draft in sequences],
            special_text=len({draft.row for draft in sequences if draft.special_text}),
            compared=compared,
            messages=Counter(zip(roles, weights, strict=True)),
            chats=len(chats),
            transcripts=sum(draft.transcript for draft in sequences),
            empty_answers=sum(map(_empty_answers, chats)),
        )

    def texts(self, encoded: EncodedChats) -> list[list[tuple[str, int]]]:
        """Decode each sequence for display, in parts of one mask value each: (text, 0 or 1)."""
        sequences = []
        for begin, end in pairwise(encoded.offsets.tolist()):
            ids = encoded.tokens[begin:end]
            mask = encoded.mask[begin:end]
            cuts = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
            parts = [ids[first:last].tolist() for first, last in pairwise(cuts)]
            decoded = self.tokenizer.decode_batch(parts, skip_special_tokens=False)
            sequences.append(
                [(text, int(mask[first])) for text, first in zip(decoded, cuts, strict=False)]
            )
        return sequences

    def _render(
        self,
        rows: Sequence[Row],
        first: int,
        form: ChatForm,
        rejected: list[Rejected],
        words: dict[int, RowWords],
    ) -> list[_SequenceDraft]:
        """Return the drafts of rows, numbered from `first`; rows without a sequence are added to
        `rejected`. Accounts for the texts of rows in `words`.
        """
        drafts: list[_SequenceDraft] = []
        chats: list[tuple[int, Conversation, SpecialText]] = []
        contents: dict[int, bytes] = {}
        filters = [(name, frozenset(words)) for name, words in form.filters.items()]
        for number, row in enumerate(rows, first):
            try:
                sample, layout = self._read(row, form, filters)
                contents[number] = content_of(sample)
                words[number] = self._words_beside(row, sample, layout, form)
                if isinstance(sample, Conversation):
                    chats.append((number, *self._ready(sample)))
                elif isinstance(sample, Text):
                    drafts.append(self._draft_of_text(number, sample))
                else:
                    drafts.append(self._draft_of_tokens(number, sample))
            except RowRejected as wrong:
                rejected.append(Rejected(number, wrong.reason, wrong.detail))
        if chats:
            drafts += self._render_chats(chats, rejected, words)
        drafts.sort(key=lambda draft: draft.row)
        for draft in drafts:
            draft.content = contents[draft.row]
        return drafts

    def _render_chats(
        self,
        chats: Sequence[tuple[int, Conversation, SpecialText]],
        rejected: list[Rejected],
        words: dict[int, RowWords],
    ) -> list[_SequenceDraft]:
        """Return the drafts of conversations, each with its row; see `_render`."""
        drafts: list[_SequenceDraft] = []
        outcomes = self.renderer.render([chat for _, chat, _ in chats])
        for (number, chat, special), outcome in zip(chats, outcomes, strict=True):
            try:
                if isinstance(outcome, RowRejected):
                    raise outcome
                parts = sequences_of(chat, self.settings.reasoning, self.settings.train_on)
                drafts += [  # all of a row, or none
                    self._draft_of_chat(number, special, part, rendered)
                    for part, rendered in zip(parts, outcome, strict=True)
                ]
                self._account(words[number], chat, parts, outcome)
            except RowRejected as wrong:
                rejected.append(Rejected(number, wrong.reason, wrong.detail))
        return drafts

    def _words_beside(self, row: Any, sample: Sample, layout: str, form: ChatForm) -> RowWords:
        """Account for the columns of a row that are not its messages."""
        beside = texts_beside(row, sample, layout, form.mapping)
        words = RowWords(beside.fates)
        if beside.unread_prompt is not None and beside.unread_prompt not in self.settings.unread:
            words.faults["unread_prompt"] = f"column {beside.unread_prompt}"
        return words

    def _account(
        self,
        words: RowWords,
        chat: Conversation,
        parts: Sequence[Conversation],
        rendered: Sequence[Rendered],
    ) -> None:
        """Account for the messages of a row, which has these sequences."""
        self._find_unread_parts(words, chat)
        removed = max(rendering.tools_removed for rendering in rendered)
        if removed:
            words.remove("tools", removed)
        reasoning = self.settings.reasoning
        moves = list(chain.from_iterable(rendering.moves for rendering in rendered))
        weights = parts[0].weights
        plain = not moves and reasoning != "drop" and len(parts) == 1
        if plain and len(weights) == len(chat.texts):
            words.texts = chat.texts
            words.weights = weights
            return
        sequences = []
        for part, rendering in zip(parts, rendered, strict=True):
            sequences.append((part.weights, rendering.moves))
        words.known += fates_of_messages(chat.texts, sequences, reasoning == "drop")
        since = 0
        if reasoning != "every_user_turn":  # the last turn that is answered
            answers = np.flatnonzero(chat.weights)
            since = last_user(chat.messages[: answers[-1]]) if len(answers) else 0
        for move in lost_reasoning(sequences):
            if move.owner >= since and chat.weights[move.owner]:
                words.faults["reasoning_removed"] = f"message {move.owner + 1}"
        for move in moves:
            if move.fate != "unread" or move.field in self.settings.unread:
                continue
            value = chat.messages[move.owner][move.field]
            if holds_words(value) or is_flag(move.field, value):
                words.faults["unread_key"] = f"message {move.owner + 1}, key {move.field}"

    def _find_unread_parts(self, words: RowWords, chat: Conversation) -> None:
        """Note words under keys of typed parts."""
        for owner, entries in enumerate(chat.texts):
            for text_type, _, key in entries[1:]:  # they come after the text of the parts
                if text_type == "parts" and key and key not in self.settings.unread:
                    words.faults["unread_key"] = f"message {owner + 1}, key {key} of a part"

    def _read(
        self, row: Row, form: ChatForm, filters: Sequence[tuple[str, frozenset[str]]]
    ) -> ReadRow:
        if isinstance(row, BrokenRow):
            raise RowRejected(row.reason, row.detail)
        if filters:
            filter_row(row, filters)
        read = read_row(row, form.layout, form.mapping, form.filters, form.roles)
        if self.settings.tokenizer is None and not isinstance(read.sample, TokenSample):
            raise SettingsError(
                f"rows with {', '.join(sorted(row))} are not tokens yet, and"
                f" {setting_name('tokenizer')} is not given",
                remedy="give a tokenizer.json, its directory or ORG/NAME",
            )
        return read

    def _ready(self, chat: Conversation) -> tuple[Conversation, SpecialText]:
        """Return a conversation as the template gets it, and how its text of a special token is
        encoded.
        """
        special = self._specials.first_in_chat(chat)
        rule = self.settings.special_text
        if special is None:
            return chat, "none"
        if rule == "control":
            return chat, "control"
        if rule == "drop":
            raise RowRejected("special_text", f"a message holds {special}")
        if not self._adds_up:
            raise RowRejected(
                "special_text",
                f"a message holds {special}; this tokenizer cannot encode it on its own",
            )
        return self._specials.hidden(chat), "text"

    def _draft_of_chat(
        self, row: int, special: SpecialText, chat: Conversation, rendered: Rendered
    ) -> _SequenceDraft:
        text = rendered.text
        spans = rendered.spans
        plain = list[Span]()
        if special == "text":
            text, spans, plain = self._specials.restored(text, spans)
        check_text(text)
        draft = _SequenceDraft(
            row, text, spans, special_text=special != "none", chat=chat, plain=plain
        )
        if special == "text":
            ids, runs = self._in_parts(text, spans, plain)
            draft.ids = np.array(ids, np.int32)
            draft.mask = mask_of_runs(runs, len(ids))
        return draft

    def _draft_of_text(self, row: int, sample: Text) -> _SequenceDraft:
        check_text(sample.text)
        append = self.settings.eos == "append"
        if append and self.eos_id is None:
            raise SettingsError(
                f"has no end token that {setting('eos', 'append')} could append to texts",
                path=self.files.path,
                remedy=f"give {setting('eos', 'none')} or a tokenizer_config.json",
            )
        spans = []
        if sample.trained_from < len(sample.text):
            spans = [(sample.trained_from, len(sample.text))]
        holds_text = bool(sample.text)
        begin = self.settings.bos == "tokenizer" and holds_text
        draft = _SequenceDraft(row, sample.text, spans, eos=append and holds_text, bos=begin)
        draft.transcript = not sample.trained_from and is_transcript(sample.text)
        return draft

    def _draft_of_tokens(self, row: int, sample: TokenSample) -> _SequenceDraft:
        low = sample.ids.min()
        high = sample.ids.max()
        if not 0 <= low <= high < (self.vocabulary or 1 << 31):
            if self.vocabulary:
                vocabulary = f", the vocabulary has {self.vocabulary:,}"
            else:
                vocabulary = ""
            raise RowRejected("bad_tokens", f"ids are {low} to {high}{vocabulary}")
        return _SequenceDraft(row, ids=sample.ids.astype(np.int32), mask=sample.mask)

    def _encode(self, texts: list[str]) -> FlatIds | list[Encoding]:
        if not texts:  # there may be no tokenizer
            return []
        if self._backend is not None and self._backend.trusted:
            return self._backend.encode(texts)
        if self._token_bytes is not None:  # offsets, which take a fifth of the time, are not needed
            return flat_ids(self.tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        return self.tokenizer.encode_batch(texts, add_special_tokens=False)

    def _finish(
        self, drafts: Sequence[_SequenceDraft], future: Future[FlatIds | list[Encoding]]
    ) -> int:
        """Set ids and masks of texts. Returns the number of texts that the backend compared."""
        encoded = future.result()
        compared = 0
        if isinstance(encoded, FlatIds):
            compared = encoded.compared
            drafts = self._set_by_bytes(drafts, encoded)
            texts = [draft.text for draft in drafts]
            encoded = []
            if texts:
                encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        for draft, encoding in zip(drafts, encoded, strict=True):
            self._set_by_offsets(draft, encoding)
        return compared

    def _set_by_bytes(
        self, drafts: Sequence[_SequenceDraft], encoded: FlatIds
    ) -> list[_SequenceDraft]:
        """Set ids and masks where the bytes of tokens decide them; return the other drafts."""
        assert self._token_bytes is not None  # else there are offsets
        texts = [draft.text for draft in drafts]
        spans = [draft.spans for draft in drafts]
        masked = mask_by_bytes(self._token_bytes, texts, spans, encoded)
        ends = encoded.ends.tolist()
        others = []
        first = 0
        for draft, last, certain in zip(drafts, ends, masked.certain.tolist(), strict=True):
            if certain:
                self._set(draft, encoded.ids[first:last], masked.mask[first:last])
            else:
                others.append(draft)
            first = last
        return others

    def _set_by_offsets(self, draft: _SequenceDraft, encoding: Encoding) -> None:
        ids = encoding.ids
        runs = runs_by_offsets(encoding, draft.spans, len(draft.text))
        if runs is None and self._adds_up:
            ids, runs = self._in_parts(draft.text, draft.spans)
        elif runs is None:
            starts = np.array([begin for begin, _ in encoding.offsets], np.int64)
            runs = [tuple(np.searchsorted(starts, span).tolist()) for span in draft.spans]
        self._set(draft, np.fromiter(ids, np.int32, len(ids)), mask_of_runs(runs, len(ids)))

    def _set(self, draft: _SequenceDraft, ids: I32, mask: U8) -> None:
        if draft.bos and len(self._begin):
            ids = np.concatenate([self._begin, ids])
            mask = np.concatenate([np.zeros(len(self._begin), np.uint8), mask])
        if draft.eos:
            assert self.eos_id is not None  # checked in _draft_of_text
            ids = np.append(ids, np.int32(self.eos_id))
            mask = np.append(mask, np.uint8(1))
        draft.ids = ids
        draft.mask = mask

    def _in_parts(
        self, text: str, spans: Sequence[Span], plain: Sequence[Span] = ()
    ) -> tuple[list[int], list[Span]]:
        """Return ids and trained runs of a text cut at its borders.

        plain: spans that stay text, not special tokens.
        """
        cuts = sorted({0, len(text), *chain.from_iterable(spans), *chain.from_iterable(plain)})
        parts = [text[first:last] for first, last in pairwise(cuts)]
        encodings = []
        if parts:
            encodings = self.tokenizer.encode_batch(parts, add_special_tokens=False)
        plain_starts = {begin for begin, _ in plain}
        ids: list[int] = []
        token_at = {0: 0}
        for (begin, end), encoding in zip(pairwise(cuts), encodings, strict=True):
            if begin in plain_starts:
                ids += self._ids_as_text(text[begin:end])
            else:
                ids += encoding.ids
            token_at[end] = len(ids)
        return ids, [(token_at[first], token_at[last]) for first, last in spans]

    def _ids_as_text(self, text: str) -> list[int]:
        """Encode the text of a special token as ordinary text.

        Raises `RowRejected` if that is not possible.
        """
        ids = self._plain().encode(text, add_special_tokens=False).ids
        if not self._special_ids.isdisjoint(ids):
            raise RowRejected(
                "special_text",
                f"a message holds {text}; this tokenizer can encode it only as a token",
            )
        return ids

    @cached_property
    def _token_bytes(self) -> TokenBytes | None:
        if self._adds_up:
            return token_bytes_of(self.tokenizer)
        return None

    @cached_property
    def _backend(self) -> Fastokens | None:
        """The backend that gives ids without offsets; None for `tokenizers`."""
        return backend_of(
            self.settings.tokenizer_backend, self.tokenizer, self._token_bytes, self.files.json_text
        )

    @cached_property
    def _adds_up(self) -> bool:
        """Return whether a text cut after a line break has the tokens of its parts."""
        texts = ["a b\nc d", "a b\n", "c d"]
        complete, first, second = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return complete.ids == first.ids + second.ids

    @cached_property
    def _begin(self) -> I32:
        """The tokens that the tokenizer itself puts before a text."""
        plain = self.tokenizer.encode("x", add_special_tokens=False).ids
        complete = self.tokenizer.encode("x", add_special_tokens=True).ids
        for start in range(len(complete)):
            if complete[start : start + len(plain)] == plain:
                return np.array(complete[:start], np.int32)
        return np.empty(0, np.int32)

    @cached_property
    def _specials(self) -> Specials:
        added = self.tokenizer.get_added_tokens_decoder().values()
        named = self.files.special
        tokens = [*(token.content for token in added if token.special), *named.values()]
        return Specials(tokens, self.ends, named.get("bos_token"))

    @cached_property
    def ends(self) -> list[str]:
        """The tokens that end generation: of generation_config.json, and the end token."""
        tokens = [self.files.special.get("eos_token", "")]
        for number in self.files.end_ids:
            tokens.append(self.tokenizer.id_to_token(number) or "")
        return [token for token in dict.fromkeys(tokens) if token]

    @cached_property
    def certificates(self) -> dict[str, dict[str, Any] | None]:
        """What the templates do, by name; see `certificate`. Empty without a template."""
        if self.settings.tokenizer is None:
            return {}
        if self.settings.chat_template is None and not self.files.templates:
            return {}
        return self.renderer.certificates()

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        ids = (self.tokenizer.token_to_id(token) for token in self._specials.tokens)
        return frozenset(number for number in ids if number is not None)

    @cached_property
    def renderer(self) -> ProcessRenderer:
        """Build the renderer of conversations.

        Raises `SettingsError` without a template, `MissingExtra`.
        """
        from headrace.packing.chats.render_process import ProcessRenderer, RenderSettings

        sources = self.files.templates
        if self.settings.chat_template is not None:
            sources = {"default": template_text(self.settings.chat_template)}
        if not sources:
            raise SettingsError(
                f"has no chat template, and {setting_name('chat_template')} is not given",
                path=self.files.path,
                remedy="give one",
            )
        return ProcessRenderer(
            RenderSettings(
                templates=sources,
                special=self.files.special,
                values=dict(self.settings.template_values),
                day=self.settings.date,
                specials=self._specials,
                reasoning=self.settings.reasoning,
                train_on=self.settings.train_on,
            )
        )


def _empty_answers(chat: Conversation) -> int:
    """Count trained messages that say nothing."""
    empty = 0
    for message, weight in zip(chat.messages, chat.weights, strict=True):
        content = message["content"]
        if weight and (not content or content.isspace()):
            empty += "tool_calls" not in message and not has_reasoning(message)
    return empty


def _in_this_process(
    encoder_class: type[ChatEncoder], settings: ChatSettings, fingerprint: str
) -> ChatEncoder:
    """Build the encoder anew, because tokenizers are not pickled.

    Raises `InputError` if its fingerprint differs.
    """
    encoder = encoder_class(settings)
    if encoder.fingerprint != fingerprint:
        raise InputError(
            f"on {platform.node()}, tokenizer or template is not the one that the run began with"
            f" (digest {encoder.fingerprint[:12]}, not {fingerprint[:12]})",
            path=settings.tokenizer,
            remedy="give all machines the same files",
        )
    return encoder
