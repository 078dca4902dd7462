"""The kubelet's PodResources v1 socket, by the official protobuf and gRPC implementations.

Its messages are real protobuf classes, made from the field numbers of
k8s.io/kubelet/pkg/apis/podresources/v1/api.proto. The server can be told to misbehave as
kubelets do: to hang, to refuse for rate, to be an old one, to die and come back on a new socket.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message


_FIELD = descriptor_pb2.FieldDescriptorProto
_STRING, _INT64, _UINT64 = _FIELD.TYPE_STRING, _FIELD.TYPE_INT64, _FIELD.TYPE_UINT64
SERVICE = "v1.PodResourcesLister"

# Message -> fields: name, number, type (another message's name, or a scalar), repeated.
_MESSAGES: dict[str, list[tuple[str, int, str | int, bool]]] = {
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources", True)],
    "PodResources": [
        ("name", 1, _STRING, False),
        ("namespace", 2, _STRING, False),
        ("containers", 3, "ContainerResources", True),
    ],
    "ContainerResources": [
        ("name", 1, _STRING, False),
        ("devices", 2, "ContainerDevices", True),
        ("cpu_ids", 3, _INT64, True),
        ("memory", 4, "ContainerMemory", True),
        ("dynamic_resources", 5, "DynamicResource", True),
    ],
    "ContainerMemory": [
        ("memory_type", 1, _STRING, False),
        ("size", 2, _UINT64, False),
        ("topology", 3, "TopologyInfo", False),
    ],
    "ContainerDevices": [
        ("resource_name", 1, _STRING, False),
        ("device_ids", 2, _STRING, True),
        ("topology", 3, "TopologyInfo", False),
    ],
    "TopologyInfo": [("nodes", 1, "NUMANode", True)],
    "NUMANode": [("ID", 1, _INT64, False)],
    "DynamicResource": [
        ("claim_name", 2, _STRING, False),
        ("claim_namespace", 3, _STRING, False),
        ("claim_resources", 4, "ClaimResource", True),
    ],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice", True),
        ("driver_name", 2, _STRING, False),
        ("pool_name", 3, _STRING, False),
        ("device_name", 4, _STRING, False),
        ("share_id", 5, _STRING, False),
    ],
    "CDIDevice": [("name", 1, _STRING, False)],
}


def _message_classes() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(
        name="podresources.proto", package="v1", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeated in fields:
            field = message.field.add(
                name=field_name,
                number=number,
                label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
            )
            if isinstance(kind, str):
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".v1.{kind}"
            else:
                field.type = kind  # type: ignore[assignment] # an enum's number
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}"))
        for name in _MESSAGES
    }


MESSAGES = _message_classes()


def response(pods: Sequence[dict[str, Any]]) -> Message:
    """A ListPodResourcesResponse of pods as dicts by the field names of the .proto file."""
    return MESSAGES["ListPodResourcesResponse"](pod_resources=pods)


def pod(
    name: str,
    ids: Sequence[str] = (),
    *,
    namespace: str = "ml",
    container: str = "train",
    resource: str = "nvidia.com/gpu",
    claims: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """A pod with one container that holds these device ids and claims."""
    devices = [{"resource_name": resource, "device_ids": list(ids)}] if ids else []
    held = {"name": container, "devices": devices, "dynamic_resources": list(claims)}
    return {"name": name, "namespace": namespace, "containers": [held]}


class Mode(StrEnum):
    """How the server answers a List."""

    ANSWER = "answer"
    HANG = "hang"
    EXHAUSTED = "exhausted"
    OLD = "old"


class KubeletSocket:
    """A kubelet's PodResources server; a context manager.

    Args:
        folder: stands for `/var/lib/kubelet`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "pod-resources" / "kubelet.sock"
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.mode = Mode.ANSWER
        self.pods: list[dict[str, Any]] = []
        self.raw: bytes | None = None
        self.lists = 0
        self._asked = threading.Condition()
        self._server: grpc.Server | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._released = threading.Event()

    def __enter__(self) -> Self:
        """Start serving."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop for good."""
        self.stop()

    def start(self) -> None:
        """Make the socket and serve."""
        self._released = threading.Event()
        self._threads = ThreadPoolExecutor(max_workers=4)
        self._server = grpc.server(self._threads)
        handler: Callable[..., Any] = self._list
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    SERVICE,
                    {
                        "List": grpc.unary_unary_rpc_method_handler(
                            handler,
                            request_deserializer=MESSAGES["ListPodResourcesRequest"].FromString,
                            response_serializer=None,
                        )
                    },
                ),
            )
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """Die as a kubelet does: calls in flight break off, the socket is gone."""
        if self._server is None or self._threads is None:
            return
        stopped = self._server.stop(grace=None)  # calls in flight break off here,
        self._released.set()  # and only then the one that hangs may end
        stopped.wait()
        self._threads.shutdown()
        self._server = None
        self.socket.unlink(missing_ok=True)

    def restart(self) -> None:
        """Another process, another socket at the same path."""
        self.stop()
        self.start()

    async def until(self, lists: int) -> None:
        """Return when it was asked so many times in all."""

        def wait() -> None:
            with self._asked:
                self._asked.wait_for(lambda: self.lists >= lists, timeout=30)

        await asyncio.to_thread(wait)
        if self.lists < lists:
            raise TimeoutError(f"asked {self.lists} times in 30 s, not {lists}")

    def _list(self, _request: Message, context: grpc.ServicerContext) -> bytes:
        with self._asked:
            self.lists += 1
            self._asked.notify_all()
        if self.mode is Mode.HANG:
            self._released.wait()
        if self.mode is Mode.EXHAUSTED:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        if self.mode is Mode.OLD:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown service v1.PodResourcesLister")
        return self.raw if self.raw is not None else response(self.pods).SerializeToString()
