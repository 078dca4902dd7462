"""The transport on the real API server: credentials, errors, deadlines."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from remediator.kube.client import ApiClient, connect, load_config
from remediator.kube.config import ApiConfig
from remediator.kube.errors import (
    Conflict,
    Forbidden,
    NotFound,
    ServerError,
    Throttled,
    TimedOut,
    Unauthorized,
    Unreachable,
)
from remediator.kube.patch import ApiNodeWriter, NodePatch
from testbed.cluster import Cluster
from testbed.faultproxy import Answer, Drop, FaultProxy, Hang


pytestmark = pytest.mark.cluster

Eventually = Callable[..., Awaitable[None]]


async def test_wrong_token_is_said_in_one_sentence(cluster: Cluster) -> None:
    kubeconfig = cluster.kubeconfig_for("not-a-token")
    async with connect(await load_config(kubeconfig=str(kubeconfig))) as api:
        with pytest.raises(Unauthorized, match="does not accept our credentials"):
            await api.request("GET", "/api/v1/nodes")


async def test_missing_permission_names_the_rule_that_grants_it(api: ApiClient) -> None:
    with pytest.raises(Forbidden) as caught:
        await api.request("DELETE", "/api/v1/nodes/some-node")

    assert 'ClusterRole rule grants it: {apiGroups: [""], resources: ["nodes"]' in str(caught.value)
    assert 'verbs: ["delete"]}' in str(caught.value)


async def test_wrong_certificate_authority_is_named(cluster: Cluster, tmp_path: Path) -> None:
    document = json.loads(cluster.kubeconfig_for("any").read_text(encoding="utf-8"))
    del document["clusters"][0]["cluster"]["certificate-authority"]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document), encoding="utf-8")

    async with connect(await load_config(kubeconfig=str(path))) as api:
        with pytest.raises(Unreachable, match="certificate authority"):
            await api.request("GET", "/api/v1/nodes")


async def test_rotated_token_is_picked_up_after_a_401(cluster: Cluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("expired", encoding="ascii")
    document = json.loads(cluster.kubeconfig_for("unused").read_text(encoding="utf-8"))
    document["users"][0]["user"] = {"tokenFile": str(token)}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document), encoding="utf-8")

    async with connect(await load_config(kubeconfig=str(path))) as api:
        token.write_text(cluster.controller_token(), encoding="ascii")

        body = json.loads(await api.request("GET", "/api/v1/nodes?limit=1"))

    assert body["kind"] == "NodeList"


async def test_a_hung_plugin_holds_no_call_beyond_its_deadline(
    cluster: Cluster, tmp_path: Path, eventually: Eventually
) -> None:
    runs, hold, plugin = tmp_path / "runs", tmp_path / "hold", tmp_path / "plugin"
    made = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {
            "token": cluster.controller_token(),
            "expirationTimestamp": "2020-01-01T00:00:00Z",  # so that it is run again
        },
    }
    plugin.write_text(
        f"#!/bin/sh\necho >> {runs}\n"
        f"while [ -e {hold} ]; do sleep 0.1; done\necho '{json.dumps(made)}'\n",
        encoding="ascii",
    )
    plugin.chmod(0o700)
    document = json.loads(cluster.kubeconfig_for("unused").read_text(encoding="utf-8"))
    document["users"][0]["user"] = {
        "exec": {
            "apiVersion": made["apiVersion"],
            "command": str(plugin),
            "interactiveMode": "Never",
        }
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document), encoding="utf-8")
    config = await load_config(kubeconfig=str(path))
    credentials = config.credentials
    assert credentials is not None

    def times() -> int:
        return len(runs.read_text(encoding="ascii").splitlines())

    async with connect(config) as api:
        hold.touch()
        before, credentials._due = times(), 0.0
        with pytest.raises(TimedOut, match=r"no credentials within 1 s.*exec plugin"):
            await api.request("GET", "/api/v1/nodes?limit=1", timeout=1.0)
        assert times() == before + 1
        # It hangs still; the token of before is good.
        await api.request("GET", "/api/v1/nodes?limit=1")
        hold.unlink()
        await eventually(lambda: not credentials._reading)
        await api.request("GET", "/api/v1/nodes?limit=1")
        assert times() == before + 1


async def test_service_account_of_a_pod(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(cluster.controller_token() + "\n", encoding="ascii")
    (tmp_path / "ca.crt").write_bytes(cluster.plane.ca_file.read_bytes())
    address = urlsplit(cluster.plane.url)
    environ = {
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
    }

    config = await load_config(environ=environ, service_account=tmp_path)
    async with connect(config) as api:
        body = json.loads(await api.request("GET", "/api/v1/nodes?limit=1"))

    assert body["kind"] == "NodeList"
    assert config.source == "in-cluster service account"


async def test_hung_server_costs_no_more_than_the_deadline(
    proxy: FaultProxy, proxied: ApiClient
) -> None:
    proxy.add(Hang())

    with pytest.raises(TimedOut, match=r"no answer within 0\.2 s"):
        await proxied.request("GET", "/api/v1/nodes", timeout=0.2)


async def test_dropped_connection_is_unreachable(proxy: FaultProxy, proxied: ApiClient) -> None:
    proxy.add(Drop())

    with pytest.raises(Unreachable):
        await proxied.request("GET", "/api/v1/nodes")


async def test_nobody_listens() -> None:
    async with connect(ApiConfig("http://127.0.0.1:1")) as api:
        with pytest.raises(Unreachable):
            await api.request("GET", "/api/v1/nodes")


async def test_throttling_and_failures_carry_what_the_server_says(
    proxy: FaultProxy, proxied: ApiClient
) -> None:
    proxy.add(Answer(500, message="etcd is away"))
    proxy.add(Answer(429, reason="TooManyRequests", retry_after=3), times=1)

    with pytest.raises(Throttled) as throttled:
        await proxied.request("GET", "/api/v1/nodes")
    with pytest.raises(ServerError, match="etcd is away"):
        await proxied.request("GET", "/api/v1/nodes")

    assert throttled.value.retry_after == 3.0


class Relay:
    """Passes bytes on, TLS unopened, until the server's side is frozen; knows who is connected."""

    def __init__(self, server: str) -> None:
        address = urlsplit(server)
        self._target = (address.hostname, address.port)
        self._thawed = asyncio.Event()
        self._thawed.set()
        self.connected = 0

    def freeze(self) -> None:
        self._thawed.clear()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._thawed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        theirs, ours = await asyncio.open_connection(*self._target)
        back = asyncio.create_task(self._pass_on(theirs, writer, when=self._thawed))
        await self._pass_on(reader, ours)
        back.cancel()
        for one in (ours, writer):
            one.close()
            with suppress(ConnectionError):
                await one.wait_closed()
        self.connected -= 1

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        when: asyncio.Event | None = None,
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if when is not None:
                    await when.wait()
                writer.write(data)


