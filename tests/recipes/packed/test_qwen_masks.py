"""Masks and tokens of real chats under the real Qwen3 template, against independent readings of the same text.

The oracle cuts the rendered text at its ChatML marks: what stands between an assistant header and the next end mark is
the model's. It encodes turn by turn in a loop. Qwen3 writes no ChatML marks inside a turn, so the cut is exact there.
"""

import itertools
import re

import jinja2
import pytest
from chats import QWEN, encoder, needs_data, rows_of

from headrace.recipes.packed_sequences.layouts import sample_of
from headrace.recipes.packed_sequences.tokenizer_files import read_tokenizer

pytestmark = needs_data
FILES = ("train.jsonl.gz", "alpaca_en_demo.json.gz", "glaive_toolcall_en_demo.json.gz", "glaive_toolcall_zh_demo.json.gz", "reason_tool_use_demo_50.jsonl.gz", "v1_sft_demo.jsonl.gz")  # fmt: skip
TURN = re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)


@pytest.fixture(scope="module")
def qwen():
    return encoder(QWEN)


@pytest.fixture(scope="module")
def plain_template():
    """The template in an environment of the test's own."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: __import__("json").dumps(value, ensure_ascii=False)
    return environment.from_string(read_tokenizer(QWEN).templates["default"])


def turn_by_turn(tokenizer, text: str) -> tuple[list[int], list[int]]:
    """Ids and mask of a ChatML text, each trained and each untrained part encoded on its own."""
    ids, mask = [], []
    for place, part in enumerate(re.split(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", text, flags=re.DOTALL)):
        found = tokenizer.encode(part, add_special_tokens=False).ids
        ids += found
        mask += [place & 1] * len(found)
    return ids, mask


@pytest.mark.parametrize("name", FILES)
def test_tokens_and_masks_are_those_of_turn_by_turn_encoding(name, qwen, plain_template):
    rows = rows_of(name, 300)
    encoded = qwen.encode(rows)

    assert [] == encoded.rejected
    assert list(range(len(rows))) == encoded.rows.tolist()
    for row, (begin, end) in zip(rows, itertools.pairwise(encoded.offsets.tolist()), strict=True):
        sample = sample_of(row)
        text = plain_template.render(messages=sample.messages, tools=sample.tools)
        ids, mask = turn_by_turn(qwen.tokenizer, text)
        assert ids == encoded.tokens[begin:end].tolist()
        assert mask == encoded.mask[begin:end].tolist()
