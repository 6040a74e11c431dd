"""The encoders of a run: one tokenizer for all threads and datasets, one renderer for each."""

from __future__ import annotations

import platform
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, SettingsError
from headrace.machine import library_version
from headrace.packing.blend import Source
from headrace.packing.chats.layouts import Tokens, sample_of
from headrace.packing.chats.reader import BrokenRow, Row
from headrace.packing.chats.rejects import Rejected, RowRejected
from headrace.packing.chats.settings import ChatSettings, fingerprint_of
from headrace.packing.chats.tokenise import ChatEncoder, Encoded, filtered
from headrace.packing.config import PackedSequences
from headrace.packing.encode_shard import Encode


def chat_settings(settings: PackedSequences, source: Source | None = None) -> ChatSettings:
    """How the rows of a dataset become tokens. Raises `SettingsError` where there is no tokenizer."""
    if settings.tokenizer is None:
        raise SettingsError("no tokenizer; give tokenizer=, a tokenizer.json or the directory that holds it")
    of_source: dict[str, Any] = {}
    if source is not None:
        of_source = {"layout": source.layout, "columns": source.mapping, "filters": source.filters}
    return ChatSettings(
        tokenizer=settings.tokenizer,
        chat_template=settings.chat_template,
        template_values=settings.template_values,
        reasoning=settings.reasoning,
        eos=settings.eos,
        date=settings.date,
        nothing_trained=settings.nothing_trained,
        special_text=settings.special_text,
        **of_source,
    )


def encoder_fingerprint(settings: PackedSequences) -> str:
    """A digest of tokenizer, template and what else decides which tokens a row becomes. Loads no tokenizer."""
    if settings.tokenizer is None:
        return sha256_hex(canonical_json(["tokens", settings.nothing_trained]))
    return fingerprint_of(chat_settings(settings))


class Encoder:
    """Makes an encoder for a thread and a dataset. The tokenizer is loaded once, when the first is made."""

    def __init__(self, settings: PackedSequences) -> None:
        self.settings = settings
        self.fingerprint = encoder_fingerprint(settings)
        self._first: ChatEncoder | None = None
        self._loading = threading.Lock()
        self._of_thread = threading.local()
        for _, sources in settings.blend.groups() if settings.tokenizer is not None else []:
            for source in sources:
                chat_settings(settings, source)  # wrong words are told before any work

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (self.settings, self.fingerprint)

    def of(self, source: Source) -> Encode:
        """An encoder of this dataset for the calling thread."""
        if self.settings.tokenizer is None:
            return _given_tokens(self.settings, source)
        own, name = self._of_thread.__dict__, str(id(source))
        if name not in own:  # compiling the template takes longer than a small task
            own[name] = self._chat.sharing(chat_settings(self.settings, source)).encode
        found: Encode = own[name]
        return found

    @property
    def vocabulary(self) -> int | None:
        """How many token ids there are; None without a tokenizer."""
        return None if self.settings.tokenizer is None else self._chat.vocabulary

    @property
    def pad_id(self) -> int | None:
        """The token to pad with: as it was asked for, else the end token."""
        if self.settings.pad_id is not None or self.settings.tokenizer is None:
            return self.settings.pad_id
        return self._chat.eos_id

    def facts(self) -> dict[str, Any]:
        """What the manifest says of it: digest, vocabulary, padding token, and the libraries that made the tokens."""
        names = () if self.settings.tokenizer is None else ("tokenizers", "jinja2")
        return {
            "fingerprint": self.fingerprint,
            "vocabulary": self.vocabulary,
            "pad_id": self.pad_id,
            "libraries": {name: library_version(name) for name in names},
        }

    def must_pad(self) -> int | None:
        """The padding token where sequences are padded, else None. Raises `SettingsError` where none is known."""
        if self.settings.pad_multiple == 1:
            return None
        if self.pad_id is None:
            raise SettingsError(
                f"pad_multiple is {self.settings.pad_multiple}, and no tokenizer names an end token to pad with; "
                f"give pad_id="
            )
        return self.pad_id

    @property
    def _chat(self) -> ChatEncoder:
        with self._loading:
            if self._first is None:
                self._first = ChatEncoder(chat_settings(self.settings))
            return self._first


def _in_this_process(settings: PackedSequences, fingerprint: str) -> Encoder:
    """The encoder of another process, made anew: tokenizers do not travel. Raises `InputError` if it is another one."""
    encoder = Encoder(settings)
    if encoder.fingerprint != fingerprint:
        raise InputError(
            f"{settings.tokenizer}: tokenizer or template on {platform.node()} is not the one that the run began with "
            f"(digest {encoder.fingerprint[:12]}, not {fingerprint[:12]}); give all machines the same files"
        )
    return encoder


def _given_tokens(settings: PackedSequences, source: Source) -> Encode:
    """Rows that are token ids already."""

    filters = [(name, frozenset(words)) for name, words in source.filters.items()]

    def encode(rows: Sequence[Row]) -> Encoded:
        ids, masks, places, rejected = [], [], [], []
        for place, row in enumerate(rows):
            try:
                if isinstance(row, BrokenRow):
                    raise RowRejected(row.reason, row.detail)
                filtered(row, filters)
                sample = sample_of(row, source.layout, source.mapping, source.filters)
                if not isinstance(sample, Tokens):
                    raise SettingsError(
                        f"dataset {source.name}: holds rows with {', '.join(sorted(row))}, which are no tokens yet; "
                        f"give tokenizer="
                    )
                if settings.nothing_trained == "reject" and not sample.mask.any():
                    raise RowRejected("nothing_trained", "no token of the row may be trained on")
                if not 0 <= sample.ids.min() <= sample.ids.max() < 1 << 31:
                    raise RowRejected("bad_tokens", f"ids are {sample.ids.min()} to {sample.ids.max()}")
            except RowRejected as wrong:
                rejected.append(Rejected(place, wrong.reason, wrong.detail))
                continue
            ids.append(sample.ids.astype(np.int32))
            masks.append(sample.mask)
            places.append(place)
        return Encoded(
            tokens=np.concatenate([np.empty(0, np.int32), *ids]),
            mask=np.concatenate([np.empty(0, np.uint8), *masks]),
            lengths=np.array([len(each) for each in ids], np.uint32),
            rows=np.array(places, np.int64),
            rejected=rejected,
        )

    return encode
