"""The environment of templates: what they may use, and what they may not."""

import json
from datetime import date

import pytest

from headrace.errors import SettingsError
from headrace.packing.chats import template as sandbox
from headrace.packing.chats.rejections import RowRejected
from headrace.packing.chats.template import Template, Trace
from raised import raised


def written(source: str, messages=(), tools=None, day=None, prompt=False, **values) -> str:
    found = Template(source, special={"bos_token": "<s>"}, values={"x": 1}, day=day)
    return found.render(list(messages), tools, values, trace=Trace(), generation_prompt=prompt)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ x }}{{ y }}", "<s>1"),
        ("{%- for n in range(5) %}{% if n == 3 %}{% break %}{% endif %}{{ n }}{% endfor %}", "012"),
        (
            "{% for n in range(4) %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% endfor %}",
            "023",
        ),
        ("{{ {'a': 'é<&\"', 'b': [1, none]} | tojson }}", '{"a": "é<&\\"", "b": [1, null]}'),
        (
            "{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}",
            json.dumps({"a": 2, "b": 1}, indent=2),
        ),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
        ("{{ '%s-%s' % ('a', 'b') }}{{ 'c{}'.format(1) }}", "a-bc1"),
        ("{{ '{}'.format('a') }}{{ '{}'.format('b') }}", "ab"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.none }}", "2"),
        ("{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(1) }}{{ f('b') }}", "<1><b>"),
        ("{{ '<b>' }}{{ messages[0].content }}", "<b>&<"),
        ("{{ messages[0]['content'].items }}{{ messages[0].keys() | list | length }}", "2"),
        ("{{ documents is none }}{{ strftime_now is defined }}", "TrueTrue"),
    ],
)
def test_templates_find_what_they_are_written_for(source, expected):
    assert expected == written(source, [{"role": "user", "content": "&<"}])


def test_the_date_is_the_one_that_was_set_or_none():
    assert "05 Jan 2026" == written("{{ strftime_now('%d %b %Y') }}", day=date(2026, 1, 5))
    with raised(SettingsError, setting="date", remedy="give one"):
        written("{{ strftime_now('%d') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__name__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ ''['__class__']() }}",
        "{{ [].append.__self__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ raise_exception('no') }}",
        "{{ messages[5].content.strip() }}",
        "{% include 'x' %}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ range(1000000) | length }}",
    ],
)
def test_what_is_not_allowed_is_an_error_of_the_row(source):
    messages = [{"role": "user", "content": "q"}]
    for _ in range(2):  # also when the attribute was looked up before
        with pytest.raises(RowRejected) as found:
            written(source, messages)
        assert "template_error" == found.value.reason
    assert [{"role": "user", "content": "q"}] == messages


def test_a_format_stays_in_the_sandbox_every_time():
    """What the sandbox forbids is an undefined value, which prints as nothing."""
    source = "{% for n in range(3) %}{{ '{0.__class__}'.format(n) }}{{ ''['__class__'] }}{{ [].__class__ }}{% endfor %}"
    found = Template(source, special={}, values={}, day=None)
    for _ in range(2):
        assert "" == found.render([], None, {}, trace=Trace())


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{{ 'x' * 999999999 }}",
        "{{ 999 ** 999999 }}",
        "{% set ns = namespace(a=3) %}{% for n in range(99) %}{% set ns.a = ns.a * ns.a %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ([0] * 99999) * 99999 }}",
        "{% set ns = namespace(a='x') %}{% for n in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
        "{% set ns = namespace(a='x') %}{% for n in range(99) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
        "{% set ns = namespace(a=[1]) %}{% for n in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
        "{% set ns = namespace(a='xx') %}{% for n in range(99) %}{% set ns.a = ns.a.replace('x', 'xx') %}{% endfor %}",
    ],
)
def test_long_texts_and_numbers_are_refused_where_they_are_made(source, monkeypatch):
    """Templates that take time without growing are in test_template_attacks.py."""
    monkeypatch.setattr(sandbox, "_MOST_CHARACTERS", 1 << 22)
    with pytest.raises(RowRejected) as found:
        written(source)
    assert "template_limit" == found.value.reason


@pytest.mark.parametrize(
    ("fixed", "source"),
    [
        (True, "{% if add_generation_prompt %}A{% endif %}"),
        (True, "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% if add_generation_prompt %}A{% endif %}"),
        (True, "{% for message in messages %}{{ message.content }}{% if loop.last and message.role != 'assistant' and add_generation_prompt %}A{% endif %}{% endfor %}"),
        (True, "{% if add_generation_prompt and messages[-1].role != 'assistant' %}A{% endif %}"),
        (True, "{% if add_generation_prompt %}A{% if enable_thinking is defined and enable_thinking is false %}B{% endif %}{% endif %}"),
        (True, "{{ 'A' if add_generation_prompt else '' }}"),
        (True, "{% for message in messages %}{{ message.content }}{% endfor %}"),
        (False, "{{ add_generation_prompt }}"),
        (False, "{% set on = add_generation_prompt %}{% if on %}A{% endif %}"),
        (False, "{% set ns = namespace(a=1) %}{% if add_generation_prompt %}{% if ns.a %}A{% endif %}{% endif %}"),
        (False, "{% set ns = namespace(a=1) %}{% if ns.a %}{% if add_generation_prompt %}A{% endif %}{% endif %}"),
        (False, "{% if add_generation_prompt %}{{ messages[0].content }}{% endif %}"),
        (False, "{% if add_generation_prompt %}{{ messages[0]['content'] }}{% endif %}"),
        (False, "{% if add_generation_prompt %}{{ messages }}{% endif %}"),
        (False, "{% if add_generation_prompt %}{% for message in messages %}{{ message[key] }}{% endfor %}{% endif %}"),
        (False, "{% macro f() %}{{ messages[0].content }}{% endmacro %}{% if add_generation_prompt %}{{ f() }}{% endif %}"),
        (False, "{% if x %}{% set y = 1 %}{% elif y and add_generation_prompt %}A{% endif %}"),
        (False, "{% if messages[0].content %}B{% elif add_generation_prompt %}A{% endif %}"),
    ],
)  # fmt: skip
def test_a_prompt_is_fixed_only_where_that_can_be_read_off(fixed, source):
    assert fixed is Template(source, special={}, values={}, day=None).fixed_prompt


def test_json_is_noted_and_generation_blocks_are_found():
    trace = Trace()
    found = Template(
        "{{ tools | tojson }}{% generation %}a{% endgeneration %}", special={}, values={}, day=None
    )
    text = found.render([], [{"a": 1}], {}, trace=trace)

    assert ['[{"a": 1}]'] == trace.texts
    assert found.has_generation_blocks
    assert '[{"a": 1}]\ufdd4a\ufdd5' == text