async def test_no_connection_outlives_the_client_even_if_the_server_hangs(
    cluster: Cluster, eventually: Eventually
) -> None:
    config = await load_config(kubeconfig=str(cluster.kubeconfig_for(cluster.controller_token())))
    relay = Relay(config.server)
    async with relay.open() as config.server:
        async with connect(config) as api:

            async def watch() -> None:
                async with api.stream("/api/v1/nodes?watch=1", read_timeout=30) as chunks:
                    async for _ in chunks:
                        pass

            watching = asyncio.create_task(watch())
            await eventually(lambda: relay.connected == 1)
            await api.request("GET", "/api/v1/nodes?limit=1")
            relay.freeze()
            with pytest.raises(TimedOut):
                await api.request("GET", "/api/v1/nodes?limit=1", timeout=0.2)
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            assert relay.connected == 2  # their farewells are not answered

        await eventually(lambda: relay.connected == 0, within=5.0)  # asyncio would wait 30 s


# -- node patches ---------------------------------------------------------------------------


async def patch_of(cluster: Cluster, name: str, **changes: object) -> NodePatch:
    meta = cluster.node(name)["metadata"]
    return NodePatch(
        name=name,
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture
def writer(api: ApiClient) -> ApiNodeWriter:
    return ApiNodeWriter(api=api, check=lambda: None)


async def test_cordon_and_uncordon_change_that_and_nothing_else(
    cluster: Cluster, writer: ApiNodeWriter
) -> None:
    name = cluster.create_node(annotations={"theirs": "kept"})
    before = cluster.node(name)["spec"]

    version = await writer.patch_node(
        await patch_of(
            cluster, name, unschedulable=True, annotations={"gpu-remediator.io/session": "{}"}
        )
    )
    cordoned = cluster.node(name)
    assert cordoned["metadata"]["resourceVersion"] == version
    assert cordoned["spec"]["unschedulable"] is True
    assert cordoned["metadata"]["annotations"] == {
        "theirs": "kept",
        "gpu-remediator.io/session": "{}",
    }

    # The lifecycle controller answers with a taint; a patch before that would be a Conflict.
    cluster.wait_for(lambda: cluster.node(name)["spec"].get("taints"), what="the taint")
    await writer.patch_node(
        await patch_of(
            cluster, name, unschedulable=False, annotations={"gpu-remediator.io/session": None}
        )
    )
    after = cluster.node(name)
    assert "unschedulable" not in after["spec"]
    assert after["spec"].get("providerID") == before.get("providerID")
    assert after["metadata"]["annotations"] == {"theirs": "kept"}


async def test_outdated_view_is_a_conflict(cluster: Cluster, writer: ApiNodeWriter) -> None:
    name = cluster.create_node()
    outdated = await patch_of(cluster, name, unschedulable=True)
    cluster.annotate(name, {"a": "b"})

    with pytest.raises(Conflict):
        await writer.patch_node(outdated)

    assert not cluster.is_unschedulable(name)


async def test_new_node_of_the_same_name_is_never_touched(
    cluster: Cluster, writer: ApiNodeWriter
) -> None:
    name = cluster.create_node()
    old = await patch_of(cluster, name, unschedulable=True)
    cluster.delete_node(name)
    cluster.create_node(name.removeprefix(cluster.prefix))
    current = cluster.node(name)["metadata"]["resourceVersion"]

    # Even if the version were right, the UID is not.
    for version in (old.resource_version, current):
        with pytest.raises(Conflict):
            await writer.patch_node(
                NodePatch(name=name, uid=old.uid, resource_version=version, unschedulable=True)
            )

    assert not cluster.is_unschedulable(name)


async def test_deleted_node_is_not_found(cluster: Cluster, writer: ApiNodeWriter) -> None:
    name = cluster.create_node()
    patch = await patch_of(cluster, name, unschedulable=True)
    cluster.delete_node(name)

    with pytest.raises(NotFound):
        await writer.patch_node(patch)


async def test_server_dry_run_checks_all_and_stores_nothing(
    cluster: Cluster, api: ApiClient
) -> None:
    name = cluster.create_node()
    writer = ApiNodeWriter(api=api, check=lambda: None, server_dry_run=True)
    patch = await patch_of(cluster, name, unschedulable=True)

    assert await writer.patch_node(patch) == patch.resource_version
    assert cluster.node(name)["metadata"]["resourceVersion"] == patch.resource_version

    with pytest.raises(Conflict):
        await writer.patch_node(
            NodePatch(name=name, uid=patch.uid, resource_version="1", unschedulable=True)
        )


async def test_write_without_a_fresh_lease_is_never_sent(cluster: Cluster, api: ApiClient) -> None:
    name = cluster.create_node()

    def refuse() -> None:
        raise PermissionError

    writer = ApiNodeWriter(api=api, check=refuse)
    with pytest.raises(PermissionError):
        await writer.patch_node(await patch_of(cluster, name, unschedulable=True))

    assert not cluster.is_unschedulable(name)


async def test_lost_answer_is_seen_as_a_conflict_next_time(
    cluster: Cluster, proxy: FaultProxy, proxied: ApiClient
) -> None:
    name = cluster.create_node()
    writer = ApiNodeWriter(api=proxied, check=lambda: None)
    patch = await patch_of(cluster, name, unschedulable=True)
    proxy.add(Drop(forwarded=True), method="PATCH", times=1)

    with pytest.raises(Unreachable):
        await writer.patch_node(patch)
    with pytest.raises(Conflict):
        await writer.patch_node(patch)

    assert cluster.is_unschedulable(name)
