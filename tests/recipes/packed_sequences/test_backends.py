"""Ids without offsets: those of `tokenizers` for any text, whatever makes them, and masks by bytes."""

import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from chats import DEMOS, QWEN, chat, encoder, needs_data, qwen_encoder, rows_of, small_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_cases import packed, write_jsonl
from tokenizers import Tokenizer

from headrace.errors import MissingExtra, SettingsError
from headrace.packing.chats.backends import Plain
from headrace.packing.chats.byte_level import GPT2, _known_characters, byte_level_of, translated, word_encoder_of
from laws import examples

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # fmt: skip
PATTERNS = {"gpt2": GPT2, "qwen2": QWEN2, "llama3": LLAMA3, "o200k": O200K}

signs = st.sampled_from(["a", "B", "the", "answer", " ", "  ", "\n", "\r\n", "\t", "7", "1234", "'s", "'LL", ".", "...", "</s>", "<|im_end|>", "<|im", "é", "e\u0301", "ß", "爱", "你好", "़", "\u00a0", "\u3000", "\u2028", "\x1c", "\x00", "\x85", "😀", "ſ", "K", "º", "Dž", "²", "\u200b", "\ufffd"])  # fmt: skip
texts = st.lists(signs | st.characters(exclude_categories=["Cs"]), max_size=12).map("".join)


def tokenizer_with(directory, pattern, nfc=False) -> Tokenizer:
    """The small tokenizer, with another pattern that cuts words."""
    definition = json.loads((small_tokenizer(directory) / "tokenizer.json").read_text())
    if pattern != GPT2:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, last]}
    if nfc:
        definition["normalizer"] = {"type": "NFC"}
    return Tokenizer.from_str(json.dumps(definition))


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """By name: a tokenizer, what encodes word by word with it, and what encodes with it but without offsets."""
    tokenizers = {
        f"{name}{nfc}": tokenizer_with(tmp_path_factory.mktemp("t"), pattern, nfc)
        for name, pattern in PATTERNS.items()
        for nfc in (False, True)
    }
    if QWEN.is_dir():
        tokenizers["qwen3"] = qwen_encoder().tokenizer
    levels = {name: byte_level_of(tokenizer) for name, tokenizer in tokenizers.items()}
    return {name: (tokenizers[name], word_encoder_of(level), Plain(level)) for name, level in levels.items()}


def split_ids(encoded) -> list[list[int]]:
    return (
        [ids.tolist() for ids in np.split(encoded.ids, np.cumsum(encoded.counts)[:-1])] if len(encoded.counts) else []
    )


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(texts, max_size=4))
def test_ids_are_those_of_the_tokenizer_for_any_texts(encoders, found):
    for tokenizer, words, plain in encoders.values():
        expected = [each.ids for each in tokenizer.encode_batch(found, add_special_tokens=False)]

        assert expected == split_ids(words.encode(found))
        assert expected == split_ids(plain.encode(found))


@pytest.mark.slow
def test_every_known_character_is_cut_as_the_tokenizer_cuts_it(encoders):
    """All characters whose class counts as known, between letters, numbers, spaces and others of their kind."""
    known = re.findall(f"[{''.join(_known_characters().values())}]", "".join(map(chr, range(0x80, 0x30000))))
    pieces = [f"a{sign}b1{sign}2 {sign} {sign}.{sign}\n" for sign in known]
    cut, wide = encoders["qwen2False"][0].pre_tokenizer.pre_tokenize_str, translated(QWEN2, wide=True).findall

    assert len(known) > 50_000
    for begin in range(0, len(pieces), 500):
        text = "".join(pieces[begin : begin + 500])
        assert [text[low:high] for _, (low, high) in cut(text)] == wide(text)


