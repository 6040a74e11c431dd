"""Read an object as a file, with seek and read-ahead.

Sequential reads fetch growing pieces (64 KiB to 8 MiB); a jump fetches what was asked for and little more. Every
response must carry the tag of the first one, so an object that is replaced meanwhile is an error, never a mix.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.storage.place import Fact, Place

_LEAST, _MOST = 64 << 10, 8 << 20
_KEPT = 4  # pieces: heads, footers and bodies are read in turns


class RemoteFile(io.RawIOBase):
    """A readable, seekable file. known: pieces of the object that were fetched before. Not thread-safe."""

    def __init__(self, place: Place, fact: Fact, known: Sequence[tuple[int, memoryview]] = ()) -> None:
        super().__init__()
        self._place, self._fact, self._at = place, fact, 0
        self._known = known
        self._pieces: OrderedDict[int, memoryview] = OrderedDict()
        self._ahead, self._reached = _LEAST, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """Bytes of the object."""
        return self._fact.size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._fact.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read `size` bytes, fewer only at the end of the object."""
        stop = self._fact.size if size is None or size < 0 else min(self._fact.size, self._at + size)
        if stop <= self._at:
            return b""
        data = self._held(self._at, stop)
        if data is None:
            data = self._fetched(self._at, stop)
        self._at = stop
        return bytes(data)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self.read()

    def _held(self, start: int, stop: int) -> memoryview | None:
        for begin, piece in (*self._known, *self._pieces.items()):
            if begin <= start and stop <= begin + len(piece):
                if begin in self._pieces:
                    self._pieces.move_to_end(begin)
                return piece[start - begin : stop - begin]
        return None

    def _fetched(self, start: int, stop: int) -> memoryview:
        """Fetch the bytes, reusing a piece that holds their beginning."""
        for begin, piece in self._pieces.items():
            if begin <= start < begin + len(piece) == self._reached:
                known = piece[start - begin :]
                rest = self._ask(begin + len(piece), stop)
                return memoryview(b"".join([known, rest[: stop - start - len(known)]]))
        return self._ask(start, stop)[: stop - start]

    def _ask(self, start: int, stop: int) -> memoryview:
        self._ahead = min(_MOST, 2 * self._ahead) if start == self._reached and start else _LEAST
        end = min(self._fact.size, max(stop, start + self._ahead))
        parts = self._place.read_pieces([(start, end)], self._fact)
        data = parts[0][1] if len(parts) == 1 else memoryview(b"".join(part for _, part in parts))
        self._reached = end
        self._pieces[start] = data
        while len(self._pieces) > _KEPT:
            self._pieces.popitem(last=False)
        return data
