"""Real questions and answers out of a package, and a tokenizer that learns its words from them.

The chatterbot-corpus package (BSD 3-Clause) is a folder of YAML files a language, each a list of conversations. It is
found and never imported. Behind the first answer some files go on with the dialogue and others give more answers to the
same question; nothing in them says which, so a question and its first answer are taken and the rest is left.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

WORDS = 4096
TURNS = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def packaged_rows() -> list[str]:
    """A JSON line {question, answer} for each that differs from those before: files by name, rows as they stand."""
    package = importlib.util.find_spec("chatterbot_corpus")
    if package is None or not package.submodule_search_locations:
        sys.exit(
            "the conversations are not installed: pip install --no-deps chatterbot-corpus; or say where JSON lines of"
            " question and answer are with --data"
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows: dict[str, None] = {}
    for path in sorted(Path(package.submodule_search_locations[0], "data").glob("*/*.yml")):
        for turns in yaml.load(path.read_text(encoding="utf-8"), loader)["conversations"]:
            if len(turns) > 1:
                row = {"question": turns[0].strip(), "answer": turns[1].strip()}
                rows[json.dumps(row, ensure_ascii=False)] = None
    return list(rows)


def rows_of(data: Path | None) -> list[str]:
    """JSON lines: of a file, which may be gzipped, or of the package."""
    if data is None:
        return packaged_rows()
    if not data.exists():
        sys.exit(
            f"{data} does not exist; say where JSON lines of question and answer are with --data"
        )
    text = gzip.decompress(data.read_bytes()) if data.suffix == ".gz" else data.read_bytes()
    return [line for line in text.decode().split("\n") if line.strip()]


def write_if_new(path: Path, text: str) -> Path:
    """The file holds the text; one that holds it already stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != text.encode():
        path.write_bytes(text.encode())
    return path


def texts(value: object) -> Iterator[str]:
    """All strings of a row, keys apart."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)


def train_tokenizer(rows: list[str], directory: Path) -> Path:
    """A byte-level BPE of the rows' texts, with a chat template: the same rows give the same files."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        sys.exit("a tokenizer cannot be trained without tokenizers: pip install 'headrace[chat]'")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=list(TURNS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        (text for row in rows for text in texts(json.loads(row))), trainer
    )
    write_if_new(directory / "tokenizer.json", tokenizer.to_str())
    write_if_new(
        directory / "tokenizer_config.json",
        json.dumps({"chat_template": TEMPLATE, "eos_token": TURNS[1]}, indent=2),
    )
    return directory
