"""What a run tells of its environment: nothing. A child with a canary where secrets lie is made to fail in many ways."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import sys
import traceback
from pathlib import Path

from fault_recipes import RECIPES, make, settings_of

import headrace

CANARY = "c4nary-0f-a-secret"
PLACES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_STORAGE_KEY",
)
PLACES += (
    "AZURE_STORAGE_SAS_TOKEN",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "WANDB_API_KEY",
    "DATABASE_URL",
    "HEADRACE_TOKEN",
)


def child(directory: str, errors: int) -> None:
    """So many forced errors at debug level; everything that was said goes to one file."""
    for name in PLACES:
        os.environ[name] = f"https://user:{CANARY}@host/" if name == "DATABASE_URL" else CANARY
    said = io.StringIO()
    logging.basicConfig(stream=said, level=logging.DEBUG, force=True)
    forced = 0
    for number in range(errors):
        random_ = random.Random(number)
        name = sorted(RECIPES)[number % len(RECIPES)]
        settings = dict(settings_of(name))
        out = Path(directory) / str(number)
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                _fail(number, name, settings, out, random_)
            except Exception as error:  # noqa: BLE001 - whatever it is must keep the secret
                forced += 1
                traceback.print_exception(error)
                said.write(repr(error) + str(error))
    said.write(Path("/proc/self/cmdline").read_text())
    (Path(directory) / "said.txt").write_text(said.getvalue())
    print(json.dumps({"forced": forced, "said": len(said.getvalue())}), file=sys.__stdout__)


def _fail(number: int, name: str, settings: dict, out: Path, random_: random.Random) -> None:
    """One of the ways in which things go wrong."""
    how = number // len(RECIPES) % 6
    if how == 0:
        key = random_.choice(sorted(settings))
        make(name, {**settings, key: {"not": ["what", "is", "meant"]}}, out)
    elif how == 1:
        make(name, {**settings, f"unknown_{number}": 1}, out)
    elif how == 2:  # credentials in the place of a source
        key = "blend" if "blend" in settings else "source"
        word = random_.choice(
            [
                "https://user:{}@host/x.parquet",
                "s3://b/x.parquet?X-Amz-Signature={}",
                "https://h/x.csv?sig={}&a=1",
            ]
        )
        make(name, {**settings, key: word.format(CANARY)}, out)
    elif how == 3:
        out.write_bytes(b"")
        make(name, settings, out)
    elif how == 4:
        made = make(name, settings, out)
        path = random_.choice(
            [each for each in sorted(made.run.rglob("*")) if each.is_file() and each.stat().st_size]
        )
        path.write_bytes(path.read_bytes()[:-1] + b"\x00")
        problems = headrace.verify(out).problems
        raise RuntimeError(problems[0])
    else:
        headrace.open(out / "nothing here")
