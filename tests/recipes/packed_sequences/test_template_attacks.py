"""Templates that try to leave the sandbox, and templates that never end, in the process that renders them."""

from datetime import date
from pathlib import Path

import pytest
from template_attacks import ESCAPES, HANGS, LEAKS

from headrace.errors import SettingsError
from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.marks import Specials
from headrace.packing.chats.rejections import RowRejected
from headrace.packing.chats.render_process import ProcessRenderer, RenderLimits, RenderSettings
from headrace.packing.chats.template import Template, Trace
from raised import raised

SMALL = RenderLimits(seconds=1, memory_bytes=256 << 20)
QUICK = (
    "loops over one range",
    "two deep lists compared",
    "a text made longer by replace",
    "a deep list as JSON",
    "a power",
)
HANGS_ON_X = (
    "{% if messages[0].content == 'x' %}"
    + HANGS["loops over one range"]
    + "{% endif %}{{ messages[0].content }}"
)


def renderer_of(source: str, limits: RenderLimits = SMALL) -> ProcessRenderer:
    return ProcessRenderer(
        RenderSettings(
            templates={"default": source},
            special={},
            values={},
            day=date(2026, 1, 5),
            specials=Specials([]),
            reasoning="template",
            limits=limits,
        )
    )


def asked(*contents: str) -> list[Conversation]:
    return [Conversation([{"role": "user", "content": content}], [0]) for content in contents]


def told(outcomes) -> list[str]:
    return [each.reason if isinstance(each, RowRejected) else each[0].text for each in outcomes]


@pytest.mark.parametrize("name", ESCAPES)
def test_no_template_reaches_what_the_sandbox_hides(name, monkeypatch):
    monkeypatch.setenv("HEADRACE_CANARY", "canary-31415")
    messages = [{"role": "user", "content": "q"}]
    for _ in range(2):  # also when the attribute was looked up before
        try:
            text = Template(ESCAPES[name], special={}, values={}, day=date(2026, 1, 5)).render(
                messages, None, {}, trace=Trace()
            )
        except (RowRejected, SettingsError):
            continue
        assert [] == [leak for leak in LEAKS if leak in text]
    assert [{"role": "user", "content": "q"}] == messages


def test_the_process_that_renders_has_no_environment_to_tell(monkeypatch):
    """What a hole in the sandbox would reach."""
    monkeypatch.setenv("HEADRACE_CANARY", "canary-31415")
    renderer = renderer_of("a")
    renderer.render(asked("q"))
    environ = Path(f"/proc/{renderer._idle[0]._popen.pid}/environ").read_bytes()

    assert b"OPENBLAS_NUM_THREADS=1" in environ
    assert b"canary" not in environ


def test_nothing_random_is_written():
    assert ["template_error"] * 2 == told(renderer_of("{{ lipsum() }}").render(asked("a", "b")))
    with raised(SettingsError, setting="chat_template", row="line 1"):
        renderer_of("{{ [1, 2]|random }}").render(asked("a"))


@pytest.mark.parametrize(
    "source", ["{{ raise_exception }}", "{{ messages[0].items }}", "{{ [1]|map('abs') }}"]
)
def test_the_address_of_an_object_is_no_text(source):
    """It differs from run to run. A message may hold one."""
    assert ["template_error"] == told(renderer_of(source).render(asked("a")))
    assert ["<f at 0x7f00>"] == told(
        renderer_of("{{ messages[0].content }}").render(asked("<f at 0x7f00>"))
    )


@pytest.mark.slow
@pytest.mark.smoke("loops over one range")
@pytest.mark.parametrize("name", QUICK)
def test_a_template_that_never_ends_is_ended(name):
    assert ["template_limit"] == told(renderer_of(HANGS[name]).render(asked("q")))


@pytest.mark.faults
@pytest.mark.parametrize("name", HANGS)
def test_every_template_that_never_ends_is_ended(name):
    if name == "constants doubled while compiling":
        return  # has a test of its own
    assert told(renderer_of(HANGS[name]).render(asked("q")))[0] in (
        "template_limit",
        "template_error",
    )


@pytest.mark.slow
def test_only_the_conversation_that_hangs_is_rejected():
    outcomes = renderer_of(HANGS_ON_X).render(asked("a", "b", "x", "c", "x", "d"))

    assert ["a", "b", "template_limit", "c", "template_limit", "d"] == told(outcomes)


@pytest.mark.slow
def test_a_template_that_always_hangs_is_given_up():
    with raised(SettingsError, setting="chat_template", remedy="give another template") as caught:
        renderer_of(HANGS_ON_X).render(asked(*"xxxxx"))
    assert "1 s of processor time on each of 3 conversations" in str(caught.value)


@pytest.mark.slow
def test_a_template_that_takes_for_ever_to_compile_is_no_setting():
    with raised(SettingsError, setting="chat_template", remedy="give another template"):
        renderer_of(HANGS["constants doubled while compiling"]).render(asked("q"))


def test_memory_is_given_back():
    source = "{% if messages[0].content == 'x' %}{{ ('x' * 60000000).replace('x', 'xxxxxxxxx') }}{% endif %}a"
    outcomes = renderer_of(source).render(asked(*"xaxaxaxaxa"))

    assert ["template_limit", "a"] * 5 == told(outcomes)


def test_a_process_killed_by_somebody_else_is_replaced():
    renderer = renderer_of("{{ messages[0].content }}")
    assert ["a"] == told(renderer.render(asked("a")))
    renderer._idle[0]._popen.kill()

    assert ["b", "c"] == told(renderer.render(asked("b", "c")))
