"""Polls of an Alertmanager that go wrong before there is an answer: said, and nothing else."""

from __future__ import annotations

import pytest

from remediator.kube.sockets import http_session
from remediator.policy.sources import Alertmanager
from remediator.signals.alertmanager import PollFailedError, poll


@pytest.mark.parametrize(
    "url",
    [
        "http://alertmanager..example:9093",
        f"http://{'a' * 64}.example:9093",
        "http://[::1",
        "http://am:99999",
        "http://alertmanager.invalid:9093",
    ],
)
async def test_a_peer_whose_address_can_be_none_is_in_trouble_like_one_that_is_away(
    url: str,
) -> None:
    """It is somebody's typing error, and must cost the trust in that source alone."""
    spec = Alertmanager.model_validate({"name": "main", "urls": [url]})
    async with http_session(trust_env=False) as session:
        with pytest.raises(PollFailedError):
            await poll(spec, url, session=session)
