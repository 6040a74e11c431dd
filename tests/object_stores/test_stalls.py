"""A store that does not get on ends in an error that names the object, and never in bytes of two objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fault_proxy import FaultProxy, Faults
from stalling_store import DATA, OTHER, SIZE, StallingStore
from store_cases import rows_of, split_of, upload, write_raw
from store_servers import S3Server

import headrace
from headrace.errors import CorruptShard, SettingsError, StoreError
from headrace.storage import bucket as buckets
from headrace.storage import patience
from headrace.storage.places import path_of, place_of
from raised import raised

STALL_S = 0.3


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[StallingStore]:
    """A store that stalls, and a user who waits 0.3 s for a kilobyte."""
    with StallingStore() as stalling:
        for name, value in S3Server(stalling.port).environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HEADRACE_STORE_STALL_SECONDS", str(STALL_S))
        monkeypatch.setenv("HEADRACE_STORE_STALL_BYTES", "1024")
        monkeypatch.setattr(buckets, "_FIRST_BACKOFF_S", 0.005)
        monkeypatch.setattr(buckets, "_FIRST_PAUSE_S", 0.005)
        buckets.forget_buckets()
        yield stalling
        buckets.forget_buckets()


def place(name: str) -> Any:
    return place_of(path_of("s3://bucket") / name)


READS: dict[str, Callable[[str], bytes]] = {
    "whole": lambda name: place(name).read(),
    "range": lambda name: bytes(place(name).read_range(0, SIZE, '"v1"')),
    "ranges": lambda name: b"".join(place(name).read_ranges([(0, 100), (100, SIZE)])),
    "tail": lambda name: bytes(place(name).tail(SIZE)[1]),
}


@pytest.mark.slow
@pytest.mark.smoke("middle-1-range", "middle-4-range", "silent-2-whole")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("kind", ["middle", "headers", "silent"])
def test_a_read_that_stalls_is_asked_for_again(
    store: StallingStore, monkeypatch: pytest.MonkeyPatch, kind: str, times: int, read: str
) -> None:
    """A busy machine may need 0.3 s for a good answer, too: that is a stall more, and not the end."""
    monkeypatch.setattr(patience, "_GIVE_UP", 100)
    monkeypatch.setattr(buckets, "_ATTEMPTS", 100)
    before = buckets.traffic()

    assert READS[read](f"{kind}-{times}") == DATA
    seen = buckets.traffic().since(before)
    assert seen.stalls == len(store.asked[f"{kind}-{times}"]) - 1 >= times
    assert seen.retries >= seen.stalls
    assert seen.bytes >= SIZE


def test_a_read_goes_on_from_where_it_stopped(store: StallingStore) -> None:
    assert READS["range"]("middle-1") == DATA
    first, second, *_ = store.asked["middle-1"]

    assert (first.range, first.if_match) == (f"bytes=0-{SIZE - 1}", '"v1"')
    assert (second.range, second.if_match) == (f"bytes={SIZE // 2}-{SIZE - 1}", '"v1"')


def test_a_slow_read_goes_on_from_where_it_stopped_each_time(store: StallingStore) -> None:
    """At 50 kB/s it takes four seconds, and each request has 0.3."""
    assert READS["range"]("slow-100") == DATA
    starts = [int((asked.range or "")[6:].partition("-")[0]) for asked in store.asked["slow-100"]]

    after = len(starts) - starts[::-1].index(0)  # obstore gave up what it had, and began again
    assert starts[after:] == sorted(starts[after:])
    assert len(set(starts[after:])) > 5


@pytest.mark.slow
@pytest.mark.smoke("trickle-range", "silent-whole")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", ["headers", "silent", "trickle"])
def test_a_read_that_never_gets_on_is_an_error(store: StallingStore, kind: str, read: str) -> None:
    began = time.monotonic()
    with raised(StoreError, path=f"s3://bucket/{kind}-99") as caught:
        READS[read](f"{kind}-99")
    took = time.monotonic() - began

    assert took >= 5 * STALL_S
    assert len(store.asked[f"{kind}-99"]) < 12
    assert "bytes came in" in str(caught.value)
    assert "HEADRACE_STORE_STALL_SECONDS" in (caught.value.remedy or "")


def test_the_error_counts_the_bytes_that_came(store: StallingStore) -> None:
    with raised(StoreError, path="s3://bucket/trickle-99") as caught:
        READS["range"]("trickle-99")
    got = int(str(caught.value).partition(" bytes came in")[0].rpartition(" ")[2].replace(",", ""))

    assert 20 <= got < 2048


@pytest.mark.parametrize("verb", ["stat", "put_new", "replace", "delete"])
def test_any_other_request_ends_too(store: StallingStore, verb: str) -> None:
    act = {
        "stat": lambda: place("silent-99").stat(),
        "put_new": lambda: place("silent-99").put_new(b"bytes"),
        "replace": lambda: place("silent-99").replace(b"bytes"),
        "delete": lambda: place("silent-99").alias(place("silent-98").path),
    }[verb]
    place("silent-99")._bucket.store_for_upload(1)
    bucket = place("silent-99")._bucket
    for size in (1, 64 << 20):  # uploads have more time: less of it here
        bucket._uploads[1 << max(20, (size - 1).bit_length())] = bucket._connect(STALL_S)

    with raised(StoreError, path="s3://bucket/silent-99"):
        act()


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("kind", ["middlereplaced", "deafreplaced"])
def test_bytes_of_two_objects_never_meet(store: StallingStore, kind: str, times: int) -> None:
    """It is replaced between the first part of a read and its continuation; a deaf store ignores `If-Match`."""
    with raised(CorruptShard, path=f"s3://bucket/{kind}-{times}"):
        READS["range"](f"{kind}-{times}")


@pytest.mark.parametrize("kind", ["middlereplaced", "deafreplaced"])
def test_an_object_of_which_nothing_was_known_is_read_anew(store: StallingStore, kind: str) -> None:
    assert READS["whole"](f"{kind}-1") == READS["whole"](f"{kind}-2") == OTHER
    with raised(CorruptShard, path=f"s3://bucket/{kind}-3"):  # a part of it was kept
        READS["whole"](f"{kind}-3")


@pytest.mark.parametrize("kind", ["whole", "elsewhere"])
def test_an_answer_with_other_bytes_than_were_asked_for(store: StallingStore, kind: str) -> None:
    assert bytes(place(f"{kind}-1").read_range(10, 20)) == DATA[10:20]
    with raised(StoreError, path=f"s3://bucket/{kind}-99") as caught:
        place(f"{kind}-99").read_range(10, 20)

    assert "other bytes than were asked for" in str(caught.value)


def test_an_answer_that_is_shorter_than_it_says(store: StallingStore) -> None:
    assert READS["whole"]("short-1") == DATA


@pytest.mark.parametrize("prefix", ["endless", "empty"])
@pytest.mark.parametrize("verb", ["files_below", "children"])
def test_an_endless_listing_is_an_error(store: StallingStore, prefix: str, verb: str) -> None:
    with raised(StoreError, path=f"s3://bucket/{prefix}", remedy="listing"):
        getattr(place(prefix), verb)()
    pages = store.pages.total()
    time.sleep(0.2)

    assert store.pages.total() <= pages + 1  # nothing goes on in the background


def test_an_object_that_a_store_acknowledges_and_loses(store: StallingStore) -> None:
    for act in (
        lambda: place("lost").put_new(b"bytes"),
        lambda: place("lost").put_new(bytes(9 << 20)),
        lambda: place("lost").replace(b"bytes"),
    ):
        with raised(StoreError, path="s3://bucket/lost", remedy="keeps what it is given"):
            act()


def test_new_bytes_that_a_store_acknowledges_and_loses(store: StallingStore) -> None:
    with raised(StoreError, path="s3://bucket/kept", remedy="keeps what it is given"):
        place("kept").replace(b"other bytes")

    place("kept").replace(DATA)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_STORE_STALL_SECONDS", "0"),
        ("HEADRACE_STORE_STALL_SECONDS", "nan"),
        ("HEADRACE_STORE_STALL_SECONDS", "soon"),
        ("HEADRACE_STORE_STALL_BYTES", "1.5"),
        ("HEADRACE_STORE_STALL_BYTES", "-1"),
    ],
)
def test_a_setting_that_is_no_number_is_named(
    store: StallingStore, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with raised(SettingsError, setting=name, value=value):
        place("fine").stat()


def test_a_stream_counts_them(
    proxied: tuple[str, FaultProxy], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    bucket, proxy = proxied
    upload(write_raw(tmp_path / "raw"), f"{bucket}/raw")
    monkeypatch.setenv("HEADRACE_STORE_STALL_SECONDS", "1")
    buckets.forget_buckets()
    made = headrace.prepare(split_of(f"{bucket}/raw"), f"{bucket}/out", work_dir=tmp_path / "work")
    calm = rows_of(headrace.open(made.run), "train")
    proxy.begin(Faults("slow_start", 0.3, methods=("GET",), only=".csv", seed=2, delay_s=1.5))
    stream = headrace.open(made.run).stream("train", batch_size=7, batch_format="rows")

    assert [row for batch in stream for row in batch] == calm
    stats = stream.stats()
    asked: dict[str, list[tuple[str, str]]] = {"GET": [], "HEAD": []}
    for (method, _), each in zip(proxy.seen.paths, proxy.seen.ranges, strict=True):
        if ".csv" in each[0]:
            asked[method].append(each)
    again = {method: len(every) - len(set(every)) for method, every in asked.items()}
    # what stalls is asked for again, and a busy machine may be as slow as the fault
    assert 0 < proxy.seen.faults["slow_start"] <= stats.store_stalls
    assert again["GET"] <= stats.store_stalls <= sum(again.values())
    assert stats.store_retries >= stats.store_stalls
    assert stats.store_bytes > 1000
    assert stats.store_bytes_per_s > 0
