"""Files of a cache stay within its limit; the least recently used go first."""

import os
from pathlib import Path

from headrace.storage.cache_room import Room, mark_used


def test_a_use_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    os.utime(path, (1e9, 1e9))

    mark_used(path)

    assert path.stat().st_mtime == 1e9
    assert path.stat().st_atime > 1e9
    mark_used(tmp_path / "none")  # swept meanwhile


def test_the_least_recently_used_blocks_of_others_make_room(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for age in range(10):
        (other / f"{age}.arrow").write_bytes(bytes(1000))
        os.utime(other / f"{age}.arrow", (1e9 - age, 1e9 - age))
    room = Room(tmp_path, 12_500)

    assert room.admit(4000)
    assert {f"{age}.arrow" for age in range(8)} == {path.name for path in other.iterdir()}
    assert not room.admit(13_000)
