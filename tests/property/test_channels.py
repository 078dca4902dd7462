"""Whatever stands in a message, every channel can write it, and none of it becomes a command.

Names of alerts and policies, reasons and people's words get into messages: they add no header to a
mail, call nobody in Slack, and spoil no JSON.
"""

from __future__ import annotations

import email
from email.policy import default as modern
from typing import Final

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.act.channels import pagerduty, slack, webhook
from remediator.act.channels.smtp import mail_of
from remediator.act.envelope import Envelope, pack
from remediator.decide.decision import SendMessage
from remediator.policy.channels import SmtpChannel
from tests.property.cases import cases


NOW: Final = 1_800_000_000.0
MAIL: Final = SmtpChannel(host="mail.example", sender="us@example.com", to=("them@example.com",))
TEXTS: Final = st.text(max_size=30) | st.sampled_from(
    [
        "a\r\nBcc: x@example.com",
        "a\n\nb",
        "a\0b",
        "<!channel> <@U1> <http://x|y>",
        "é" * 400,
        "\x85",
    ]
)
MESSAGES: Final = st.builds(
    SendMessage,
    key=TEXTS,
    to=st.just(("oncall",)),
    title=TEXTS,
    text=TEXTS,
    node=TEXTS,
    policy=TEXTS,
    resolves=st.booleans(),
)
ENVELOPES: Final = st.builds(
    pack,
    st.lists(MESSAGES, min_size=1, max_size=3),
    channel=st.just("oncall"),
    dry_run=st.booleans(),
    created=st.just(NOW),
)


@settings(max_examples=cases(100), deadline=None)
@given(envelope=ENVELOPES)
def test_a_mail_has_the_headers_that_we_gave_it_and_no_other(envelope: Envelope) -> None:
    mail = mail_of(envelope, MAIL, now=NOW)
    read = email.message_from_bytes(mail.as_bytes(), policy=modern)
    assert read.keys() == mail.keys()
    assert read["To"] == "them@example.com"
    assert isinstance(read.get_content(), str)


@settings(max_examples=cases(100), deadline=None)
@given(envelope=ENVELOPES)
def test_slack_is_told_to_call_nobody(envelope: Envelope) -> None:
    written = msgspec.json.encode(slack._message(envelope)).decode()
    assert not any(call in written for call in ("<!", "<@", "<#", "<http"))


@settings(max_examples=cases(100), deadline=None)
@given(envelope=ENVELOPES)
def test_json_stays_json(envelope: Envelope) -> None:
    for payload in (pagerduty._payload(envelope), webhook.payload_of(envelope)):
        assert msgspec.json.decode(msgspec.json.encode(payload))
