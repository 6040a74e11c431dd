"""Seal saved states with a digest, and check size and digest when they are loaded. Pure.

    {"kind": "stream", "format_version": 4, …,
     "digest": "sha256 of the canonical JSON of everything else"}

A state holds positions, so one wrong digit would silently deliver other rows. Any change since the
state was saved is an error here, before the state is used. The digest detects damage. It does not
authenticate: someone can forge a state, so readers check the bounds of every number as well. Cost
is O(state).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import StreamError
from headrace.printable import short_repr as short_repr

MOST_POSITIONS = 1 << 62  # arithmetic on positions is int64
MOST_LANES = 1 << 24  # an order holds arrays of them
MOST_EPOCHS = 1 << 31

_KIND = "kind"
_VERSION = "format_version"
_DIGEST = "digest"
_OWN = (_KIND, _VERSION, _DIGEST)
_MOST_DEPTH = 96  # nested loaders refuse to save deeper states
_MOST_VALUES = 1 << 24  # a state of millions of shards has one number for each
_MOST_CHARACTERS = 1 << 16
_MOST_BITS = 4096  # a seed may be large


def seal(subject: str, version: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """Make a state of this kind from values: a JSON object that `unseal` accepts.

    values: JSON, by names other than kind, format_version and digest.
    """
    state = {_KIND: subject, _VERSION: version, **values}
    return {**state, _DIGEST: sha256_hex(canonical_json(state))}


def unseal(state: Any, *, subject: str, version: int) -> dict[str, Any]:
    """Return the sealed values.

    Raises `StreamError` if this is not a state, has another kind or version, is damaged, too deep
    or too large.
    """
    what = f"{subject} state"
    if not isinstance(state, Mapping):
        raise StreamError(
            f"{what}: expected a mapping, got {type(state).__name__}",
            remedy="pass what state_dict() gave",
        )
    check_bounds(state, what)
    stored = state.get(_KIND)
    if stored is not None and stored != subject:
        raise StreamError(
            f"{what}: it is a state of kind {short_repr(stored)}",
            remedy="load each state into the kind of loader that gave it",
        )
    stored_version = state.get(_VERSION)
    if type(stored_version) is not int or stored_version != version:
        raise StreamError(
            f"{what}: format_version is {short_repr(stored_version)}, this headrace reads"
            f" {version}",
            remedy="resume with the version that saved it, or start the epoch again",
        )
    digest = state.get(_DIGEST)
    try:
        expected = sha256_hex(
            canonical_json({name: value for name, value in state.items() if name != _DIGEST})
        )
    except ValueError as error:  # text that UTF-8 does not have
        raise _unfit(what, f"it is not JSON ({error})") from error
    if stored is None or digest != expected:
        raise StreamError(
            f"{what}: its digest is {short_repr(digest)}, its contents have {expected[:12]}…; it"
            " was damaged or changed after it was saved",
            remedy="load an undamaged copy, or the state of another checkpoint",
        )
    return {name: value for name, value in state.items() if name not in _OWN}


def kind_of(state: Any) -> str | None:
    """Return the kind of a state; None if headrace did not seal it."""
    subject = None
    if isinstance(state, Mapping) and _DIGEST in state:
        subject = state.get(_KIND)
    if isinstance(subject, str):
        return subject
    return None


def is_marked(values: Mapping[str, Any]) -> bool:
    """Check whether the values carry any field of a seal, so they must be unsealed before use."""
    return any(name in values for name in _OWN)


def check_bounds(state: Any, what: str) -> None:
    """Raise `StreamError` unless this is JSON within the depth, size and numbers of a state."""
    values = [(state, 1)]
    left = _MOST_VALUES
    while values:  # no recursion: the depth is not known to be safe yet
        value, depth = values.pop()
        left -= 1
        if depth > _MOST_DEPTH:
            raise _unfit(what, f"it has more than {_MOST_DEPTH} levels")
        if left < 0:
            raise _unfit(what, f"it has more than {_MOST_VALUES:,} values")
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    raise _unfit(what, f"key {short_repr(name)} is not text")
            values += ((item, depth + 1) for item in value.values())
        elif isinstance(value, list | tuple):
            values += ((item, depth + 1) for item in value)
        else:
            _check_scalar(value, what)


def _check_scalar(value: Any, what: str) -> None:
    if isinstance(value, str):
        if len(value) > _MOST_CHARACTERS:
            raise _unfit(what, f"a text in it has {len(value):,} characters")
    elif isinstance(value, int):
        if value.bit_length() > _MOST_BITS:
            raise _unfit(what, f"a number in it has {value.bit_length():,} bits")
    elif value is not None:
        raise _unfit(
            what, f"{short_repr(value)} in it is neither text, an integer, true, false nor null"
        )


def _unfit(what: str, problem: str) -> StreamError:
    return StreamError(f"{what}: {problem}", remedy="pass what state_dict() gave, unchanged")
