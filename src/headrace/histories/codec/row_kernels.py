"""Fill the columns of row blobs, compiled by numba: the same bytes as `rows.encode_rows` makes. Extra `histories`.

The peers of a row are found in order without sorting: each sets a bit, and bits are read from the lowest on, by way of
a second set that says which words of the first hold any. O(N), and one look at each 4,096th of the peers a row. Those
of a row with few measurements are sorted by insertion instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.arrays import I64, U8, U16, U32, Ints
from headrace.compiled import compiled, read_only

_FEW = 16  # measurements of a row whose peers are compared each with each
_ONE, _58 = np.uint64(1), np.uint64(58)
# Every window of six bits of this word is another number, so the uppermost six tell by how much it was shifted.
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_NUMBER_OF_BIT = np.empty(64, np.int64)
_NUMBER_OF_BIT[[(0x03F79D71B4CB0A89 << bit) % (1 << 64) >> 58 for bit in range(64)]] = np.arange(64)


def peers_of_rows(peer: Ints, starts: I64, peers: int, fours: int) -> tuple[U32, U32, I64, I64]:
    """Find the peers of rows; peer [N]: below `peers`.

    index uint32 [N]: of each measurement among its row's peers; the peers uint32 [M] that rows hold, ascending in each
    row; how many each row holds, and how many of them are not the first `fours`, int64 [R].
    """
    index, held = np.empty(len(peer), np.uint32), np.empty(len(peer), np.uint32)
    count, sixes = np.empty(len(starts), np.int64), np.zeros(len(starts), np.int64)
    total = _peers_of_rows(read_only(peer), read_only(starts), peers, fours, index, held, count, sixes)
    return index, held[:total], count, sixes


def fill_rows(
    data: U8,
    starts: I64,
    columns: tuple[I64, U16, Ints],
    places: tuple[I64, I64, I64, I64],
    width: I64,
    peers: tuple[Ints, I64, int, U8],
) -> None:
    """Write the columns of rows.

    columns: times, codes and peer indices [N], the last empty without peers; places: at which byte these and the peers
    begin [R]; width: of a peer index [R]; peers: those that rows hold [M], how many each row does [R], how many of all
    are IPv4, and the bytes of all [P, 16].
    """
    held, count, fours, peer_bytes = peers
    words = np.ascontiguousarray(peer_bytes).view("<u4").reshape(-1, 4)
    index, held = (each.astype(np.uint32, copy=False) for each in (columns[2], held))
    inputs = (starts, *columns[:2], index, *places, width, held, count, words)
    _fill(data, data.view("<u2"), data.view("<u4"), fours, *(read_only(each) for each in inputs))


@compiled
def _peers_of_rows(
    peer: Any, starts: Any, peers: Any, fours: Any, index: Any, held: Any, count: Any, sixes: Any
) -> Any:
    words = np.zeros((peers >> 6) + 1, np.uint64)
    groups = np.zeros((peers >> 12) + 1, np.uint64)
    rank = np.empty(peers, np.uint32)
    total = 0
    for row in range(len(starts)):
        start = starts[row]
        stop = starts[row + 1] if row + 1 < len(starts) else len(peer)
        if stop - start <= _FEW:
            found = _few_peers(peer, start, stop, held, total)
        else:
            for at in range(start, stop):
                this = np.int64(peer[at])
                words[this >> 6] |= _ONE << np.uint64(this & 63)
                groups[this >> 12] |= _ONE << np.uint64((this >> 6) & 63)
            found = 0
            for group in range(len(groups)):
                left = groups[group]
                groups[group] = 0
                while left:
                    word = (group << 6) + _lowest_bit(left)
                    left &= left - _ONE
                    bits = words[word]
                    words[word] = 0
                    while bits:
                        held[total + found] = (word << 6) + _lowest_bit(bits)
                        bits &= bits - _ONE
                        found += 1
        above = 0
        for place in range(found):
            rank[held[total + place]] = place
            above += held[total + place] >= fours
        for at in range(start, stop):
            index[at] = rank[peer[at]]
        count[row], sixes[row] = found, above
        total += found
    return total


@compiled
def _few_peers(peer: Any, start: Any, stop: Any, held: Any, total: Any) -> Any:
    """Insert the peers of one row into `held`, ascending and each once; return how many differ."""
    found = 0
    for at in range(start, stop):
        this, place = peer[at], total + found
        while place > total and held[place - 1] > this:
            place -= 1
        if place > total and held[place - 1] == this:
            continue
        for later in range(total + found, place, -1):
            held[later] = held[later - 1]
        held[place] = this
        found += 1
    return found


@compiled
def _lowest_bit(bits: Any) -> Any:
    """The number of the lowest bit of a word that is 1."""
    return _NUMBER_OF_BIT[((bits & (~bits + _ONE)) * _DE_BRUIJN) >> _58]


@compiled
def _fill(
    data: Any, halves: Any, words: Any, fours: Any, starts: Any, times: Any, codes: Any, index: Any, at_times: Any,
    at_codes: Any, at_index: Any, at_peers: Any, width: Any, held: Any, count: Any, peer_words: Any,
) -> None:  # fmt: skip
    first_peer = 0
    for row in range(len(starts)):
        start = starts[row]
        n = (starts[row + 1] if row + 1 < len(starts) else len(times)) - start
        first, to = times[start], at_times[row] >> 2
        for place in range(n):
            words[to + place] = times[start + place] - first
        to = at_codes[row] >> 1
        for place in range(n):
            halves[to + place] = codes[start + place]
        if len(index) == 0:
            continue
        if width[row] == 1:
            to = at_index[row]
            for place in range(n):
                data[to + place] = index[start + place]
        elif width[row] == 2:
            to = at_index[row] >> 1
            for place in range(n):
                halves[to + place] = index[start + place]
        else:
            to = at_index[row] >> 2
            for place in range(n):
                words[to + place] = index[start + place]
        to = at_peers[row] >> 2
        for number in range(first_peer, first_peer + count[row]):
            peer = held[number]
            size = 1 if peer < fours else 4
            for word in range(size):
                words[to + word] = peer_words[peer, word]
            to += size
        first_peer += count[row]
