"""Small synthetic rows, and the law that token builders are held to: a plain loop, measurement by measurement."""

import itertools

import numpy as np
from context_reference import below, log_uniform

from headrace import draws
from headrace.histories.codec.rows import RowColumns
from headrace.histories.contexts import vocabulary
from headrace.histories.contexts.sample import FULL, NONE, PARTIAL, ContextSegments


def row_of(
    n,
    *,
    seed=0,
    family=4,
    peers=20,
    peer_families=(4,),
    gap=240,
    failed=0.03,
    first_time=1_500_000_000,
):
    """A row of n measurements; peers=0: none; gap: mean seconds between measurements."""
    random = np.random.default_rng(seed)
    table = np.sort(random.choice(peer_families, peers).astype(np.uint8))
    peer_bytes = random.integers(0, 256, (peers, 16), np.uint8)
    peer_bytes[table == 4, 4:] = 0
    entity = random.integers(0, 256, 16, np.uint8)
    entity[4 if family == 4 else 16 :] = 0
    return RowColumns(
        first_time=first_time,
        offsets=np.cumsum(random.poisson(gap, n)).astype(np.uint32)
        if n
        else np.empty(0, np.uint32),
        codes=np.where(random.random(n) < failed, 0, random.integers(1, 1 << 16, n)).astype(
            np.uint16
        ),
        peers=random.integers(0, peers, n).astype(np.uint16) if peers else None,
        peer_family=table,
        peer_bytes=peer_bytes,
        entity_kind="address",
        peer_kind="address",
        entity_family=family,
        entity_bytes=entity,
        part=0,
    )


def measurement_of(row, index, stamped):
    """As the decoder gives it back."""
    peer = None if row.peers is None else row.peers[index]
    size = {4: 4, 6: 16}
    return vocabulary.Measurement(
        row.first_time + int(row.offsets[index]) if stamped else None,
        bytes(row.entity_bytes[: size[row.entity_family]]),
        None if peer is None else bytes(row.peer_bytes[peer, : size[int(row.peer_family[peer])]]),
        int(row.codes[index]),
    )


def segments_of(rows, modes, *, context=None, sampled=True, seed=1, epoch=0, fractions=None):
    """One segment for each row and mode given; in a context each, unless said otherwise."""
    ids = np.arange(len(rows))
    context = ids if context is None else np.asarray(context)
    keys = draws.segment_keys(draws.context_keys(seed, epoch, ids), np.zeros(len(ids), np.int64))
    if fractions is None:
        fractions = 0.1 + 0.8 * draws.unit(draws.draw(keys, draws.FRACTION))
    return ContextSegments(
        context=context,
        row=ids,
        start=np.zeros(len(rows), np.int64),
        count=np.array([row.n for row in rows]),
        sampled=np.full(len(rows), sampled),
        mode=np.asarray(modes, np.uint8),
        fraction=(np.asarray(fractions) * 2.0**32).astype(np.uint64),
        key=keys,
    )


def plain_loop(segments, rows, room, contexts):
    """Tokens and taken measurements, [(row's place, stamped?)] in the order written, one by one in Python."""
    texts, taken = [[] for _ in range(contexts)], []
    for s, row in enumerate(rows):
        key, mode, fraction = (
            segments.key[s : s + 1],
            int(segments.mode[s]),
            int(segments.fraction[s]),
        )
        out = texts[segments.context[s]]
        begin, window = int(segments.start[s]), int(segments.count[s])
        if segments.sampled[s]:
            begin, window = window_of(segments, s, row, room)
        chosen = []
        places = draws.permuted(key, np.int64(window), np.arange(min(window, room))).tolist()
        for place, inside in enumerate(places):
            index = begin + inside
            lost = (
                -(-(place + 1) * fraction >> 32) > -(-place * fraction >> 32)
                if mode == PARTIAL
                else mode == NONE
            )
            trial = [*chosen, (index, not lost)]
            if len(out) + length_of(row, trial) > room:
                break
            chosen = trial
        written = order_of(key, chosen)
        previous = None
        for place, (index, stamped) in enumerate(written):
            measurement = measurement_of(row, index, stamped)
            out.append(vocabulary.START)
            fields = fields_of(row, index, measurement, previous)
            number = int(below(draws.draw(key, draws.FIELDS + place), 24)[0])
            for field in lexicographic(number):
                out.extend(fields[field])
            previous = measurement.time if stamped else previous
        taken.append(written)
    tokens = np.zeros((contexts, room), np.int32)
    for number, text in enumerate(texts):
        tokens[number, : len(text)] = text
    return tokens, taken


