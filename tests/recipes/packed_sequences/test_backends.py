"""Ids without offsets: those of `tokenizers` for any text, and masks by bytes that are those by offsets."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from chats import DEMOS, chat, encoder, needs_data, qwen_encoder, rows_of, small_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_cases import packed, write_jsonl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace.errors import MissingExtra, SettingsError
from headrace.packing.chats.account import token_bytes_of
from laws import examples
from raised import raised

signs = st.sampled_from(["a", "B", "the", "answer", " ", "  ", "\n", "\r\n", "\t", "7", "1234", "'s", "'LL", ".", "...", "</s>", "<|im_end|>", "<|im", "é", "e\u0301", "ß", "爱", "你好", "़", "\u00a0", "\u3000", "\u2028", "\x1c", "\x00", "\x85", "😀", "ſ", "K", "º", "Dž", "²", "\u200b", "\ufffd"])  # fmt: skip
texts = st.lists(signs | st.characters(exclude_categories=["Cs"]), max_size=12).map("".join)


def assert_same(expected, encoded):
    assert expected.tokens.tolist() == encoded.tokens.tolist()
    assert expected.mask.tolist() == encoded.mask.tolist()
    assert expected.lengths.tolist() == encoded.lengths.tolist()
    assert [each.reason for each in expected.rejected] == [each.reason for each in encoded.rejected]


def by_offsets_of(by_bytes):
    """The same encoder, which finds tokens by their offsets."""
    found = encoder(by_bytes.settings.tokenizer, tokenizer_backend="tokenizers")
    vars(found)["_token_bytes"] = None
    return found


class Library:
    """A stand-in for fastokens that is right, except for texts with a certain word."""

    wrong = "wrong"

    def __init__(self, text: str) -> None:
        self.tokenizer = Tokenizer.from_str(text)

    from_json_str = classmethod(lambda cls, text: cls(text))

    def encode_batch_flat(self, texts, add_special_tokens):
        ids = [[0] if self.wrong in text else self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids for text in texts]  # fmt: skip
        flat, offsets = sum(ids, []), np.cumsum([0, *map(len, ids)])
        return np.array(flat, "<u4").tobytes(), offsets.astype("<u8").tobytes()


@pytest.fixture
def library(monkeypatch):
    """Install the stand-in."""
    monkeypatch.setitem(sys.modules, "fastokens", SimpleNamespace(Tokenizer=Library))
    return Library


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Encoders by bytes and by offsets, for texts as they are and normalised ones."""
    directory = small_tokenizer(tmp_path_factory.mktemp("plain"))
    normalised = small_tokenizer(tmp_path_factory.mktemp("nfc"))
    definition = json.loads((normalised / "tokenizer.json").read_text())
    (normalised / "tokenizer.json").write_text(
        json.dumps(definition | {"normalizer": {"type": "NFC"}})
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "fastokens", SimpleNamespace(Tokenizer=Library))
        pairs = [(found, by_offsets_of(found)) for found in map(encoder, (directory, normalised))]
        assert ["fastokens"] * 2 == [by_bytes.backend for by_bytes, _ in pairs]
    return pairs


@settings(deadline=None, max_examples=examples(100))
@given(rows=st.lists(st.lists(texts, min_size=2, max_size=4), min_size=1, max_size=3))
def test_masks_by_bytes_are_those_by_offsets(both, rows):
    chats = [chat(*("x" + text for text in row)) for row in rows]
    for by_bytes, by_offsets in both:
        assert_same(by_offsets.encode(chats), by_bytes.encode(chats))


