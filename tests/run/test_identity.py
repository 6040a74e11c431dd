"""The identity of a run has the settings that can change a byte of its output, and no others."""

from pathlib import Path

import headrace
from headrace.digest import canonical_json, sha256_hex
from headrace.run.settings import RecipeSettings


def digest_of(settings: RecipeSettings) -> str:
    return sha256_hex(canonical_json(settings.identity_settings()))


def test_settings_that_change_bytes_change_the_identity(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    plain = headrace.Rewrite(source=tmp_path)
    settings = [
        plain,
        headrace.Rewrite(source=tmp_path, compression="lz4"),
        headrace.Rewrite(source=tmp_path, columns=["a"]),
    ]

    assert 3 == len(set(map(digest_of, settings)))
    assert digest_of(plain) == digest_of(headrace.Rewrite(source=tmp_path, compression="none"))


def test_the_length_of_word_sequences_counts_only_with_an_exclusion(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")

    assert digest_of(headrace.RandomSplit(source=tmp_path)) == digest_of(
        headrace.RandomSplit(source=tmp_path, exclude_ngram=5)
    )
