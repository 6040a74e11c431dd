"""Read bytes of an object, over as many requests as it takes.

Each request has `Patience.seconds`, after which obstore asks once for what is still missing, if the
object is the same. If that runs out of time too, the object is read as its bytes come, and asked
for from where it stopped: the rest of the transfer counts as progress while each request brings
`Patience.bytes`. A continuation carries the tag of the first response as `If-Match`, and its own
tag must be the same, so that bytes of two objects never meet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.errors import CorruptShard
from headrace.storage.bucket import Bucket, Torn

_AS_IT_COMES = 1  # bytes of the least piece

Range = tuple[int, int] | dict[str, int]


class ObjectReading:
    """One read: `take` returns its bytes.

    requested: [start, stop), an {"offset": …} or {"suffix": …} of obstore, or None for the whole
    object. etag: the tag that the object must have, None for any. meta: facts of the object, of the
    first response whose bytes are kept.
    """

    def __init__(
        self, bucket: Bucket, key: str, requested: Range | None = None, etag: str | None = None
    ) -> None:
        self._bucket = bucket
        self._key = key
        self._requested = requested
        self._known = etag
        self._parts: list[bytes] = []
        self._start = 0
        self._stop = 0
        self._tag = ""
        self.got = 0
        self.meta: Any = None

    def take(self) -> memoryview:
        """Read the bytes.

        Raises `FileNotFoundError`, `StoreError`, and `CorruptShard` if the object was replaced.
        """
        return self._bucket.do(self._key, self._attempt, got=lambda: self.got)

    def take_up_to(self, most: int) -> memoryview | None:
        """Read the bytes as `take` does, but if they are more than `most`, leave them and return
        None.
        """

        def attempt() -> memoryview | None:
            with self._timed():
                answer = self._ask()
                if self._stop - self._start > most:
                    return None
                return self._counted(answer)

        return self._bucket.do(self._key, attempt, got=lambda: self.got)

    def _attempt(self) -> memoryview:
        size = 0  # unknown
        if isinstance(self._requested, tuple):
            size = self._requested[1] - self._requested[0]
        with self._bucket.reading.request(size), self._timed():
            return self._counted(self._ask())

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the requests that obstore sent again within this one, and tell what `If-Match`
        found.
        """
        began = time.monotonic()
        in_vain = 1  # whoever sends it again counts it
        try:
            yield
            in_vain = 0
        except self._bucket.verbs.exceptions.BaseError as error:
            if self._bucket.says_replaced(error):
                raise self._replaced() from None
            raise
        finally:
            times = int((time.monotonic() - began) / self._bucket.patience.seconds)
            self._bucket.is_slow = times > 0
            if times > in_vain:
                self._bucket.traffic.failed(times - in_vain, stalled=True)

    def _counted(self, answer: Any) -> memoryview:
        with self._bucket.traffic.receiving() as note:
            if self._bucket.is_slow or self.got:
                for part in answer.stream(min_chunk_size=_AS_IT_COMES):
                    self._tag = answer.meta["e_tag"] or ""
                    self._parts.append(part)
                    self.got += len(part)
                    note(len(part))
                data = memoryview(b"".join(self._parts))
            else:
                data = memoryview(answer.bytes())
                note(len(data))
        if len(data) != self._stop - self._start:
            self._forget()
            raise Torn(f"{len(data)} of {self._stop - self._start} bytes")
        return data

    def _ask(self) -> Any:
        """Send a request for what is missing, and check that its answer continues what is there."""
        if not self._tag:  # nothing tells two versions apart
            self._forget()
        tag = self._tag or self._known
        options: dict[str, Any] = {}
        if self.got:
            options["range"] = (self._start + self.got, self._stop)
        elif self._requested is not None:
            options["range"] = self._requested
        if tag and not tag.startswith("W/"):  # which never match
            options["if_match"] = tag
        answer = self._bucket.verbs.get(self._bucket.store, self._key, options=options)
        if tag is not None and (answer.meta["e_tag"] or "") != tag:
            raise self._replaced()
        if not self.got:
            self.meta = answer.meta
            self._start, self._stop = self._span_of(answer)
        return answer

    def _span_of(self, answer: Any) -> tuple[int, int]:
        if isinstance(self._requested, tuple):
            return self._requested
        start, stop = answer.range
        return int(start), int(stop)

    def _forget(self) -> None:
        self._parts.clear()
        self.got = 0
        self._tag = ""

    def _replaced(self) -> CorruptShard:
        return CorruptShard(
            "was replaced while it was read",
            path=f"{self._bucket.address}/{self._key}",
            remedy="restore it or open the dataset again",
        )
