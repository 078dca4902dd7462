"""What comes from outside never breaks attribution, whatever it is.

The reader of protobuf's wire format is held against the official implementation.
"""

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from node_agent.attribution.build import Sources, build_pod_map
from node_agent.attribution.cgroups import CgroupPod, parse_cgroup
from node_agent.attribution.channel import Channel, ChannelError
from node_agent.attribution.cluster import ClusterReadError, decode_pods, decode_slices
from node_agent.attribution.device_ids import Patterns, parse_cdi_name, parse_device_id
from node_agent.attribution.pod_folders import parse_names
from node_agent.attribution.pod_resources import (
    Claim,
    ClaimDevice,
    Container,
    Pod,
    decode_list,
)
from node_agent.attribution.wire import Reader, WireError
from testbed.podresources import MESSAGES, response
from tests.unit.agent.attribution.builders import DEVICES, GPU0, GPU2, MIG0, MIG1


WANTED = Patterns("nvidia.com/*")

words = st.text(max_size=8)
ids = st.sampled_from(
    [GPU0, f"{GPU0}::1", MIG0, MIG1, f"MIG-{GPU2}/7/0", "nvidia0", "nvidia1/gi8/vgpu2", "?"]
)
topologies = st.fixed_dictionaries(
    {"nodes": st.lists(st.fixed_dictionaries({"ID": st.integers(-(2**63), 2**63 - 1)}), max_size=2)}
)
devices = st.fixed_dictionaries(
    {
        "resource_name": st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g", "x.io/nic", ""]),
        "device_ids": st.lists(ids | words, max_size=4),
        "topology": topologies,
    }
)
claims = st.fixed_dictionaries(
    {
        "claim_name": words,
        "claim_namespace": words,
        "claim_resources": st.lists(
            st.fixed_dictionaries(
                {
                    "cdi_devices": st.lists(st.fixed_dictionaries({"name": words}), max_size=2),
                    "driver_name": st.sampled_from(["gpu.nvidia.com", "nic", ""]),
                    "pool_name": words,
                    "device_name": words,
                    "share_id": words,
                }
            ),
            max_size=2,
        ),
    }
)
containers = st.fixed_dictionaries(
    {
        "name": words,
        "devices": st.lists(devices, max_size=3),
        "cpu_ids": st.lists(st.integers(-1, 2**40), max_size=3),
        "memory": st.lists(
            st.fixed_dictionaries({"memory_type": words, "size": st.integers(0, 2**64 - 1)}),
            max_size=1,
        ),
        "dynamic_resources": st.lists(claims, max_size=2),
    }
)
pods = st.lists(
    st.fixed_dictionaries(
        {"name": words, "namespace": words, "containers": st.lists(containers, max_size=2)}
    ),
    max_size=4,
)


def read_officially(message: Any) -> tuple[Pod, ...]:
    """The same, from the official package's object."""
    return tuple(
        Pod(
            pod.namespace,
            pod.name,
            tuple(
                Container(
                    held.name,
                    tuple(
                        (entry.resource_name, tuple(entry.device_ids))
                        for entry in held.devices
                        if entry.device_ids and WANTED.match(entry.resource_name)
                    ),
                    tuple(
                        Claim(
                            claim.claim_name,
                            claim.claim_namespace,
                            tuple(
                                ClaimDevice(
                                    found.driver_name,
                                    found.pool_name,
                                    found.device_name,
                                    found.share_id,
                                    tuple(cdi.name for cdi in found.cdi_devices),
                                )
                                for found in claim.claim_resources
                            ),
                        )
                        for claim in held.dynamic_resources
                    ),
                )
                for held in pod.containers
            ),
        )
        for pod in message.pod_resources
    )


@given(pods)
def test_messages_are_read_as_the_official_package_reads_them(listed: list[Any]) -> None:
    message = response(listed)
    assert decode_list(message.SerializeToString(), wanted=WANTED.match) == read_officially(message)


