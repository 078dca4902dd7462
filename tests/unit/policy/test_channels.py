"""What a channel may be, and what a template of its words may say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from structlog.testing import capture_logs

from remediator.act.channels.words import OwnWords
from remediator.act.envelope import pack
from remediator.decide.decision import SendMessage
from remediator.policy.channels import Channel, MessageTemplate
from remediator.policy.wording import MAX_TEXT, MAX_TITLE, WordingError, check


@pytest.mark.parametrize(
    "spec",
    [
        {"log": {}},
        {"webhook": {"urlFile": "url", "secretFile": "hmac"}},
        {"slack": {"tokenFile": "token", "channel": "C0123456789"}},
        {"slack": {"webhookUrlFile": "url"}},
        {"pagerduty": {"routingKeyFile": "key"}},
        {"alertmanager": {"urls": ["http://am-0:9093", "http://am-1:9093"]}},
        {"smtp": {"host": "mail", "sender": "a@b.example", "to": ["c@d.example"]}},
        {"apprise": {"urlFile": "urls"}, "template": {"title": "{{ title }}"}},
    ],
)
def test_each_kind_is_accepted(spec: dict[str, Any]) -> None:
    Channel.model_validate(spec)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "exactly one of"),
        ({"log": {}, "apprise": {"urlFile": "x"}}, "exactly one of"),
        ({"slack": {"tokenFile": "token"}}, "belong together"),
        ({"slack": {"tokenFile": "t", "channel": "C1", "webhookUrlFile": "u"}}, "exactly one of"),
        ({"slack": {"token": "xoxb-1", "channel": "C1"}}, "Extra inputs"),
        ({"pagerduty": {"routingKey": "k"}}, "Extra inputs"),
        (
            {
                "smtp": {
                    "host": "m",
                    "sender": "a@b",
                    "to": ["c@d"],
                    "security": "none",
                    "username": "u",
                    "passwordFile": "p",
                }
            },
            "starttls or tls",
        ),
        ({"smtp": {"host": "m", "sender": "a@b\nBcc: x@y", "to": ["c@d"]}}, "pattern"),
        ({"log": {}, "template": {"text": "{% if"}}, "no usable template"),
    ],
)
def test_what_does_not_fit_is_refused(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Channel.model_validate(spec)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 999999999 }}",
        "{{ title.upper() }}",
        "{{ title.__class__.__mro__ }}",
        "{{ title | center(999999999) }}",
        "{{ title | join(title) }}",
        "{{ title ~ title }}",
        "{% set x = title %}{{ x }}",
        "{% macro m() %}{% endmacro %}",
        "{% include '/etc/passwd' %}",
        "{% for a in nodes %}" * 3 + "{% endfor %}" * 3,
        "{% for a in text %}{% for b in text %}{% endfor %}{% endfor %}",
        "{% for a in title | upper %}{% endfor %}",
        "{{ range(10) }}",
        "{{ title.upper }}",
        "{{ messages[0].keys }}",
        "{{ self }}",
        "{{ nothing_of_the_kind }}",
        "{{ nodes[9] }}",
        "{{",
    ],
)
def test_a_template_can_do_nothing_but_show_words(text: str) -> None:
    with pytest.raises(WordingError):
        check(text)


def envelope(count: int = 1, *, dry_run: bool = False, title: str = "") -> Any:
    return pack(
        [
            SendMessage(
                key=f"s-0000000{n}/p/1",
                to=("c",),
                title=title or f"n{n} cordoned",
                text="Xid 79",
                node=f"n{n}",
                policy="p",
            )
            for n in range(count)
        ],
        channel="c",
        dry_run=dry_run,
        created=1_800_000_000.0,
    )


def test_a_template_gives_a_channel_its_own_words() -> None:
    template = MessageTemplate(
        title="{{ urgency | upper }}: {{ title }}\nsecond line",
        text="{% for one in messages %}{{ one.node }} {% if one.text %}({{ one.text }}){% endif %}"
        "{% endfor %} of {{ policy }}, {{ count }} in all, {{ nodes | join(', ') }}",
    )

    own = OwnWords(template)(envelope(2, dry_run=True))

    assert own.title == "[dry-run] WARNING: 2 nodes: ... cordoned second line"
    assert own.text == "[dry-run] n0 (Xid 79)n1 (Xid 79) of p, 2 in all, n0, n1"
    assert OwnWords(MessageTemplate(title="x"))(envelope(dry_run=True)).text == "[dry-run] Xid 79"


def test_a_template_that_fails_falls_back_to_the_built_in_words_and_is_counted() -> None:
    failed: list[str] = []
    template = MessageTemplate(title="{{ nodes[0] }}{% if count > 1 %}{{ nodes[5] }}{% endif %}")
    words = OwnWords(template, failed=failed.append)

    assert words(envelope()).title == "n0"
    with capture_logs() as logs:
        many = envelope(2)
        assert words(many) == many

    assert failed == ["c"]
    assert logs[0]["event"] == "template_failed"


@given(
    st.lists(
        st.sampled_from(
            [
                "{{ title }}",
                "{{ text }}",
                "{% for a in nodes %}",
                "{% endfor %}",
                "{{ a }}",
                "x\n",
                "{{ nodes | join(', ') }}",
                "{% if count %}",
                "{% endif %}",
            ]
        ),
        max_size=12,
    ),
    st.text(max_size=300),
    st.integers(1, 80),
    st.booleans(),
)
def test_whatever_a_template_says_is_bounded(
    pieces: list[str],
    title: str,
    count: int,
    dry_run: bool,  # noqa: FBT001 - drawn
) -> None:
    text = "".join(pieces)
    try:
        check(text)
    except WordingError:
        return
    template = MessageTemplate.model_construct(title=text or None, text=text or None)
    with capture_logs():
        own = OwnWords(template)(envelope(count, dry_run=dry_run, title=title))
    if dry_run:
        assert own.title.startswith("[dry-run]")
        assert own.text.startswith("[dry-run]")
    longest_built_in = 320  # of a title of 300 characters
    assert len(own.title) <= max(MAX_TITLE, longest_built_in) + len("[dry-run] ")
    assert len(own.text) <= MAX_TEXT + len("[dry-run] ")