def window_of(segments, s, row, room):
    shortest = 1 + 1 + (4 if row.entity_family == 4 else 16) + 1 + 2 * int(segments.mode[s] == FULL)
    if row.peers is not None:
        shortest += 1 + min({4: 4, 6: 16}[int(each)] for each in row.peer_family)
    low = np.array([min(row.n, room // shortest + 1)])
    window = log_uniform(draws.draw(segments.key[s : s + 1], draws.WINDOW), low, np.array([row.n]))
    begin = below(draws.draw(segments.key[s : s + 1], draws.OFFSET), row.n - window + 1)
    return int(begin[0]), int(window[0])


def length_of(row, chosen):
    size = {4: 5, 6: 17}
    total, previous = 0, None
    for index, stamped in sorted(chosen):
        total += 1 + size[row.entity_family] + (3 if row.codes[index] else 1)
        total += 0 if row.peers is None else size[int(row.peer_family[row.peers[index]])]
        if stamped:
            total += 9 if previous is None else 2 if int(row.offsets[index]) - previous < 256 else 5
            previous = int(row.offsets[index])
    return total


def order_of(key, chosen):
    timed, untimed = (
        sorted(each for each in chosen if each[1]),
        [each for each in chosen if not each[1]],
    )
    written = []
    for place in range(len(chosen)):
        chance = int(below(draws.draw(key, draws.POSITIONS + place), len(chosen) - place)[0])
        written.append(untimed.pop(0) if chance < len(untimed) else timed.pop(0))
    return written


def lexicographic(number):
    left, order = [0, 1, 2, 3], []
    for base in (6, 2, 1, 1):
        order.append(left.pop(number // base))
        number %= base
    return order


def fields_of(row, index, measurement, previous):
    def spelled(role, data):
        return [role, *(vocabulary.BYTE + each for each in data)]

    source = spelled(2 if len(measurement.entity) == 4 else 3, measurement.entity)
    destination = []
    if measurement.peer is not None:
        destination = spelled(4 if len(measurement.peer) == 4 else 5, measurement.peer)
    result = spelled(9, measurement.code.to_bytes(2, "big")) if measurement.code else [11]
    time = []
    if measurement.time is not None:
        delta = None if previous is None else measurement.time - previous
        if delta is None:
            time = spelled(6, measurement.time.to_bytes(8, "big"))
        else:
            time = spelled(7, [delta]) if delta < 256 else spelled(8, delta.to_bytes(4, "big"))
    return [source, destination, result, time]


def facts_of(row):
    """The facts of one row, in the order of `SmallRowSizes`, from its measurements one by one."""
    lengths = [length_of(row, [(place, False)]) for place in range(row.n)]
    offsets = row.offsets.tolist()
    long_gaps = sum(later - earlier >= 256 for earlier, later in itertools.pairwise(offsets))
    return row.n, sum(lengths), max(lengths), long_gaps, offsets[-1]


class Memory:
    """Rows in memory, as a store of rows."""

    def __init__(self, rows):
        self.rows = rows
        self.n = np.array([row.n for row in rows], np.int64)
        self.opened = 0

    def open(self, numbers):
        self.opened += len(numbers)
        return {number: self.rows[number] for number in numbers}

    def row_sizes(self, numbers, _layout):
        return np.array([facts_of(self.rows[number]) for number in numbers]).reshape(-1, 5)
