"""Encode rows of chats as token ids with a loss mask, a batch at a time.

Whole conversations are encoded in batches: byte-level BPE by a backend without offsets (`backends`), others by the
tokenizer's own threads. The mask comes from the character spans of `render` and the bytes or offsets of tokens. A token
trains if all its characters are in a span. If a token would straddle the border of a span, the text is encoded again in
parts cut at the borders, so a model trains on what it would produce after the prompt. Tokenizers whose parts do not add
up keep the whole text's tokens; a straddling token then trains if it begins inside the span. Text of a special token
inside a message stays text (see `marks.Specials`).
"""

from __future__ import annotations

import platform
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import chain, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headrace.arrays import I32, I64, U8
from headrace.bins.bins import offsets_of
from headrace.errors import InputError, SettingsError
from headrace.packing.chats.backends import Backend, backend_of
from headrace.packing.chats.byte_level import ByteLevel, Ids, byte_level_of, mask_of, masks_by_bytes, token_runs
from headrace.packing.chats.images import ImageCounter, PlacedImage, size_of, uncounted
from headrace.packing.chats.layouts import Conversation, Text, Tokens, content_of, sample_of
from headrace.packing.chats.marks import Span, Specials
from headrace.packing.chats.reader import BrokenRow, Row, filter_row
from headrace.packing.chats.settings import (
    ChatSettings,
    RowForm,
    fingerprint_of,
    image_counter,
    load_tokenizer,
    read_tokenizer,
    template_text,
)
from headrace.packing.chats.turns import Border, sequences_of
from headrace.packing.chats.words import Rejected, RowRejected, check_text

if TYPE_CHECKING:
    from tokenizers import Encoding

    from headrace.packing.chats.render import Rendered
    from headrace.packing.chats.render_process import ProcessRenderer

Special = Literal["none", "text", "control"]

_ROWS_AT_ONCE = 128  # rendered while the previous rows are encoded
_ANY_FORM = RowForm()
_ROLE = itemgetter("role")


@dataclass(frozen=True, eq=False)
class Encoded:
    """Encoded sequences, end to end. tokens int32 and mask uint8 [sum of lengths], lengths and rows int64 [n].

    rows: index of the input row of each sequence, ascending. rejected: the rows without a sequence, in order.
    special_text: number of rows whose messages hold the text of a special token. turns: borders of turns, in tokens, by
    sequence that will be cut; see `turns`. contents: digest of each row's user turns, see `content_of`.
    tally: numbers of texts that a library's backend compared, and that it left to `tokenizers`.
    messages: number of messages in the sequences of conversations, by role and by weight, 1 (trained) or 0.
    """

    tokens: I32
    mask: U8
    lengths: I64
    rows: I64
    rejected: list[Rejected]
    contents: list[bytes]
    special_text: int = 0
    turns: Mapping[int, list[Border]] = field(default_factory=dict)
    tally: Mapping[str, int] = field(default_factory=dict)
    images: Sequence[PlacedImage] = ()
    messages: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @property
    def offsets(self) -> I64:
        """Return the start of each sequence, and the end of the last; int64 [n + 1]."""
        return offsets_of(self.lengths)


@dataclass(slots=True)
class _Item:
    """A sequence in progress: text with spans, or ids with a mask. eos: whether the end token is appended.

    special_text: whether a message holds the text of a special token. plain: spans of such texts.
    chat: the conversation that was rendered. images: number of tokens of each of its images.
    """

    row: int
    text: str = ""
    spans: list[Span] = field(default_factory=list)
    eos: bool = False
    ids: Any = None
    mask: Any = None
    special_text: bool = False
    content: bytes = b""
    chat: Conversation | None = None
    plain: Sequence[Span] = ()
    images: Sequence[int] = ()


