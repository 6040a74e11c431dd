"""Decode text files to UTF-8 while they are read, in memory for one piece."""

from __future__ import annotations

import codecs
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from headrace.errors import InputError, setting
from headrace.formats.dialect import UTF8, TextDialect

_PIECE_BYTES = 4 << 20


class DecodedStream:
    """Reads a stream of encoded text as UTF-8 bytes.

    Raises `InputError`, when it reads them, for bytes that are not of the encoding.
    """

    def __init__(self, stream: pa.NativeFile, path: Path, dialect: TextDialect) -> None:
        self._stream = stream
        self._path = path
        self._left = b""
        start = stream.read(4)
        self._encoding = dialect.of_file(start)
        self._decoder = codecs.getincrementaldecoder(self._encoding)()
        self._bytes_read = 0
        self._pending = start
        self._ended = False

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end."""
        parts = [self._left]
        buffered = len(self._left)
        while buffered < size and not self._ended:
            part = self._next()
            parts.append(part)
            buffered += len(part)
        data = b"".join(parts)
        self._left = data[size:]
        return data[:size]

    def read_buffer(self, size: int) -> pa.Buffer:
        """Read as `read` does, as a buffer."""
        return pa.py_buffer(self.read(size))

    def _next(self) -> bytes:
        raw = self._pending + self._stream.read(_PIECE_BYTES)
        self._pending = b""
        self._ended = not raw
        try:
            text = self._decoder.decode(raw, self._ended)
            encoded = text.encode()  # UTF-16 of some systems holds halves of pairs
        except UnicodeError as error:
            raise _not_encoded(self._path, self._encoding, error, self._bytes_read) from None
        self._bytes_read += len(raw)
        return encoded

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()


def decoded(data: bytes, path: Path, encoding: str) -> bytes:
    """Return encoded text as UTF-8. Raises `InputError`."""
    if encoding == UTF8:
        return data
    try:
        return data.decode(encoding).encode()
    except UnicodeError as error:
        raise _not_encoded(path, encoding, error, 0) from None


def not_utf8(path: Path, data: bytes, row: int | str) -> InputError:
    """Return the error of bytes that are not UTF-8."""
    bad = 0
    try:
        data.decode(UTF8)
    except UnicodeDecodeError as error:
        bad = error.object[error.start]
    word = "latin-1"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data[:64]:
        word = "utf-16"
    encoding = setting("dialect", {"encoding": word})
    return InputError(
        f"byte {bad:#04x} is not UTF-8",
        path=path,
        row=row,
        remedy=f"give the encoding of the file, such as {encoding}",
    )


def _not_encoded(path: Path, encoding: str, error: UnicodeError, before: int) -> InputError:
    where = ""
    if isinstance(error, UnicodeDecodeError):
        where = f", near byte {before + error.start:,}"
    return InputError(
        f"its bytes are not {encoding}{where}",
        setting="dialect",
        path=path,
        remedy=f"give its encoding, such as {setting('dialect', {'encoding': 'cp1252'})}",
    )
