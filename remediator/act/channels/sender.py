"""What channels have in common that post to a server, and those that keep conversations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import aiohttp

from remediator.act.channels.http import wall
from remediator.act.channels.words import Words, as_they_are
from remediator.decide.topics import Topics
from remediator.policy.channels import Attempts


Spec = TypeVar("Spec", bound=Attempts)


class PostingSender(Generic[Spec]):
    """One channel of RemediatorConfig that posts.

    Args:
        spec: the channel.
        session: shared by all channels; owned by the caller.
        words: gives an envelope the channel's own words.
        wall: epoch seconds.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        session: aiohttp.ClientSession,
        words: Words = as_they_are,
        wall: Callable[[], float] = wall,
    ) -> None:
        self.give_up_after = spec.give_up_after
        self._spec = spec
        self._session = session
        self._words = words
        self._wall = wall


class TalkingSender(PostingSender[Spec]):
    """One that knows which conversations are open: threads, incidents, alerts.

    Args:
        spec, session, words, wall: as `PostingSender`.
        topics: the open conversations of all channels.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        session: aiohttp.ClientSession,
        topics: Topics,
        words: Words = as_they_are,
        wall: Callable[[], float] = wall,
    ) -> None:
        super().__init__(spec, session=session, words=words, wall=wall)
        self._topics = topics