class ChatEncoder:
    """Encoder of rows with one tokenizer and template; equal rows and settings give equal tokens on any machine.

    Thread-safe. A pickled encoder loads its own tokenizer in the other process. Without a tokenizer, rows must be
    tokens already. Raises `SettingsError`, `InputError` and `MissingExtra` when built.
    """

    def __init__(self, settings: ChatSettings) -> None:
        self.settings = settings
        self.vocabulary: int | None = None  # number of token ids; None without a tokenizer
        self.images: ImageCounter | None = None
        self.eos_id: int | None = None  # the end token, if the tokenizer names one
        if settings.tokenizer is None:
            return
        self.files = read_tokenizer(settings.tokenizer)
        backend = settings.tokenizer_backend
        self.tokenizer = load_tokenizer(self.files, extra="fastokens" if backend == "fastokens" else "chat")
        self._plain = cache(partial(load_tokenizer, self.files, special="text"))
        known = self.tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = 1 + max(known.values(), default=-1)  # ids may have gaps
        eos = self.files.special.get("eos_token")
        self.images = image_counter(settings, self.files)
        self.image_id = None if self.images is None else self.tokenizer.token_to_id(self.images.token)
        if self.images is not None and self.image_id is None:
            raise SettingsError(
                f"{self.files.path}: has no token {self.images.token!r}, which stands for images with "
                f"images={settings.images!r}; name another rule"
            )
        self.eos_id = None if eos is None else self.tokenizer.token_to_id(eos)
        if settings.eos == "append" and eos is not None and self.eos_id is None:
            raise SettingsError(
                f"{self.files.path}: the end token {eos!r} is not in the vocabulary; correct tokenizer_config.json"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (type(self), self.settings, self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the tokenizer's files, the template and every setting that can change a token."""
        return fingerprint_of(self.settings)

    def encode(
        self,
        rows: Sequence[Row],
        form: RowForm = _ANY_FORM,
        *,
        cut_over: int | None = None,
        directory: Path | None = None,
    ) -> Encoded:
        """Encode rows of this form, in their order. Errors of rows are not raised but listed in `rejected`.

        cut_over: find the borders of turns, as far as they are certain, in conversations with more tokens than this.
        directory: the base of relative paths of images, unless the settings name one. Memory is O(rows); give a few
        hundred at a time. Raises `SettingsError` if a row needs a template or an end token and there is none.
        """
        items: list[_Item] = []
        rejected: list[Rejected] = []
        tally: Counter[str] = Counter()
        waiting: deque[tuple[list[_Item], Future[list[Encoding]]]] = deque()
        with ThreadPoolExecutor(1, "headrace-encode") as encoder:  # encodes some rows while the next are rendered
            for begin in range(0, len(rows), _ROWS_AT_ONCE):
                found = self._items(rows[begin : begin + _ROWS_AT_ONCE], begin, form, directory, rejected)
                texts = [item for item in found if item.ids is None]
                items += found
                if self._backend is not None:  # a thread would not help: it mostly holds the interpreter lock
                    encoded = self._backend.encode([item.text for item in texts])
                    tally.update(backend_compared=encoded.compared, backend_instead=encoded.instead)
                    self._fill_flat(texts, encoded)
                    continue
                waiting.append((texts, encoder.submit(self._encode, [item.text for item in texts])))
                if len(waiting) > 2:
                    self._fill(*waiting.popleft())
            while waiting:
                self._fill(*waiting.popleft())
        kept: list[_Item] = []
        images: list[PlacedImage] = []
        dead: set[int] = set()
        for item in items:
            placed = self._placed(item, len(kept))
            if len(item.ids) and (self.settings.nothing_trained == "keep" or item.mask.any()):
                kept.append(item)
                images += placed
            else:
                dead.add(item.row)
        dead -= {item.row for item in kept}
        rejected += (Rejected(row, "nothing_trained", "no token of the row may be trained on") for row in dead)
        rejected.sort(key=lambda each: each.row)
        chats = (item.chat for item in kept if item.chat is not None)
        pairs = (zip(map(_ROLE, chat.messages), chat.weights, strict=True) for chat in chats)
        return Encoded(
            tokens=np.concatenate([np.empty(0, np.int32), *(item.ids for item in kept)]),
            mask=np.concatenate([np.empty(0, np.uint8), *(item.mask for item in kept)]),
            lengths=np.array([len(item.ids) for item in kept], np.int64),
            rows=np.array([item.row for item in kept], np.int64),
            rejected=rejected,
            contents=[item.content for item in kept],
            special_text=len({item.row for item in kept if item.special_text}),
            turns={} if cut_over is None else self._turns(kept, cut_over),
            tally=tally,
            images=images,
            messages=Counter(chain.from_iterable(pairs)),
        )

    def texts(self, encoded: Encoded) -> list[list[tuple[str, int]]]:
        """Decode each sequence for display, in parts of one mask value each: (text, 0 or 1)."""
        found = []
        for begin, end in pairwise(encoded.offsets.tolist()):
            ids, mask = encoded.tokens[begin:end], encoded.mask[begin:end]
            cuts = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
            parts = [ids[first:last].tolist() for first, last in pairwise(cuts)]
            decoded = self.tokenizer.decode_batch(parts, skip_special_tokens=False)
            found.append([(text, int(mask[first])) for text, first in zip(decoded, cuts, strict=False)])
        return found

    def _placed(self, item: _Item, sequence: int) -> list[PlacedImage]:
        """Find the image placeholders of a sequence, and mask them as not trained."""
        if item.chat is None or not item.images:
            return []
        places, counts = np.flatnonzero(item.ids == self.image_id), np.array(item.images)
        item.mask[places] = 0
        starts = places[np.cumsum(counts) - counts].tolist()
        references = [image.reference for image in item.chat.images]
        return [
            PlacedImage(sequence, start, count, number, reference)
            for number, (start, count, reference) in enumerate(zip(starts, item.images, references, strict=True))
        ]

    def _items(
        self, rows: Sequence[Row], first: int, form: RowForm, directory: Path | None, rejected: list[Rejected]
    ) -> list[_Item]:
        """Return the sequences of rows, numbered from `first`; rows without a sequence are added to `rejected`."""
        items: list[_Item] = []
        filters = [(name, frozenset(words)) for name, words in form.filters.items()]
        chats: list[tuple[int, Conversation, Special, list[int]]] = []
        directory = self.settings.image_directory or directory
        contents: dict[int, bytes] = {}
        for place, row in enumerate(rows, first):
            try:
                if isinstance(row, BrokenRow):
                    raise RowRejected(row.reason, row.detail)
                if filters:
                    filter_row(row, filters)
                sample = sample_of(row, form.layout, form.mapping, form.filters)
                if self.settings.tokenizer is None and not isinstance(sample, Tokens):
                    raise SettingsError(
                        f"rows with {', '.join(sorted(row))} are not tokens yet; give tokenizer= with a "
                        "tokenizer.json, its directory or ORG/NAME"
                    )
                contents[place] = content_of(sample)
                if isinstance(sample, Conversation):
                    chats.append((place, *self._ready(sample), self._counts(sample, directory)))
                elif isinstance(sample, Text):
                    items.append(self._raw(place, sample))
                else:
                    low, high = sample.ids.min(), sample.ids.max()
                    if not 0 <= low <= high < (self.vocabulary or 1 << 31):
                        known = f", the vocabulary has {self.vocabulary:,}" if self.vocabulary else ""
                        raise RowRejected("bad_tokens", f"ids are {low} to {high}{known}")
                    items.append(_Item(place, ids=sample.ids.astype(np.int32), mask=sample.mask))
            except RowRejected as wrong:
                rejected.append(Rejected(place, wrong.reason, wrong.detail))
        outcomes = self.renderer.render([chat for _, chat, *_ in chats]) if chats else []
        for (place, chat, special, counts), outcome in zip(chats, outcomes, strict=True):
            try:
                if isinstance(outcome, RowRejected):
                    raise outcome
                parts = sequences_of(chat, self.settings.reasoning)
                items += [self._rendered(place, special, counts, *each) for each in zip(parts, outcome, strict=True)]
            except RowRejected as wrong:
                rejected.append(Rejected(place, wrong.reason, wrong.detail))
        if len(chats) < len(items):
            items.sort(key=lambda item: item.row)
        for item in items:
            item.content = contents[item.row]
        return items

    def _ready(self, chat: Conversation) -> tuple[Conversation, Special]:
        """Return a conversation as the template gets it, and how it treats the text of a special token."""
        special, wanted = self._specials.first_in_chat(chat), self.settings.special_text
        if special is None or wanted == "control":
            return chat, "control" if special else "none"
        if wanted == "drop" or not self._adds_up:
            why = "" if wanted == "drop" else "; this tokenizer cannot encode it on its own"
            raise RowRejected("special_text", f"a message holds {special}{why}")
        return self._specials.hidden(chat), "text"

    def _counts(self, chat: Conversation, directory: Path | None) -> list[int]:
        """Count the tokens of each image of a conversation."""
        if not chat.images:
            return []
        if self.images is None:
            raise uncounted(
                f"the row holds images ({len(chat.images)}); say how they are counted, e.g. with images=qwen2_vl"
            )
        return [self.images.count(*size_of(image, directory)) for image in chat.images]

    def _finished(
        self, text: str, spans: Sequence[Span], counts: Sequence[int], *, hidden: bool
    ) -> tuple[str, Sequence[Span], Sequence[Span]]:
        """Put image placeholders and hidden special tokens into a rendering: (text, spans, spans of these tokens)."""
        if counts and self.images is not None:
            text, spans = self.images.widened(text, spans, counts)
        return self._specials.restored(text, spans) if hidden else (text, spans, ())

    def _rendered(self, row: int, special: Special, counts: list[int], chat: Conversation, rendered: Rendered) -> _Item:
        counts = counts[: len(chat.images)]
        text, spans, plain = self._finished(rendered.text, rendered.spans, counts, hidden=special == "text")
        check_text(text)
        item = _Item(row, text, [*spans], special_text=special != "none", chat=chat, plain=plain, images=counts)
        if special == "text":
            ids, runs = self._in_parts(text, spans, plain)
            item.ids, item.mask = np.array(ids, np.int32), mask_of(runs, len(ids))
        return item

    def _turns(self, items: Sequence[_Item], most: int) -> dict[int, list[Border]]:
        """Find the borders of turns in conversations of more than `most` tokens; drop borders inside a token."""
        long = [(number, item) for number, item in enumerate(items) if item.chat is not None and len(item.ids) > most]
        outcomes = self.renderer.render([item.chat for _, item in long if item.chat], borders=True) if long else []
        found: dict[int, list[Border]] = {}
        for (number, item), outcome in zip(long, outcomes, strict=True):
            if isinstance(outcome, RowRejected) or not outcome[0].borders:
                continue
            rendered = outcome[0]
            at: Sequence[Span] = [(border.at, border.at) for border in rendered.borders]
            text, at, _ = self._finished(rendered.text, at, item.images, hidden=bool(item.plain))
            (encoding,) = self._encode([text])
            if encoding.ids == item.ids.tolist():
                begins = {begin: token for token, (begin, _) in reversed([*enumerate(encoding.offsets)])}
                begins.setdefault(len(text), len(encoding.ids))
                tokens = [begins.get(place) for place, _ in at]
            else:
                ids, runs = self._in_parts(text, [*item.spans, *at], item.plain)
                if ids != item.ids.tolist():
                    continue
                tokens = [first for first, _ in runs[len(item.spans) :]]
            if tokens[0] is not None:
                found[number] = [
                    Border(token, border.user)
                    for token, border in zip(tokens, rendered.borders, strict=True)
                    if token is not None
                ]
        return found

    def _raw(self, row: int, sample: Text) -> _Item:
        check_text(sample.text)
        append = self.settings.eos == "append"
        if append and self.eos_id is None:
            raise SettingsError(
                f"{self.files.path}: has no end token to append to texts; give eos='none' or a tokenizer_config.json"
            )
        spans = [(sample.trained_from, len(sample.text))] if sample.trained_from < len(sample.text) else []
        return _Item(row, sample.text, spans, append and bool(sample.text))

    def _encode(self, texts: list[str]) -> list[Encoding]:
        return self.tokenizer.encode_batch(texts, add_special_tokens=False) if texts else []

    def _fill_flat(self, items: Sequence[_Item], encoded: Ids) -> None:
        """Set ids and masks of texts from the bytes of their tokens, or from offsets if the bytes do not decide."""
        assert self._level is not None  # there is a backend
        found = masks_by_bytes(self._level, [item.text for item in items], [item.spans for item in items], encoded)
        for item, own in zip(items, found, strict=True):
            if own is None:
                (encoding,) = self._encode([item.text])
                self._fill_one(item, encoding)
                continue
            item.ids, item.mask = own
            if item.eos:
                assert self.eos_id is not None  # checked in _raw
                item.ids, item.mask = np.append(item.ids, np.int32(self.eos_id)), np.append(item.mask, np.uint8(1))

    def _fill(self, items: Sequence[_Item], encoded: Future[list[Encoding]]) -> None:
        """Set ids and masks of texts."""
        for item, encoding in zip(items, encoded.result(), strict=True):
            self._fill_one(item, encoding)

    def _fill_one(self, item: _Item, encoding: Encoding) -> None:
        ids = encoding.ids
        runs = token_runs(encoding, item.spans, len(item.text), len(ids))
        if runs is None and self._adds_up:
            ids, runs = self._in_parts(item.text, item.spans)
        elif runs is None:
            starts = np.array([begin for begin, _ in encoding.offsets], np.int64)
            runs = [tuple(np.searchsorted(starts, span).tolist()) for span in item.spans]
        if item.eos:
            runs = [*runs, (len(ids), len(ids) + 1)]
            ids.append(self.eos_id)  # type: ignore[arg-type]  # checked in _raw
        item.ids, item.mask = np.fromiter(ids, np.int32, len(ids)), mask_of(runs, len(ids))

    def _in_parts(self, text: str, spans: Sequence[Span], plain: Sequence[Span] = ()) -> tuple[list[int], list[Span]]:
        """Return ids and trained runs of a text cut at its borders. plain: spans that stay text, not special tokens."""
        cuts = sorted({0, len(text), *chain.from_iterable(spans), *chain.from_iterable(plain)})
        parts = [text[first:last] for first, last in pairwise(cuts)]
        ids: list[int] = []
        at = {0: 0}
        begins = {begin for begin, _ in plain}
        for (begin, cut), encoding in zip(pairwise(cuts), self._encode(parts), strict=True):
            own = encoding.ids
            if begin in begins:
                own = self._plain().encode(text[begin:cut], add_special_tokens=False).ids
                if not self._special_ids.isdisjoint(own):
                    raise RowRejected(
                        "special_text",
                        f"a message holds {text[begin:cut]}; this tokenizer can encode it only as a token",
                    )
            ids += own
            at[cut] = len(ids)
        return ids, [(at[first], at[last]) for first, last in spans]

    @cached_property
    def _level(self) -> ByteLevel | None:
        return byte_level_of(self.tokenizer) if self._adds_up else None

    @cached_property
    def _backend(self) -> Backend | None:
        """The encoder that gives ids without offsets; None without a tokenizer, or if offsets are needed."""
        if self.settings.tokenizer is None:
            return None
        return backend_of(self.settings.tokenizer_backend, self._level, self.files.json_text)

    @cached_property
    def _adds_up(self) -> bool:
        """Return whether a text cut after a line break has the tokens of its parts."""
        whole, *parts = (
            self.tokenizer.encode(text, add_special_tokens=False).ids for text in ("a b\nc d", "a b\n", "c d")
        )
        return whole == [*chain.from_iterable(parts)]

    @cached_property
    def _specials(self) -> Specials:
        added = self.tokenizer.get_added_tokens_decoder().values()
        named = self.files.special
        images = () if self.images is None else (self.images.token,)
        tokens = [*(token.content for token in added if token.special), *named.values(), *images]
        return Specials(tokens, named.get("eos_token"))

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        found = (self.tokenizer.token_to_id(token) for token in self._specials.tokens)
        return frozenset(number for number in found if number is not None)

    @cached_property
    def renderer(self) -> ProcessRenderer:
        """Build the renderer of conversations. Raises `SettingsError` without a template, `MissingExtra`."""
        from headrace.packing.chats.render_process import ProcessRenderer, RenderSettings

        own = self.settings.chat_template
        sources = self.files.templates if own is None else {"default": template_text(own)}
        if not sources:
            raise SettingsError(f"{self.files.path}: has no chat template; give one with chat_template=")
        return ProcessRenderer(
            RenderSettings(
                templates=sources,
                special=self.files.special,
                values=dict(self.settings.template_values),
                day=self.settings.date,
                specials=self._specials,
                reasoning=self.settings.reasoning,
            )
        )


def _in_this_process(kind: type[ChatEncoder], settings: ChatSettings, fingerprint: str) -> ChatEncoder:
    """Build the encoder anew, because tokenizers are not pickled. Raises `InputError` if its fingerprint differs."""
    encoder = kind(settings)
    if encoder.fingerprint != fingerprint:
        raise InputError(
            f"{settings.tokenizer}: tokenizer or template on {platform.node()} is not the one that the run began with "
            f"(digest {encoder.fingerprint[:12]}, not {fingerprint[:12]}); give all machines the same files"
        )
    return encoder
