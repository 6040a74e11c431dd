"""Choose what of a measurement becomes tokens, and in how many bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from headrace.arrays import I64, U8
from headrace.checks import check_integer, check_word
from headrace.errors import SettingsError
from headrace.histories import IdKind

NewTexts = Literal["unknown", "codes"]
_TENTHS = 10
_FIELDS = ("entity", "peer", "value")
_WIDEST = 4  # bytes of a number or a code
_CODES = 256**_WIDEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokeniser:
    """What of a measurement becomes tokens, and in how many bytes.

    fields: what is shown, of "entity", "peer", "value" (the latency) and the names of value
    columns; None: all. The others keep their ids.
    entity_bytes, peer_bytes: of a number or the code of a text, 1 to 4. What does not fit is
    unknown: all its bytes are 255. Addresses have 4 or 16 bytes.
    times: of ten contexts, how many show the times of all measurements, of some, and of none.
    new_texts: texts and categories that a run with `dictionaries_from` has and the earlier run
    lacks; "unknown": all their bytes are 255; "codes": they have their codes, if these fit.

    Raises `SettingsError` when built with invalid values.
    """

    fields: tuple[str, ...] | None = None
    entity_bytes: int = _WIDEST
    peer_bytes: int = _WIDEST
    times: tuple[int, int, int] = (4, 3, 3)
    new_texts: NewTexts = "unknown"

    def __post_init__(self) -> None:
        for name, width in (("entity_bytes", self.entity_bytes), ("peer_bytes", self.peer_bytes)):
            check_integer(f"tokeniser: {name}", width, least=1, most=_WIDEST)
        check_word("tokeniser: new_texts", self.new_texts, get_args(NewTexts))
        if len(self.times) != len(("all", "some", "none")):
            raise self._wrong_times()
        for count in self.times:
            check_integer("tokeniser: times", count, least=0, most=_TENTHS)
        if sum(self.times) != _TENTHS:
            raise self._wrong_times()

    def _wrong_times(self) -> SettingsError:
        return SettingsError(
            setting="times", value=self.times, remedy="give three numbers that add up to 10"
        )


DEFAULT = Tokeniser()


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """What the measurements of a run consist of.

    has_value: there is a latency. values: names and types, in tokens, of the value columns.
    roles: of the dictionaries of category columns. known: texts of the earlier run, by role.
    """

    entity_kind: IdKind = "address"
    peer_kind: IdKind = "address"
    has_value: bool = True
    values: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ValueField:
    """A value column that is chosen: its number among all, its type in tokens.

    limit: categories from this code on are unknown; None for numbers.
    """

    number: int
    dtype: np.dtype[Any]
    limit: int | None = None

    @property
    def size(self) -> int:
        """The tokens of a value."""
        return 1 + self.dtype.itemsize

    def data(self, stored: np.ndarray[Any, Any]) -> U8:
        """Return the bytes of values that are not missing, big-endian: uint8 [N, size - 1].

        stored: as in rows, where codes of categories count from 1.
        """
        values = stored
        if self.limit is not None:
            values = stored.astype(np.int64) - 1
            values[values >= self.limit] = -1  # all bits
        data = values.astype(self.dtype.newbyteorder(">")).view(np.uint8)
        return data.reshape(len(stored), self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of the measurements of a run.

    entity, peer: tokens of one of 4 and of 16 bytes, 0 if it is not shown. entity_limit,
    peer_limit: numbers and codes from here on are unknown; None: all are known.
    value: latencies are shown. values: the value columns that are shown.
    """

    entity: tuple[int, int] = (5, 17)
    peer: tuple[int, int] = (5, 17)
    entity_limit: int | None = None
    peer_limit: int | None = None
    value: bool = True
    values: tuple[ValueField, ...] = ()

    @property
    def entity_sizes(self) -> I64:
        """The tokens of an entity, by family."""
        return _by_family(self.entity)

    @property
    def peer_sizes(self) -> I64:
        """The tokens of a peer, by family."""
        return _by_family(self.peer)

    @property
    def longest(self) -> int:
        """The largest number of tokens of any measurement: start, fields and an absolute time."""
        fixed = 1 + 9 + self.entity[1] + self.peer[1] + 3 * self.value
        return fixed + sum(column.size for column in self.values)

    @property
    def shortest(self) -> int:
        """The least tokens of any measurement, without its peer, result and time."""
        return 1 + self.entity[0]


PLAIN = Layout()


def _by_family(sizes: tuple[int, int]) -> I64:
    table = np.zeros(7, np.int64)
    table[4], table[6] = sizes
    return table


def layout_of(tokeniser: Tokeniser, columns: TokenColumns) -> Layout:
    """Lay out the measurements of a run.

    Raises `SettingsError` for fields that they do not have, and widths of addresses.
    """
    names = (*_FIELDS, *columns.values)
    chosen = names if tokeniser.fields is None else tokeniser.fields
    for name in chosen:
        if name not in names:
            raise SettingsError(
                setting="fields", value=name, remedy=f"choose some of {', '.join(names)}"
            )
    if not chosen:
        raise SettingsError(
            setting="fields", value=chosen, remedy=f"give one of {', '.join(names)}"
        )
    known = columns.known if tokeniser.new_texts == "unknown" else {}
    entity = _IdField.of(
        "entity", columns.entity_kind, tokeniser.entity_bytes, known.get("entity"), chosen
    )
    peer = _IdField.of("peer", columns.peer_kind, tokeniser.peer_bytes, known.get("peer"), chosen)
    values = []
    for number, (name, word) in enumerate(columns.values.items()):
        if name not in chosen:
            continue
        dtype = np.dtype(word)
        limit = None
        if name in columns.roles:
            limit = min(256**dtype.itemsize - 1, known.get(columns.roles[name], _CODES))
        values.append(ValueField(number, dtype, limit))
    has_value = columns.has_value and "value" in chosen
    return Layout(entity.sizes, peer.sizes, entity.limit, peer.limit, has_value, tuple(values))


@dataclass(frozen=True, slots=True)
class _IdField:
    """The entity or the peer: see `Layout`."""

    sizes: tuple[int, int]
    limit: int | None

    @classmethod
    def of(
        cls, name: str, id_kind: IdKind, width: int, known: int | None, chosen: Collection[str]
    ) -> _IdField:
        if id_kind == "address" and width != _WIDEST:
            raise SettingsError(
                f"an address has 4 or 16 bytes, so {name}_bytes has no effect",
                setting=f"{name}_bytes",
                value=width,
                remedy="leave it out",
            )
        limit = known
        if width < _WIDEST:
            limit = min(256**width - 1, _CODES if known is None else known)
        return cls((1 + width, 17) if name in chosen else (0, 0), limit)