@pytest.mark.slow
@needs_data
def test_real_chats_have_the_ids_and_masks_of_offsets():
    """The path by offsets, of all other tokenizers, is the other way to the same."""
    by_offsets = encoder(QWEN)
    by_offsets._backend = None
    for name in [*(path.name for path in sorted(DEMOS.glob("*.gz"))), "test.jsonl.gz"]:
        rows = rows_of(name, 100)
        expected, found = by_offsets.encode(rows), qwen_encoder().encode(rows)

        assert expected.tokens.tolist() == found.tokens.tolist()
        assert expected.mask.tolist() == found.mask.tolist()
        assert expected.lengths.tolist() == found.lengths.tolist()


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(100))
@given(rows=st.lists(st.lists(texts, min_size=2, max_size=4), min_size=1, max_size=3))
def test_masks_by_bytes_are_those_by_offsets(both, rows):
    by_bytes, by_offsets = both
    found = [chat(*("x" + text for text in row)) for row in rows]
    expected, encoded = by_offsets.encode(found), by_bytes.encode(found)

    assert expected.tokens.tolist() == encoded.tokens.tolist()
    assert expected.mask.tolist() == encoded.mask.tolist()
    assert [each.reason for each in expected.rejected] == [each.reason for each in encoded.rejected]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    place = small_tokenizer(tmp_path_factory.mktemp("both"))
    by_bytes, by_offsets = encoder(place), encoder(place)
    by_offsets._backend = None
    return by_bytes, by_offsets


@pytest.mark.parametrize("pattern", [r"[\S\s]", r"\p{Han}+", r".", r"[a&&b]", r"\w+|\W", r"a{1,2}+", r"[[:alpha:]]+"])
def test_an_unusual_pattern_is_left_to_the_tokenizer(pattern):
    assert translated(pattern, wide=False) is None


def test_other_tokenizers_need_offsets(tmp_path):
    place = small_tokenizer(tmp_path / "t")
    definition = json.loads((place / "tokenizer.json").read_text())
    for change in (
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}},
        {"pre_tokenizer": {**definition["pre_tokenizer"], "add_prefix_space": True}},
        {"model": {**definition["model"], "dropout": 0.1}},
        {"added_tokens": [{**definition["added_tokens"][0], "lstrip": True}, *definition["added_tokens"][1:]]},
    ):
        assert byte_level_of(Tokenizer.from_str(json.dumps(definition | change))) is None
    (place / "tokenizer.json").write_text(json.dumps(definition | {"normalizer": {"type": "Lowercase"}}))
    with pytest.raises(SettingsError, match="encodes byte-level BPE"):
        encoder(place, tokenizer_backend="fastokens").encode([chat("q", "a")])


class Library:
    """What stands for fastokens: right, but for texts with a certain word."""

    wrong = "wrong"

    def __init__(self, text: str) -> None:
        self.tokenizer = Tokenizer.from_str(text)

    from_json_str = classmethod(lambda cls, text: cls(text))

    def encode_batch_flat(self, texts, add_special_tokens):
        ids = [[0] if self.wrong in text else self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids for text in texts]  # fmt: skip
        flat, offsets = sum(ids, []), np.cumsum([0, *map(len, ids)])
        return np.array(flat, "<u4").tobytes(), offsets.astype("<u8").tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("differs", [False, True])
def test_a_library_is_compared_and_replaced_at_the_first_difference(differs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", SimpleNamespace(Tokenizer=Library))
    place = small_tokenizer(tmp_path / "t")
    rows = [chat(f"question {n}", f"wrong {n}" if differs and n > 200 else f"answer {n}") for n in range(600)]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    expected = packed(source, tmp_path / "a", tokenizer=place)
    found = packed(source, tmp_path / "b", tokenizer=place, tokenizer_backend="fastokens")
    counts = found.manifest.facts["encoder"]["backend"]

    assert expected.manifest.run_id == found.manifest.run_id
    assert [each.read_bytes() for each in shards(expected)] == [each.read_bytes() for each in shards(found)]
    assert counts["different"] == differs
    assert (counts["compared"] > 3) != differs
    assert (counts["instead"] == 600) == differs


def shards(prepared):
    return sorted(prepared.run.rglob("*shard_*.parquet"))


def test_without_the_library_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    with pytest.raises(MissingExtra, match=r"headrace\[fastokens\]"):
        encoder(small_tokenizer(tmp_path / "t"), tokenizer_backend="fastokens").encode([chat("q", "a")])


@pytest.mark.slow
@needs_data
def test_fastokens_gives_the_same_ids():
    pytest.importorskip("fastokens")
    rows = rows_of("test.jsonl.gz")
    expected, found = encoder(QWEN).encode(rows), encoder(QWEN, tokenizer_backend="fastokens").encode(rows)

    assert expected.tokens.tolist() == found.tokens.tolist()
    assert expected.mask.tolist() == found.mask.tolist()
    assert found.tally["backend_compared"] > 10