@given(pods, st.data())
def test_a_damaged_message_is_refused_or_read_as_officially(
    listed: list[Any], data: st.DataObject
) -> None:
    raw = bytearray(response(listed).SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        read = decode_list(cut, wanted=WANTED.match)
    except WireError:
        return
    try:
        official = MESSAGES["ListPodResourcesResponse"].FromString(cut)
    except DecodeError:
        return  # it is stricter about parts that are skipped here
    assert read == read_officially(official)


@given(st.binary(max_size=200))
@example(b"\x0a\x00" * 100)
@example(b"\xff" * 20)
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_list(raw, wanted=WANTED.match)


def test_many_tiny_messages_are_refused_at_the_budget() -> None:
    with pytest.raises(WireError, match="more fields"):
        list(Reader(budget=10).fields(memoryview(b"\x0a\x00" * 11)))


@given(pods)
def test_any_answer_becomes_a_map(listed: list[Any]) -> None:
    read = decode_list(response(listed).SerializeToString(), wanted=WANTED.match)
    found = build_pod_map(Sources(pods=read, devices=DEVICES))
    named = {(pod.namespace, pod.name) for pod in read}
    known = {device.uuid.lower() for device in DEVICES}
    groups = [*found.devices.values(), *found.instances.values()]
    assert {(ref.namespace, ref.name) for refs in groups for ref in refs} <= named
    assert found.devices.keys() | {gpu for gpu, _ in found.instances} <= known
    for refs in groups:
        assert {ref.shared for ref in refs} == {len({(r.pod, r.container) for r in refs}) > 1}
    # Nothing that was listed gets lost: each id is somewhere on a device, or unresolved.
    held = sum(len(set(i)) for p in read for c in p.containers for _, i in c.devices)
    assert bool(held) <= bool(groups or found.unresolved)


@given(pods, st.randoms(use_true_random=False))
def test_the_order_of_pods_does_not_matter(listed: list[Any], random: Any) -> None:
    read = list(decode_list(response(listed).SerializeToString(), wanted=WANTED.match))
    before = build_pod_map(Sources(pods=tuple(read), devices=DEVICES))
    random.shuffle(read)
    after = build_pod_map(Sources(pods=tuple(read), devices=DEVICES))
    assert (after.devices, after.instances) == (before.devices, before.instances)


@given(st.text(max_size=300))
def test_any_text_is_an_id_a_path_a_name_or_nothing(text: str) -> None:
    parse_device_id(text)
    parse_cdi_name(text)
    parse_names([text], [text])
    assert len(parse_cgroup(text)) <= len(text)


@given(st.text("/-.:_0", max_size=40), st.text("/-.:_0", max_size=40), st.uuids())
def test_a_pods_uid_is_found_whatever_stands_around_it(before: str, after: str, uid: Any) -> None:
    line = f"0::{before}/pod{uid}/{'a' * 64}/{after}"
    assert CgroupPod(str(uid), "a" * 64) in parse_cgroup(line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=10,
)


@given(st.binary(max_size=100) | json_values.map(lambda value: repr(value).encode()))
def test_any_body_is_a_list_or_refused(body: bytes) -> None:
    for decode in (lambda raw: decode_pods(raw, labels=Patterns("*")), decode_slices):
        with contextlib.suppress(ClusterReadError):
            decode(body)


frames = st.lists(
    st.tuples(
        st.integers(0, 12), st.integers(0, 255), st.integers(0, 4), st.binary(max_size=40)
    ).map(
        lambda f: (
            len(f[3]).to_bytes(3, "big") + bytes((f[0], f[1])) + f[2].to_bytes(4, "big") + f[3]
        )
    ),
    max_size=6,
).map(b"".join)


@given(st.binary(max_size=200) | frames)
def test_a_server_that_says_anything_gives_an_error_and_nothing_else(said: bytes) -> None:
    asyncio.run(_ask_one_that_says(said))


async def _ask_one_that_says(said: bytes) -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(said)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        async with await asyncio.start_unix_server(serve, path):
            channel = Channel(path=path, max_reply=1000)
            with contextlib.suppress(ChannelError):
                await channel.call("/v1.X/List", b"", timeout=20)
            channel.close()
            await asyncio.sleep(0)
    assert unhandled == []