def test_other_tokenizers_need_offsets(tmp_path, library):
    place = small_tokenizer(tmp_path / "t")
    definition = json.loads((place / "tokenizer.json").read_text())
    for change in (
        {"normalizer": {"type": "Lowercase"}},
        {
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": "always",
                "split": True,
            }
        },
        {"pre_tokenizer": {**definition["pre_tokenizer"], "add_prefix_space": True}},
        {"model": {**definition["model"], "dropout": 0.1}},
        {
            "added_tokens": [
                {**definition["added_tokens"][0], "lstrip": True},
                *definition["added_tokens"][1:],
            ]
        },
    ):
        assert token_bytes_of(Tokenizer.from_str(json.dumps(definition | change))) is None
    (place / "tokenizer.json").write_text(
        json.dumps(definition | {"normalizer": {"type": "Lowercase"}})
    )
    with raised(
        SettingsError,
        setting="tokenizer_backend",
        value="fastokens",
        remedy='give tokenizer_backend="auto"',
    ):
        encoder(place, tokenizer_backend="fastokens").encode([chat("q", "a")])
    assert encoder(place).backend is None


def test_a_library_that_differs_on_any_probe_is_not_used(tmp_path, library, monkeypatch):
    monkeypatch.setattr(library, "wrong", "a7")
    place = small_tokenizer(tmp_path / "t")

    assert encoder(place).backend is None
    with pytest.raises(SettingsError, match="gives other ids"):
        encoder(place, tokenizer_backend="fastokens").encode([chat("q", "a")])


@pytest.mark.slow
@pytest.mark.parametrize("differs", [False, True])
def test_a_library_is_compared_and_replaced_at_the_first_difference(differs, tmp_path, library):
    place = small_tokenizer(tmp_path / "t")
    rows = [
        chat(f"question {n}", f"wrong {n}" if differs and n > 200 else f"answer {n}")
        for n in range(600)
    ]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    expected = packed(source, tmp_path / "a", tokenizer=place, tokenizer_backend="tokenizers")
    found = packed(source, tmp_path / "b", tokenizer=place, tokenizer_backend="fastokens")
    counts = found.manifest.metadata["encoder"]["backend"]

    assert expected.manifest.run_id == found.manifest.run_id
    assert [each.read_bytes() for each in shards(expected)] == [
        each.read_bytes() for each in shards(found)
    ]
    assert counts["different"] == differs
    assert (counts["compared"] > 3) != differs


def shards(prepared):
    return sorted(prepared.run.rglob("*shard_*.parquet"))


def test_without_the_library_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    place = small_tokenizer(tmp_path / "t")
    with raised(MissingExtra, remedy="pip install 'headrace[fastokens]'"):
        encoder(place, tokenizer_backend="fastokens").encode([chat("q", "a")])
    assert encoder(place).backend is None


@pytest.mark.slow
@needs_data
def test_fastokens_gives_the_ids_and_masks_of_tokenizers():
    pytest.importorskip("fastokens")
    by_bytes = qwen_encoder(tokenizer_backend="fastokens")
    without_library = qwen_encoder(tokenizer_backend="tokenizers")
    by_offsets = by_offsets_of(by_bytes)
    compared = 0
    for name in [*(path.name for path in sorted(DEMOS.glob("*.gz"))), "test.jsonl.gz"]:
        rows = rows_of(name, 100)
        encoded = by_bytes.encode(rows)
        compared += encoded.compared

        expected = by_offsets.encode(rows)
        assert_same(expected, encoded)
        assert_same(expected, without_library.encode(rows))
    assert compared > 5


def test_a_vocabulary_without_every_byte_is_read_by_tokenizers(tmp_path):
    """fastokens refuses a byte without a token, where tokenizers leaves it out."""
    pytest.importorskip("fastokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["one plus two is three"],
        trainers.BpeTrainer(special_tokens=["<|im_start|>", "<|im_end|>"]),
    )
    directory = small_tokenizer(tmp_path / "t")
    tokenizer.save(str(directory / "tokenizer.json"))

    chosen = encoder(directory)
    assert chosen.backend is None
    row = [chat("one\x00two", "three")]
    assert_same(encoder(directory, tokenizer_backend="tokenizers").encode(row), chosen.encode(row))
    with pytest.raises(SettingsError, match="gives other ids"):
        encoder(directory, tokenizer_backend="fastokens").encode(row)
