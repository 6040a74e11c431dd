"""The bytes of rows stay what they were."""

from hashlib import sha256
from pathlib import Path

from pings import blobs_of, dealt, histories, random_pings, write_pings

from headrace.histories.codec.rows import decode_rows


def test_the_bytes_of_rows_are_those_of_the_first_version(tmp_path: Path) -> None:
    """Rows of fixed pings, by entity and part: a faster way must not change what is written."""
    prepared = histories(
        write_pings(tmp_path / "in", dealt(random_pings(33, 4000), 3)), tmp_path / "out", workers=2
    )
    blobs = [
        blob
        for path in sorted((prepared.run / "histories").rglob("part-*"))
        for blob in blobs_of(path)
    ]

    assert "a14d5789eed7f87be642497794bf5817" == sha256(b"".join(blobs)).hexdigest()[:32]
    assert 4200 == sum(row.n for row in decode_rows(blobs, ["row"] * len(blobs)))
