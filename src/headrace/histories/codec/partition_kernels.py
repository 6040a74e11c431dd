"""Sort the measurements of a partition and write the columns of rows, compiled by numba.

Extra `histories`.

Entities are in order already. Measurements are distributed to their entities, and each entity is
sorted by itself. Few measurements are sorted by insertion. More are first spread by the uppermost
bits of their times. Times that crowd together are sorted digit by digit from the lowest, and
measurements of equal time are sorted afterwards. A measurement moves as two words: its time, and
its peer above its code. O(N) for any data.

The peers of a row are found in order without sorting. Each sets a bit, and bits are read from the
lowest on; a second bit set marks the words of the first that hold any. The cost is O(N), plus one
read per 4,096 peers for each row. Peers of a row with few measurements are sorted by insertion
instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.arrays import I32, I64, U16, U32, U64
from headrace.compiled import compiled, kernel
from headrace.histories.codec.text_kernels import lowest_bit

_FEW = 16  # at most this many are sorted by insertion; in rows, the peers are compared pairwise
_MANY = 1 << 10  # from here on, digits have 11 bits instead of 8
# more than this many are spread twice before insertion
_SPREAD_BITS = 12
_MANY_SPREAD = 1 << 14
_CROWDED = 16  # bucket size at which digits are faster than insertion
_NARROW = np.uint64(8)
_WIDE = np.uint64(11)
_ONE, _16, _32 = (np.uint64(number) for number in (1, 16, 32))
_HALF = np.uint64(0xFFFF)
_WORD = np.uint64(0xFFFFFFFF)
_SIGN = np.uint64(1 << 63)


def in_order(
    handover: list[U64], tail: int, peer: tuple[U32, U32] | None, entities: int
) -> tuple[I32, I64, I32 | None, U16]:
    """Sort measurements by entity, time, peer and code.

    Returns entity int32 [N], micros int64 [N], peer int32 [N], codes uint16 [N].
    handover: a list with one array of records, uint64 [N, W], of `spill.ALONE`, `spill.WITH_PEER`
    or `sort.RUN`. The array is removed from the list, so that its memory is free while measurements
    are sorted. Times are in the first word; entity (below `entities`) and code are in word `tail`.
    peer: indices [N], and the peer of each index; None without peers.
    """
    records = handover.pop()
    n = len(records)
    if peer is None:
        peer_index, rank = (np.zeros(0, np.uint32),) * 2
    else:
        peer_index, rank = peer
    keys = np.empty(n, np.uint64)
    tails = np.empty(n, np.uint64)
    starts = np.zeros(entities + 1, np.int64)
    _deal(records, tail, peer_index, rank, starts, keys, tails)
    del records, peer_index
    _sort_all(starts, keys, tails)
    entity = np.empty(n, np.int32)
    codes = np.empty(n, np.uint16)
    peers = np.empty(0 if peer is None else n, np.int32)
    _disassembled(starts, tails, entity, peers, codes)
    keys ^= _SIGN
    return entity, keys.view(np.int64), None if peer is None else peers, codes


@kernel("starts", "keys", "tails")
def _deal(  # noqa: PLR0913, PLR0917 - arrays of a numba kernel
    records: Any, last: Any, peer_index: Any, rank: Any, starts: Any, keys: Any, tails: Any
) -> None:
    """Distribute times, and peers above codes, to their entities, in the order of the records; fill
    `starts`.
    """
    for row in range(len(records)):
        starts[np.int64(records[row, last] & _WORD) + 1] += 1
    for number in range(1, len(starts)):
        starts[number] += starts[number - 1]
    at = starts[:-1].copy()
    for row in range(len(records)):
        tail = records[row, last]
        entity = np.int64(tail & _WORD)
        to = at[entity]
        at[entity] = to + 1
        keys[to] = records[row, 0] ^ _SIGN  # in order as unsigned words
        tail = (tail >> _32) & _HALF
        if len(peer_index):
            tail |= np.uint64(rank[peer_index[row]]) << _16
        tails[to] = tail


@compiled
def _sort_all(starts: Any, keys: Any, tails: Any) -> None:  # noqa: PLR0914 - one loop of a numba kernel
    """Sort the measurements of each entity by time, then by peer and code."""
    longest = 0
    for number in range(len(starts) - 1):
        longest = max(longest, starts[number + 1] - starts[number])
    spare_keys = np.empty(longest, np.uint64)
    spare_tails = np.empty(longest, np.uint64)
    counts = np.empty((8, 1 << 11), np.int64)
    boundaries = np.empty((2, (1 << _SPREAD_BITS) + 1), np.int64)
    for number in range(len(starts) - 1):
        start = starts[number]
        stop = starts[number + 1]
        mine = keys[start:stop]
        entity_tails = tails[start:stop]
        n = stop - start
        if n <= _FEW:
            _insert(mine, entity_tails, mine, entity_tails)
            continue
        crowd = _spread(mine, entity_tails, spare_keys, spare_tails, boundaries[0])
        if n <= _MANY_SPREAD:
            if crowd <= _CROWDED * n:
                _insert(spare_keys[:n], spare_tails[:n], mine, entity_tails)
            else:
                _by_all(mine, entity_tails, spare_keys, spare_tails, counts)
            continue
        for bucket in range(1 << _SPREAD_BITS):
            begin = boundaries[0, bucket]
            end = boundaries[0, bucket + 1]
            size = end - begin
            part_keys = spare_keys[begin:end]
            part_tails = spare_tails[begin:end]
            to_keys = mine[begin:end]
            to_tails = entity_tails[begin:end]
            if size <= _FEW:
                _insert(part_keys, part_tails, to_keys, to_tails)
            elif (
                _spread(part_keys, part_tails, to_keys, to_tails, boundaries[1]) <= _CROWDED * size
            ):
                _insert(to_keys, to_tails, to_keys, to_tails)
            else:
                _by_all(to_keys, to_tails, part_keys, part_tails, counts)


@compiled
def _spread(keys: Any, tails: Any, to_keys: Any, to_tails: Any, boundaries: Any) -> Any:
    """Sort both by the uppermost bits in which keys differ, two buckets per key; fill in where
    buckets begin.

    Returns the sum of the squared bucket sizes, which is the cost of sorting the buckets by
    insertion.
    """
    n = len(keys)
    low = high = keys[0]
    for row in range(n):
        low = min(low, keys[row])
        high = max(high, keys[row])
    bits = 1
    while bits < _SPREAD_BITS and (1 << bits) < 2 * n:
        bits += 1
    shift = np.uint64(0)
    span = (high - low) >> np.uint64(bits)
    while span > 0:
        span >>= _ONE
        shift += _ONE
    buckets = 1 << bits
    boundaries[: buckets + 1] = 0
    for row in range(n):
        boundaries[np.int64((keys[row] - low) >> shift) + 1] += 1
    crowd: Any = 0
    for bucket in range(1, buckets + 1):
        size = boundaries[bucket]
        crowd += size * size
        boundaries[bucket] = boundaries[bucket - 1] + size
    for row in range(n):
        bucket_of_key: Any = np.int64((keys[row] - low) >> shift)
        to = boundaries[bucket_of_key]
        boundaries[bucket_of_key] = to + 1
        to_keys[to], to_tails[to] = keys[row], tails[row]
    for bucket in range(buckets, 0, -1):
        boundaries[bucket] = boundaries[bucket - 1]
    boundaries[0] = 0
    return crowd


@compiled
def _insert(keys: Any, tails: Any, to_keys: Any, to_tails: Any) -> None:
    """Sort both by keys and then tails, into other arrays or in place; fast if they are nearly in
    order.
    """
    for row in range(len(keys)):
        key = keys[row]
        tail = tails[row]
        at = row
        while at > 0 and (
            to_keys[at - 1] > key or (to_keys[at - 1] == key and to_tails[at - 1] > tail)
        ):
            to_keys[at], to_tails[at] = to_keys[at - 1], to_tails[at - 1]
            at -= 1
        to_keys[at], to_tails[at] = key, tail


@compiled
def _by_all(keys: Any, tails: Any, spare_keys: Any, spare_tails: Any, counts: Any) -> None:
    """Sort both by keys and then tails, for any data."""
    _by_digits(keys, tails, spare_keys, spare_tails, counts)
    begin = 0
    for row in range(1, len(keys) + 1):
        if row == len(keys) or keys[row] != keys[begin]:
            if row - begin > _FEW:
                _by_digits(tails[begin:row], keys[begin:row], spare_tails, spare_keys, counts)
            elif row - begin > 1:
                _insert(keys[begin:row], tails[begin:row], keys[begin:row], tails[begin:row])
            begin = row


@compiled
def _by_digits(keys: Any, tails: Any, spare_keys: Any, spare_tails: Any, counts: Any) -> None:  # noqa: C901 - one loop of a numba kernel
    """Sort both by keys, in place and stably."""
    n = len(keys)
    low = high = keys[0]
    for row in range(n):
        low = min(low, keys[row])
        high = max(high, keys[row])
    bits = _WIDE if n >= _MANY else _NARROW
    mask = (_ONE << bits) - _ONE
    digits = 0
    span = high - low
    while span > 0:
        span >>= bits
        digits += 1
    for digit in range(digits):
        counts[digit, : np.int64(mask) + 1] = 0
    for row in range(n):
        key = keys[row] - low
        for digit in range(digits):
            counts[digit, np.int64(key & mask)] += 1
            key >>= bits
    here = True
    for digit in range(digits):
        count = counts[digit]
        shift = bits * np.uint64(digit)
        total = 0
        for value in range(np.int64(mask) + 1):
            size = count[value]
            count[value] = total
            total += size
        if here:
            _move(keys, tails, spare_keys, spare_tails, n, low, shift, mask, count)
        else:
            _move(spare_keys, spare_tails, keys, tails, n, low, shift, mask, count)
        here = not here
    if not here:
        for row in range(n):
            keys[row], tails[row] = spare_keys[row], spare_tails[row]


@compiled
def _move(  # noqa: PLR0913, PLR0917 - arrays of a numba kernel
    keys: Any,
    tails: Any,
    to_keys: Any,
    to_tails: Any,
    n: Any,
    low: Any,
    shift: Any,
    mask: Any,
    count: Any,
) -> None:
    for row in range(n):
        key = keys[row]
        digit = np.int64(((key - low) >> shift) & mask)
        to = count[digit]
        count[digit] = to + 1
        to_keys[to], to_tails[to] = key, tails[row]


@compiled
def _disassembled(starts: Any, tails: Any, entity: Any, peer: Any, codes: Any) -> None:
    for number in range(len(starts) - 1):
        for row in range(starts[number], starts[number + 1]):
            entity[row] = number
            codes[row] = np.uint16(tails[row] & _HALF)
            if len(peer):
                peer[row] = np.int32(tails[row] >> _16)


@kernel()
def peers_of_rows(peer: Any, starts: Any, peers: Any, fours: Any) -> Any:  # noqa: PLR0914 - one loop of a numba kernel
    """Find the peers of rows; peer [N]: below `peers`.

    Returns the index of each measurement's peer among those of its row, uint32 [N]; the peers of
    the rows, ascending in each row, uint32 [M]; and per row the number of peers and how many of
    them are not the first `fours`, int64 [R].
    """
    index = np.empty(len(peer), np.uint32)
    row_peers = np.empty(len(peer), np.uint32)
    count = np.empty(len(starts), np.int64)
    sixes = np.zeros(len(starts), np.int64)
    words = np.zeros((peers >> 6) + 1, np.uint64)
    groups = np.zeros((peers >> 12) + 1, np.uint64)
    rank = np.empty(peers, np.uint32)
    total = 0
    for row in range(len(starts)):
        start = starts[row]
        stop = starts[row + 1] if row + 1 < len(starts) else len(peer)
        if stop - start <= _FEW:
            distinct = _insert_peers(peer, start, stop, row_peers, total)
        else:
            for at in range(start, stop):
                this = np.int64(peer[at])
                words[this >> 6] |= _ONE << np.uint64(this & 63)
                groups[this >> 12] |= _ONE << np.uint64((this >> 6) & 63)
            distinct = 0
            for group in range(len(groups)):
                left = groups[group]
                groups[group] = 0
                while left:
                    word = (group << 6) + lowest_bit(left)
                    left &= left - _ONE
                    bits = words[word]
                    words[word] = 0
                    while bits:
                        row_peers[total + distinct] = (word << 6) + lowest_bit(bits)
                        bits &= bits - _ONE
                        distinct += 1
        above = 0
        for number in range(distinct):
            rank[row_peers[total + number]] = number
            above += row_peers[total + number] >= fours
        for at in range(start, stop):
            index[at] = rank[peer[at]]
        count[row], sixes[row] = distinct, above
        total += distinct
    return index, row_peers[:total], count, sixes


@compiled
def _insert_peers(peer: Any, start: Any, stop: Any, row_peers: Any, total: Any) -> Any:
    """Insert the peers of one row into `held`, ascending and each once; return the number of
    distinct ones.
    """
    distinct = 0
    for at in range(start, stop):
        this = peer[at]
        slot = total + distinct
        while slot > total and row_peers[slot - 1] > this:
            slot -= 1
        if slot > total and row_peers[slot - 1] == this:
            continue
        for later in range(total + distinct, slot, -1):
            row_peers[later] = row_peers[later - 1]
        row_peers[slot] = this
        distinct += 1
    return distinct


@kernel("data", "halves", "words")
def fill_rows(  # noqa: C901, PLR0912, PLR0913, PLR0917 - one loop of a numba kernel
    data: Any,
    halves: Any,
    words: Any,
    ipv4_peers: Any,
    starts: Any,
    times: Any,
    codes: Any,
    index: Any,
    at_times: Any,
    at_codes: Any,
    at_index: Any,
    at_peers: Any,
    width: Any,
    row_peers: Any,
    peer_counts: Any,
    peer_words: Any,
) -> None:
    """Write the columns of rows.

    data, halves, words: the bytes of all rows, and views of them as uint16 and uint32.
    ipv4_peers: how many of all peers are IPv4; they come first.
    times, codes, index: [N]; index, of each measurement's peer in its row, is empty without peers.
    at_times, at_codes, at_index, at_peers: the bytes where the columns start [R]. width: bytes of a
    peer index [R]. row_peers, peer_counts: the peers of the rows [M], and the number in each row
    [R].
    peer_words: the bytes of all peers as uint32 [P, 4].
    """
    first_peer = 0
    for row in range(len(starts)):
        start = starts[row]
        n = (starts[row + 1] if row + 1 < len(starts) else len(times)) - start
        first = times[start]
        to = at_times[row] >> 2
        for position in range(n):
            words[to + position] = times[start + position] - first
        to = at_codes[row] >> 1
        for position in range(n):
            halves[to + position] = codes[start + position]
        if len(index) == 0:
            continue
        if width[row] == 1:
            to = at_index[row]
            for position in range(n):
                data[to + position] = index[start + position]
        elif width[row] == 2:
            to = at_index[row] >> 1
            for position in range(n):
                halves[to + position] = index[start + position]
        else:
            to = at_index[row] >> 2
            for position in range(n):
                words[to + position] = index[start + position]
        to = at_peers[row] >> 2
        for number in range(first_peer, first_peer + peer_counts[row]):
            peer = row_peers[number]
            if peer < ipv4_peers:
                words[to] = peer_words[peer, 0]
                to += 1
            else:
                for word in range(4):
                    words[to + word] = peer_words[peer, word]
                to += 4
        first_peer += peer_counts[row]
