"""One call over one connection: every end it can come to, against a real gRPC server."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from node_agent.attribution.channel import (
    Channel,
    ChannelError,
    NoAccessError,
    OverloadedError,
    ReplyTooLargeError,
    SocketMissingError,
    UnavailableError,
    UnsupportedError,
)
from node_agent.attribution.pod_resources import LIST_METHOD
from testbed.podresources import KubeletSocket, Mode, pod, response
from tests.unit.agent.attribution.builders import GPU0


MiB = 1 << 20


@pytest.fixture
def channel(kubelet: KubeletSocket) -> Channel:
    return Channel(path=kubelet.socket, max_reply=16 * MiB)


async def ask(channel: Channel, timeout: float = 20.0) -> bytes:  # noqa: ASYNC109
    return bytes(await channel.call(LIST_METHOD, b"", timeout=timeout))


async def test_one_connection_serves_many_calls(kubelet: KubeletSocket, channel: Channel) -> None:
    kubelet.pods = [pod("a", [GPU0])]
    expected = response(kubelet.pods).SerializeToString()
    for _ in range(20):
        assert await ask(channel) == expected
    assert (kubelet.lists, channel.dials) == (20, 1)
    channel.close()


async def test_calls_at_the_same_time_wait_for_each_other(
    kubelet: KubeletSocket, channel: Channel
) -> None:
    answers = await asyncio.gather(*(ask(channel) for _ in range(5)))
    assert answers == [b""] * 5
    assert channel.dials == 1
    assert kubelet.lists == 5
    channel.close()


@pytest.mark.parametrize("size", [0, 1, 65535, 1 * MiB, 5 * MiB, 16 * MiB])
async def test_answers_up_to_16_mib(kubelet: KubeletSocket, channel: Channel, size: int) -> None:
    kubelet.raw = os.urandom(size)
    assert await ask(channel) == kubelet.raw
    assert await ask(channel) == kubelet.raw  # the flow control window was given back
    assert channel.dials == 1
    channel.close()


async def test_a_larger_answer_is_refused_and_the_next_is_read(
    kubelet: KubeletSocket, channel: Channel
) -> None:
    kubelet.raw = bytes(16 * MiB + 1)
    with pytest.raises(ReplyTooLargeError, match="larger than 16 MiB"):
        await ask(channel)
    kubelet.raw = b"x"
    assert await ask(channel) == b"x"
    channel.close()


@pytest.mark.parametrize(
    ("mode", "kind", "says"),
    [
        (Mode.EXHAUSTED, OverloadedError, "RESOURCE_EXHAUSTED rejected by rate limit"),
        (Mode.OLD, UnsupportedError, "UNIMPLEMENTED unknown service"),
    ],
)
async def test_refusals_are_told_apart_and_leave_the_connection(
    kubelet: KubeletSocket, channel: Channel, mode: Mode, kind: type[ChannelError], says: str
) -> None:
    kubelet.mode = mode
    with pytest.raises(kind, match=says):
        await ask(channel)
    kubelet.mode = Mode.ANSWER
    assert await ask(channel) == b""
    assert channel.dials == 1
    channel.close()


async def test_an_unknown_method_is_unsupported(channel: Channel) -> None:
    with pytest.raises(UnsupportedError):
        await channel.call("/v9.Other/List", b"", timeout=20)
    channel.close()


async def test_a_hang_ends_by_the_deadline_and_the_next_call_dials_anew(
    kubelet: KubeletSocket, channel: Channel
) -> None:
    kubelet.mode = Mode.HANG
    with pytest.raises(UnavailableError, match=r"no answer within 0\.2 s"):
        await ask(channel, timeout=0.2)
    kubelet.mode = Mode.ANSWER
    assert await ask(channel) == b""
    assert channel.dials == 2
    channel.close()


async def test_a_cancelled_call_leaves_no_half_read_connection(
    kubelet: KubeletSocket, channel: Channel
) -> None:
    kubelet.mode = Mode.HANG
    task = asyncio.create_task(ask(channel))
    await kubelet.until(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    kubelet.mode = Mode.ANSWER
    assert await ask(channel) == b""
    channel.close()


async def test_a_restarted_kubelet_is_dialled_anew(
    kubelet: KubeletSocket, channel: Channel
) -> None:
    await ask(channel)
    await asyncio.to_thread(kubelet.restart)
    kubelet.raw = b"new"
    assert await ask(channel) == b"new"
    assert channel.dials == 2
    channel.close()


async def test_a_kubelet_that_dies_during_a_call(kubelet: KubeletSocket, channel: Channel) -> None:
    kubelet.mode = Mode.HANG
    task = asyncio.create_task(ask(channel))
    await kubelet.until(1)
    await asyncio.to_thread(kubelet.stop)
    with pytest.raises(ChannelError):
        await task
    with pytest.raises(SocketMissingError, match=r"kubelet\.sock: No such file"):
        await ask(channel)


async def test_a_path_that_is_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    path.write_text("")
    with pytest.raises(SocketMissingError, match="not a socket"):
        await ask(Channel(path=path, max_reply=1))


async def test_a_socket_that_we_may_not_use(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # Tests may run as root, whom no mode of a file stops.
    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", refuse)
    with pytest.raises(NoAccessError, match="takes write permission"):
        await ask(channel)


# -- servers that are none -----------------------------------------------------------------

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


@contextlib.asynccontextmanager
async def answering(path: Path, answer: bytes) -> AsyncIterator[Channel]:
    """A socket that answers the same bytes to anyone, then hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        channel = Channel(path=path, max_reply=1000)
        yield channel
        channel.close()


SETTINGS = bytes.fromhex("000000 04 00 00000000")
GOAWAY = bytes.fromhex("000008 07 00 00000000 00000000 0000000b")
RESET = bytes.fromhex("000004 03 00 00000001 00000007")
# Headers of stream 1 that end it: `:status 200` / `:status 404`, by index.
NO_STATUS = bytes.fromhex("000001 01 05 00000001 88")
NOT_FOUND = bytes.fromhex("000001 01 05 00000001 8d")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "hung up"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "hung up"),
        (bytes.fromhex("000001 04 00 00000000 00"), "does not speak HTTP/2"),
        (SETTINGS, "hung up"),
        (SETTINGS + GOAWAY, "says goodbye"),
        (SETTINGS + RESET, "broke off: HTTP/2 error"),
        (SETTINGS + NOT_FOUND, "HTTP status 404"),
        (SETTINGS + NO_STATUS, "status ''"),
    ],
)
async def test_other_answers_are_errors_in_words(tmp_path: Path, answer: bytes, says: str) -> None:
    async with answering(tmp_path / "s", answer) as channel:
        with pytest.raises(UnavailableError, match=says):
            await ask(channel)
