"""Addresses: the strict forms and no others, texts that come back, words that order as bytes do."""

import ipaddress
import socket

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.histories.codec.addresses import Addresses, from_words, parse, render

ADDRESSES = st.lists(st.ip_addresses().map(str), max_size=30)


@given(ADDRESSES)
def test_addresses_come_back_as_their_usual_text(texts: list[str]) -> None:
    got = parse(pa.array(texts, pa.string()), "address")

    rendered = render(got, "address").to_pylist()
    assert [ipaddress.ip_address(text) for text in texts] == [
        ipaddress.ip_address(text) for text in rendered
    ]
    np.testing.assert_array_equal(
        got.bytes, parse(pa.array(rendered, pa.string()), "address").bytes
    )
    assert [ipaddress.ip_address(text).version for text in texts] == got.family.tolist()
    assert [ipaddress.ip_address(text).packed.ljust(16, b"\0") for text in texts] == [
        row.tobytes() for row in got.bytes
    ]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=30))
def test_numbers_come_back(numbers: list[int]) -> None:
    got = parse(pa.array([str(number) for number in numbers], pa.large_string()), "number")

    assert [str(number) for number in numbers] == render(got, "number").to_pylist()


GROUP = st.sampled_from([0, 0, 0, 1, 0x10, 0xABC, 0xFFFF]) | st.integers(0, 0xFFFF)


@pytest.mark.slow
@example(
    [
        [0] * 8,
        [0] * 7 + [1],
        [0] * 6 + [1, 2],
        [0] * 5 + [0xFFFF, 1, 2],
        [1, 0, 0, 2, 0, 0, 3, 4],
        1 << 24,
    ]
)
@given(st.lists(st.lists(GROUP, min_size=8, max_size=8) | st.integers(0, 2**32 - 1), max_size=40))
def test_texts_are_those_of_the_system(drawn: list[list[int] | int]) -> None:
    family = np.array([6 if isinstance(each, list) else 4 for each in drawn], np.uint8)
    data = np.zeros((len(drawn), 16), np.uint8)
    expected = []
    for row, each in enumerate(drawn):
        packed = (
            b"".join(group.to_bytes(2) for group in each)
            if isinstance(each, list)
            else each.to_bytes(4)
        )
        data[row, : len(packed)] = np.frombuffer(packed, np.uint8)
        expected.append(
            socket.inet_ntop(socket.AF_INET6 if len(packed) == 16 else socket.AF_INET, packed)
        )
    texts = render(Addresses(family, data), "address")

    texts.validate(full=True)
    assert pa.string() == texts.type
    assert expected == texts.to_pylist()


def test_every_number_of_an_ipv4_text_is_written() -> None:
    data = np.zeros((256, 16), np.uint8)
    data[:, :4] = (np.arange(256)[:, None] * [1, 3, 5, 7]).astype(
        np.uint8
    )  # each once in each of the four
    addresses = Addresses(np.full(256, 4, np.uint8), data)

    assert [socket.inet_ntoa(each.tobytes()) for each in data[:, :4]] == render(
        addresses, "address"
    ).to_pylist()


@given(ADDRESSES)
def test_words_order_as_bytes_do_and_come_back(texts: list[str]) -> None:
    got = parse(pa.array(texts, pa.string()), "address")
    words = got.words()

    np.testing.assert_array_equal(got.bytes, from_words(got.family, words).bytes)
    by_words = sorted(range(len(texts)), key=lambda row: tuple(words[row].tolist()))
    by_bytes = sorted(range(len(texts)), key=lambda row: got.bytes[row].tobytes())
    assert by_bytes == by_words


HEX = st.text("0123456789abcdefABCDEFgG.", max_size=5)


@given(st.lists(st.lists(HEX, min_size=8, max_size=8).map(":".join), max_size=20))
def test_eight_groups_are_read_as_the_system_reads_them(texts: list[str]) -> None:
    got = parse(pa.array(texts, pa.string()), "address")

    for text, family, data in zip(texts, got.family.tolist(), got.bytes, strict=True):
        try:
            expected = socket.inet_pton(socket.AF_INET6, text)
        except OSError:
            expected = b""
        assert expected == (data.tobytes() if family else b"")


@given(st.lists(st.ip_addresses(v=6).map(lambda address: address.exploded.upper()), max_size=20))
def test_addresses_in_full_and_in_capitals_are_read(texts: list[str]) -> None:
    got = parse(pa.array(texts, pa.string()), "address")

    assert [ipaddress.ip_address(text).packed for text in texts] == [
        row.tobytes() for row in got.bytes
    ]


@pytest.mark.parametrize(
    "text",
    ["", "1.2.3", "1.2.3.4.5", "256.1.1.1", "01.2.3.4", "1.2.3.04", "1.2.3.4 ", "1..2.3", "a.b.c.d", "host", "12", "1.2.3.-4", "1:2", "::1%eth0", "g::1", "1.2.3.4/8", "::1\0", "１.2.3.4", "1:2:3:4:5:6:7:g", "1:2:3:4:5:6:7:", "12345:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8:9"],
)  # fmt: skip
def test_what_is_no_strict_address_is_not_read(text: str) -> None:
    got = parse(pa.array(["1.2.3.4", text, "::1"]), "address")

    assert [4, 0, 6] == got.family.tolist()


@pytest.mark.parametrize(
    "text", ["", "-1", "4294967296", "99999999999999999999", "1.0", "007", "x", "+1", " 1"]
)
def test_what_is_no_number_is_not_read(text: str) -> None:
    assert [4, 0] == parse(pa.array(["4294967295", text]), "number").family.tolist()


def test_slices_of_arrays_are_read_as_what_they_show() -> None:
    texts = pa.array(["9.9.9.9", "1.2.3.4", "::5", "10.0.0.255", "8.8.8.8"]).slice(1, 3)

    assert ["1.2.3.4", "::5", "10.0.0.255"] == render(
        parse(texts, "address"), "address"
    ).to_pylist()
