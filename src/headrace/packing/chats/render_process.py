"""Render conversations in child processes whose processor time and memory the kernel limits.

A chat template is a program. Inside one interpreter nothing can stop a single call that runs for
hours or asks for all memory: a thread cannot be killed, and no check runs before the call returns.
So templates are compiled and run in child processes. The kernel limits the processor time of each
conversation (`RLIMIT_CPU`) and the memory of the process (`RLIMIT_AS`; Linux only, other systems
ignore it). Both limits hold without the parent, even after it has exited.

A process reads a batch of conversations from its standard input and answers on its standard output.
This costs less than rendering itself, and lets threads render in parallel. Batches to the child are
pickled, because the child can trust the parent. Answers are JSON, because a template that escaped
from the sandbox could write them. The environment of the process holds nothing to leak.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from headrace.errors import NO_VALUE, EngineError, SettingsError, setting
from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.marks import Specials
from headrace.packing.chats.rejections import RowRejected
from headrace.packing.chats.render import ChatRenderer, Rendered
from headrace.packing.chats.template import Template
from headrace.packing.chats.turns import Reasoning, TrainOn
from headrace.packing.chats.words import Moved

_MOST_OVERRUNS = 3  # consecutive conversations at the time limit before the template is rejected
# answers are sent in parts of about this size, to bound memory on both sides
_FRAME_BYTES = 1 << 18
_NO_MEMORY = {"rejected": ["template_limit", "the template used too much memory"]}
_INHERITED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # may locate the interpreter's own library
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from headrace.packing.chats.render_process import serve
serve(int(sys.argv[2]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """Limits of rendering.

    seconds: processor time of a conversation, whole. memory_bytes: what rendering may add.
    """

    seconds: int = 30
    memory_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderSettings:
    """Settings of a renderer. templates: sources by name. special: special tokens by name."""

    templates: Mapping[str, str]
    special: Mapping[str, str]
    values: Mapping[str, Any]
    day: date | None
    specials: Specials
    reasoning: Reasoning
    train_on: TrainOn = "every_turn"
    limits: RenderLimits = RenderLimits()

    def renderer(self) -> ChatRenderer:
        """Compile the templates. Raises `SettingsError` if one is not a template."""
        templates = {}
        for name, source in self.templates.items():
            templates[name] = Template(
                source, special=self.special, values=self.values, day=self.day
            )
        return ChatRenderer(templates, self.specials, self.reasoning, self.train_on)


class ProcessRenderer:
    """Renderer in child processes, at most one for each thread that calls at the same time.

    Thread-safe, and usable after a fork. The processes end with this object.
    """

    def __init__(self, settings: RenderSettings) -> None:
        self.settings = settings
        self._overruns = 0
        self._begin()

    def render(self, chats: Sequence[Conversation]) -> list[list[Rendered] | RowRejected]:
        """Render the sequences of each conversation, or return the reason why it has none.

        Raises `SettingsError` if the template
        does not compile, needs a date, or reaches the time limit on several conversations in a row;
        `EngineError` if processes are killed from outside.
        """
        outcomes: list[list[Rendered] | RowRejected] = []
        # the conversation at which a process died, apparently through no fault of the template
        killed = -1
        while len(outcomes) < len(chats):
            process = self._idle_process()
            try:
                for outcome in process.render(chats[len(outcomes) :]):
                    self._overruns = 0
                    outcomes.append(outcome)
            except _Died as died:
                process.end()
                before = min(max(died.at, 0), len(chats) - len(outcomes) - 1)
                if before:  # finished but not answered: render again without the fatal conversation
                    outcomes += self.render(chats[len(outcomes) : len(outcomes) + before])
                if died.signal == signal.SIGXCPU:
                    outcomes.append(self._overrun())
                elif killed == len(outcomes):
                    raise EngineError(
                        "the process that renders the chat template died twice on one conversation"
                        f" ({died})",
                        remedy=(
                            "use fewer workers if the machine ran out of memory, else give another"
                            f" template with {setting('chat_template')}"
                        ),
                    ) from None
                else:
                    killed = len(outcomes)
            except BaseException:
                process.end()  # it may be in the middle of an answer
                raise
            else:
                self._idle.append(process)
        return outcomes

    def certificates(self) -> dict[str, dict[str, Any] | None]:
        """Probe the templates, by name; None for one that cannot be probed within the limits."""
        process = self._idle_process()
        try:
            result: dict[str, dict[str, Any] | None] = process.certificates()
        except _Died:
            process.end()
            return dict.fromkeys(self.settings.templates)
        except BaseException:
            process.end()
            raise
        self._idle.append(process)
        return result

    def _idle_process(self) -> _Process:
        """Take an idle process, or start one."""
        if self._pid != os.getpid():  # forked: the processes belong to the parent and answer it
            self._begin()
        try:
            return self._idle.pop()
        except IndexError:  # another thread may have taken the last
            return _Process(self.settings)

    def _overrun(self) -> RowRejected:
        """Count a conversation that took too long, and return the reason to reject it.

        Raises `SettingsError` after several in a row.
        """
        limit = f"more than {self.settings.limits.seconds} s of processor time"
        self._overruns += 1
        if self._overruns >= _MOST_OVERRUNS:
            raise SettingsError(
                f"it took {limit} on each of {self._overruns} conversations in a row",
                setting="chat_template",
                remedy="give another template",
            ) from None
        return RowRejected("template_limit", f"the template took {limit}")

    def _begin(self) -> None:
        self._idle: list[_Process] = []
        self._pid = os.getpid()
        weakref.finalize(self, _end_all, self._idle, self._pid)


def _end_all(processes: list[_Process], pid: int) -> None:
    if pid == os.getpid():
        for process in processes:
            process.end()


class _Died(Exception):
    """The death of a process without an answer.

    at: number of conversations it finished but had not answered.
    """

    def __init__(self, at: int, code: int) -> None:
        self.at = at
        self.signal = -code
        super().__init__(f"signal {-code}" if code < 0 else f"exit code {code}")


class _Process:
    """The parent's side of one process. Starting one takes about as long as importing numpy."""

    def __init__(self, settings: RenderSettings) -> None:
        self._seconds = settings.limits.seconds
        with tempfile.TemporaryFile() as shared:
            shared.truncate(mmap.PAGESIZE)
            self._finished = mmap.mmap(shared.fileno(), mmap.PAGESIZE)
            flags = ["-I", *(["-B"] if sys.dont_write_bytecode else [])]
            # Passed on unread: without them the same interpreter may not find its own library.
            environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
            self._popen = subprocess.Popen(
                [sys.executable, *flags, "-c", _START, json.dumps(sys.path), str(shared.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # output of an interpreter that a template crashes
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[shared.fileno()],
                start_new_session=True,  # Ctrl-C goes to the parent, which ends this process
            )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._to = self._popen.stdin
        self._from = self._popen.stdout
        self._compiled = False
        self._send(settings)

    def render(self, chats: Sequence[Conversation]) -> Iterator[list[Rendered] | RowRejected]:
        """Yield outcomes, in order.

        Raises `_Died`; after any error the process must not be used again.
        """
        self._start()
        fields = [(chat.messages, chat.weights, chat.tools, dict(chat.values)) for chat in chats]
        self._send(fields)
        done = 0
        while done < len(chats):
            for outcome in self._answer(done):
                done += 1
                if isinstance(outcome, list):
                    yield [_rendered(*sequence) for sequence in outcome]
                else:
                    self._check(outcome)
                    yield RowRejected(*outcome["rejected"])

    def certificates(self) -> Any:
        """Return the certificate of each template. Raises as `render` does."""
        self._start()
        self._send(None)
        answer = self._answer(0)
        self._check(answer)
        return answer["certificates"]

    def _start(self) -> None:
        """Wait until the templates are compiled. Raises `SettingsError`, `_Died`."""
        if not self._compiled:
            self._check(self._answer(0))
            self._compiled = True
        self._finished[:8] = bytes(8)

    def end(self) -> None:
        """Kill the process, which holds no state that is needed."""
        self._popen.kill()
        self._popen.wait()
        self._from.close()
        with suppress(BrokenPipeError):  # it had not read everything
            self._to.close()
        self._finished.close()

    def _send(self, what: Any) -> None:
        with suppress(BrokenPipeError):  # it has ended, and reading its answer will show that
            pickle.dump(what, self._to, pickle.HIGHEST_PROTOCOL)
            self._to.flush()

    def _answer(self, done: int) -> Any:
        line = self._from.readline()
        if line.endswith(b"\n"):
            return json.loads(line.decode("utf-8", "surrogatepass"))
        code = self._popen.wait()
        if not self._compiled and code == -signal.SIGXCPU:
            raise SettingsError(
                f"it takes more than {self._seconds} s of processor time to compile",
                setting="chat_template",
                remedy="give another template",
            )
        raise _Died(struct.unpack("<q", self._finished[:8])[0] - done, code)

    @staticmethod
    def _check(outcome: Mapping[str, Any]) -> None:
        if "settings" in outcome:
            raise SettingsError(*outcome["settings"], **outcome["fields"])
        if "failed" in outcome:
            raise RuntimeError(
                f"rendering failed because of a bug in headrace: {outcome['failed']}"
            )


def _rendered(text: str, spans: Any, moves: Any, tools_removed: int) -> Rendered:
    """Read a rendering from the values of its JSON."""
    return Rendered(
        text,
        [(begin, end) for begin, end in spans],
        [Moved(*move) for move in moves],
        tools_removed,
    )


def serve(finished_fd: int) -> None:
    """Run the child: compile the templates, then answer batches until the parent closes the
    pipe.
    """
    receive = sys.stdin.buffer
    send = sys.stdout.buffer
    settings: RenderSettings = pickle.load(receive)
    finished = mmap.mmap(finished_fd, mmap.PAGESIZE)
    limited = _Limited(settings.limits)
    compiled: dict[str, Any] = {}
    try:
        renderer = settings.renderer()
    except SettingsError as error:
        compiled = _settings_answer(error)
    except MemoryError:
        compiled = _settings_answer(
            SettingsError(
                "it takes too much memory to compile",
                setting="chat_template",
                remedy="give another template",
            )
        )
    send.write(_encoded(compiled) + b"\n")
    send.flush()
    if "settings" in compiled:
        return
    gc.freeze()
    # batches are many small objects without cycles: collecting takes a tenth
    gc.set_threshold(50_000, 20, 100)
    while True:
        try:
            batch = pickle.load(receive)
        except EOFError:
            return
        if batch is None:
            limited.restart()
            send.write(_certificates(renderer) + b"\n")
            send.flush()
            continue
        answers: list[Any] = []
        size = 0
        for number, chat in enumerate(batch):
            struct.pack_into("<q", finished, 0, number)
            limited.restart()
            answer = _answer_of(renderer, Conversation(*chat))
            answers.append(answer)
            if isinstance(answer, list):
                size += sum(len(sequence[0]) for sequence in answer)
            if number + 1 == len(batch) or size > _FRAME_BYTES:
                send.write(_frame(answers))
                send.flush()
                answers = []
                size = 0


def _frame(answers: Sequence[Any]) -> bytes:
    """Return a line of answers, encoded together unless memory does not allow that."""
    try:
        return _encoded(answers) + b"\n"
    except MemoryError:
        parts = []
        for answer in answers:
            try:
                parts.append(_encoded(answer))
            except MemoryError:
                parts.append(_encoded(_NO_MEMORY))
        return b"[" + b",".join(parts) + b"]\n"


def _answer_of(renderer: ChatRenderer, chat: Conversation) -> Any:
    try:
        rendered = renderer.render(chat)
        return [
            (sequence.text, sequence.spans, sequence.moves, sequence.tools_removed)
            for sequence in rendered
        ]
    except RowRejected as wrong:
        return {"rejected": [wrong.reason, wrong.detail]}
    except SettingsError as error:
        return _settings_answer(error)
    except MemoryError:
        return _NO_MEMORY
    except Exception as error:  # noqa: BLE001 - the parent raises it
        return {"failed": f"{type(error).__name__}: {error}"}


def _certificates(renderer: ChatRenderer) -> bytes:
    try:
        certificates = {}
        for name, certificate in renderer.certificates.items():
            certificates[name] = None if certificate is None else asdict(certificate)
        return _encoded({"certificates": certificates})
    except MemoryError:
        return _encoded({"certificates": {}})
    except Exception as error:  # noqa: BLE001 - the parent raises it
        return _encoded({"failed": f"{type(error).__name__}: {error}"})


def _settings_answer(error: SettingsError) -> dict[str, Any]:
    """Return the answer that raises this error in the parent."""
    fields = {name: value for name, value in vars(error).items() if value is not NO_VALUE}
    fields["remedy"] = fields.pop("marked_remedy")
    return {"settings": error.args, "fields": fields}


def _encoded(answer: Any) -> bytes:
    """Return JSON on one line.

    Lone surrogates are kept, and two of them never become one character.
    """
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")


class _Limited:
    """The limits of this process.

    Processor time counts from the last `restart`, in whole seconds.
    """

    def __init__(self, limits: RenderLimits) -> None:
        self._seconds = limits.seconds
        self._since = -1
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)  # the parent may ignore it
        statm = Path("/proc/self/statm")
        if statm.exists():  # other systems do not show the memory of the interpreter itself
            interpreter_bytes = int(statm.read_text().split()[0]) * mmap.PAGESIZE
            _lower(resource.RLIMIT_AS, interpreter_bytes + limits.memory_bytes)
        self.restart()

    def restart(self) -> None:
        now = int(time.process_time())
        if now != self._since:
            self._since = now
            _lower(resource.RLIMIT_CPU, now + 1 + self._seconds)


def _lower(which: int, limit: int) -> None:
    """Set the soft limit, at most at the hard limit of this process."""
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
