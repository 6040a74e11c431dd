"""A proxy between us and the store does harm; what comes out is right all the same, or says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_proxy import FaultProxy, Faults
from store_cases import rows_of, split_of, tree, upload, write_raw
from store_servers import CANARY, S3Server

import headrace
from headrace.errors import CorruptShard, HeadraceError, StoreError
from headrace.storage import bucket as buckets
from headrace.storage import object_store
from headrace.storage.places import path_of, place_of


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between attempts are short; how many attempts there are stays."""
    monkeypatch.setattr(buckets, "_LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(buckets, "_FIRST_BACKOFF_S", 0.005)
    buckets.forget_buckets()


def put_and_read(bucket: str, count: int = 25, size: int = 5000) -> int:
    """Publish and read objects; how many are not what was put."""
    data = {f"object-{number}": bytes([number]) * size for number in range(count)}
    for name, each in data.items():
        place_of(path_of(bucket) / name).put_new(each)
    listed = [fact.name for fact in place_of(path_of(bucket)).files_below()]
    wrong = sum((path_of(bucket) / name).read_bytes() != each for name, each in data.items())
    return wrong + (listed != sorted(data))


@pytest.mark.slow
@pytest.mark.smoke("gs")
def test_slow_down_costs_requests_not_results(
    every_proxied: tuple[str, FaultProxy], impatient: None
) -> None:
    bucket, proxy = every_proxied
    proxy.begin(Faults())
    put_and_read(bucket)
    undisturbed = proxy.total
    for fact in place_of(path_of(bucket)).files_below():
        place_of(path_of(bucket) / fact.name).delete()
    proxy.begin(Faults("slow_down", 0.3, seed=1))

    assert put_and_read(bucket) == 0
    assert proxy.seen.faults["slow_down"] > 0.2 * proxy.total
    assert proxy.total <= 1.6 * undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cut", "short", "slow_start"])
def test_answers_that_break_off_are_asked_for_again(
    proxied: tuple[str, FaultProxy], impatient: None, kind: str
) -> None:
    bucket, proxy = proxied
    proxy.begin(Faults(kind, 0.2, methods=("GET",), seed=2))

    assert put_and_read(bucket, count=25) == 0
    assert proxy.seen.faults[kind] > 0


@pytest.mark.slow
def test_a_lost_acknowledgement_is_no_failure(
    every_proxied: tuple[str, FaultProxy], impatient: None
) -> None:
    bucket, proxy = every_proxied
    proxy.begin(Faults("lost_reply", 0.4, methods=("PUT",), seed=3))

    assert put_and_read(bucket, count=30) == 0
    assert proxy.seen.faults["lost_reply"] > 5
    assert len(place_of(path_of(bucket)).files_below()) == 30


@pytest.mark.smoke("az")
def test_other_bytes_do_not_win_by_a_lost_acknowledgement(
    every_proxied: tuple[str, FaultProxy], impatient: None
) -> None:
    bucket, proxy = every_proxied
    first = [
        place_of(path_of(bucket) / f"object-{number}").put_new(b"first") for number in range(5)
    ]
    proxy.begin(Faults("lost_reply", 0.6, methods=("PUT",), seed=3))
    for number in range(5):
        with pytest.raises(CorruptShard, match=f"object-{number}"):
            place_of(path_of(bucket) / f"object-{number}").put_new(b"other")

    assert first == ["put"] * 5
    assert proxy.seen.faults["lost_reply"] > 1
    assert [(path_of(bucket) / f"object-{number}").read_bytes() for number in range(5)] == [
        b"first"
    ] * 5


@pytest.mark.slow
def test_a_run_comes_out_the_same(
    proxied: tuple[str, FaultProxy], impatient: None, tmp_path: Path
) -> None:
    bucket, proxy = proxied
    raw = write_raw(tmp_path / "raw", shards=2)
    upload(raw, f"{bucket}/raw")
    made = headrace.prepare(
        split_of(f"{bucket}/raw"), f"{bucket}/calm", workers=2, work_dir=tmp_path / "work"
    )
    rows = rows_of(headrace.open(made.run), "train", shuffle=True, seed=5)
    calm = tree(f"{bucket}/calm")
    for kind in ("cut", "lost_reply", "slow_down"):
        proxy.begin(Faults(kind, 0.15, seed=4))
        again = headrace.prepare(
            split_of(f"{bucket}/raw"), f"{bucket}/{kind}", workers=2, work_dir=tmp_path / "work"
        )
        streamed = rows_of(headrace.open(again.run), "train", shuffle=True, seed=5)
        faults = proxy.seen.faults[kind]
        proxy.begin(Faults())
        wild = tree(f"{bucket}/{kind}")

        assert faults > 3
        assert streamed == rows
        assert {
            name: data for name, data in wild.items() if not name.endswith("manifest.json")
        } == {name: data for name, data in calm.items() if not name.endswith("manifest.json")}


def test_an_upload_in_parts_that_fails_leaves_nothing(
    proxied: tuple[str, FaultProxy],
    s3_environment: S3Server,
    impatient: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket, proxy = proxied
    monkeypatch.setattr(object_store, "_SINGLE_PUT", 1 << 20)
    monkeypatch.setattr(object_store, "_PART", 5 << 20)
    (tmp_path / "large").write_bytes(bytes(11 << 20))
    place = path_of(bucket) / "large"
    for part in (1, 2, 3):
        proxy.begin(Faults("refuse", 1.0, methods=("PUT",), only=f"partNumber={part}&"))
        with pytest.raises(StoreError, match="large"):
            place_of(place).put_new(tmp_path / "large")
        assert proxy.seen.faults["refuse"] > 0
        assert not place.is_file()
        assert b"<UploadId>" not in s3_environment.request(
            "GET", f"/{bucket.removeprefix('s3://')}?uploads"
        )
    proxy.begin(Faults("slow_down", 0.3, methods=("PUT", "POST"), seed=6))

    assert place_of(place).put_new(tmp_path / "large") == "put"
    assert place_of(place).checksum() == place_of(tmp_path / "large").checksum()


def test_a_store_that_refuses_is_told_without_secrets(
    proxied: tuple[str, FaultProxy], impatient: None
) -> None:
    bucket, proxy = proxied
    place_of(path_of(bucket) / "object").put_new(b"bytes")
    verbs_tried = {
        "read": lambda: (path_of(bucket) / "object").read_bytes(),
        "range": lambda: place_of(path_of(bucket) / "object").read_ranges([(0, 2)]),
        "put": lambda: place_of(path_of(bucket) / "other").put_new(b"x"),
        "list": lambda: place_of(path_of(bucket)).files_below(),
        "open": lambda: headrace.open(f"{bucket}/out"),
    }
    for kind in ("refuse", "deny"):
        proxy.begin(Faults(kind, 1.0))
        for name, act in verbs_tried.items():
            with pytest.raises(HeadraceError) as told:
                act()
            chain = [told.value, told.value.__cause__]

            assert not any(
                CANARY in repr(each) + str(each) for each in chain if each is not None
            ), (kind, name)
            assert bucket in str(told.value)
            assert ("credentials" if kind == "deny" else "400") in str(told.value)
