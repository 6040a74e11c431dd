"""Normalise texts, and cut them into words: one rule for near rows, benchmark items and names.

| texts | are compared as |
|---|---|
| full-width, superscript and other compatibility forms, composed or not | their NFKC form |
| zero-width characters, soft hyphens, variation selectors, other unseen ones | nothing |
| upper case, title case, `ß`, final `ς`, Turkish `ı` and `İ` | lower case, `ss`, `σ`, `i` |
| Cyrillic and Greek letters that look like Latin ones, such as `а`, `с` and `ο` | the Latin ones |
| `_` and every other character that is no letter, digit or mark | a blank between words |
| Han, kana, Thai, Lao, Khmer, Myanmar | one word a character |

Pure. ASCII texts, which most are, take none of the Unicode steps.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from headrace.arrays import I64

_NO_BLANKS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = rf"[{_NO_BLANKS}]|[\w&&[^_{_NO_BLANKS}]]+"
_UNSEEN = r"[\p{Cf}\p{Default_Ignorable_Code_Point}]"
# What Unicode's case folding does beyond lower case, in NFKC. Which of the two Turkish letters a
# text has depends on who wrote it in capitals, so they are one here.
_FOLDED = {"ß": "ss", "ς": "σ", "i\u0307": "i", "ı": "i"}
# Lower-case letters that are drawn alike, as are their capitals: texts that mix scripts hide copies
# by them. Within one script they stay distinct, so words of other scripts are as equal as before.
_LOOK_ALIKES = dict(zip("асеорхуіјѕһԁԛԝкοαικχρτε", "aceopxyijshdqwkoaikxpte", strict=True))
_FOLDED |= _LOOK_ALIKES


def folded(texts: pl.Series) -> pl.Series:
    """Return texts in NFKC, without format characters, and case folded; null stays null."""
    wide = np.flatnonzero(
        (texts.str.len_bytes() != texts.str.len_chars()).fill_null(value=False).to_numpy()
    )
    plain = texts.str.to_lowercase()
    if not len(wide):
        return plain
    other = (
        texts.gather(wide)
        .str.replace_all(_UNSEEN, "")
        .str.normalize("NFKC")
        .str.to_lowercase()
        .str.replace_many(_FOLDED)
    )
    return plain.scatter(wide, other)


def words_of(texts: pl.Series) -> tuple[pl.Series, I64]:
    """Return the words of texts, end to end, and the number of words in each text."""
    lists = folded(texts).str.extract_all(_WORD)
    counts = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
    return lists.filter(pl.Series(counts > 0)).explode(), counts


def plain_names(names: pl.Series) -> pl.Series:
    """Return names of entities folded, without blanks around them, and with one between words."""
    return folded(names).str.strip_chars().str.replace_all(r"\s+", " ")
