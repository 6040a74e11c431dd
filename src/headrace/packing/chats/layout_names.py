"""Names of the layouts of chats; `layouts` says what they are. Light, so that a shell can offer them at once."""

from typing import Literal

Layout = Literal[
    "auto",
    "messages",
    "conversations",
    "instruction",
    "prompt_completion",
    "raw_completion",
    "question_answer",
    "text",
    "tokens",
]
