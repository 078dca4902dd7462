"""Where the cluster and the credentials come from, and what is said when they do not."""

import asyncio
import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from remediator.kube.config import Credentials, load_config
from remediator.kube.errors import ConfigError


def kubeconfig(path: Path, *, user: dict[str, Any], server: str = "http://one.example") -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [
            {"name": "one", "cluster": {"server": server}},
            {"name": "two", "cluster": {"server": "http://two.example/prefix/"}},
        ],
        "users": [{"name": "me", "user": user}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": "me"}} for name in ("one", "two")
        ],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def plugin(path: Path, script: str) -> dict[str, Any]:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path)}}


async def authorization(path: str, **options: Any) -> str:
    config = await load_config(kubeconfig=path, environ={}, **options)
    assert config.credentials is not None
    return await config.credentials.authorization()


async def test_token_and_context(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", user={"token": "secret"})

    first = await load_config(kubeconfig=path, environ={})
    second = await load_config(kubeconfig=path, context="two", environ={})

    assert (first.server, second.server) == ("http://one.example", "http://two.example/prefix")
    assert first.ssl is None
    assert await authorization(path) == "Bearer secret"
    assert "context two" in second.source


async def test_environment_names_the_kubeconfig(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", user={"token": "secret"})

    config = await load_config(environ={"KUBECONFIG": f"/does/not/exist:{path}"})

    assert config.server == "http://one.example"


async def test_exec_plugin_gives_the_token(tmp_path: Path) -> None:
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-plugin"},
    }
    user = plugin(tmp_path / "plugin", f"echo '{json.dumps(answer)}'")

    assert await authorization(kubeconfig(tmp_path / "c", user=user)) == "Bearer from-plugin"


async def test_failing_exec_plugin_is_an_error_not_anonymous_access(tmp_path: Path) -> None:
    user = plugin(tmp_path / "plugin", "echo 'please log in' >&2; exit 3")

    with pytest.raises(ConfigError, match="please log in"):
        await load_config(kubeconfig=kubeconfig(tmp_path / "c", user=user), environ={})

    assert logging.getLogger().filters == []


async def test_user_without_credentials_sends_none(tmp_path: Path) -> None:
    assert await authorization(kubeconfig(tmp_path / "c", user={})) == ""


@pytest.mark.parametrize(
    ("content", "context", "said"),
    [
        pytest.param("a: [", None, "cannot be used", id="no-yaml"),
        pytest.param("[]", None, "cannot be used", id="not-a-mapping"),
        pytest.param("", None, "empty", id="empty"),
        pytest.param("{}", None, "current-context", id="no-context"),
        pytest.param(None, "three", "three", id="unknown-context"),
    ],
)
async def test_unusable_kubeconfig_is_named(
    tmp_path: Path, content: str | None, context: str | None, said: str
) -> None:
    path = tmp_path / "config"
    kubeconfig(path, user={"token": "t"})
    if content is not None:
        path.write_text(content, encoding="utf-8")

    with pytest.raises(ConfigError, match=said) as caught:
        await load_config(kubeconfig=str(path), context=context, environ={})

    assert str(path) in str(caught.value)


async def test_nothing_found_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(ConfigError, match="no kubeconfig found: give one by --kubeconfig"):
        await load_config(environ={})
    with pytest.raises(ConfigError, match=r"/no/such/file does not exist"):
        await load_config(kubeconfig="/no/such/file", environ={})


async def test_missing_certificate_authority_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    kubeconfig(path, user={"token": "t"}, server="https://one.example")
    document = json.loads(path.read_text(encoding="utf-8"))
    document["clusters"][0]["cluster"]["certificate-authority"] = str(tmp_path / "none.crt")
    path.write_text(json.dumps(document), encoding="utf-8")

    with pytest.raises(ConfigError, match=r"none\.crt"):
        await load_config(kubeconfig=str(path), environ={})


# -- in a pod ------------------------------------------------------------------------------

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    """The mounted folder, as the kubelet makes it; the CA is one of the system's."""
    (tmp_path / "token").write_text("first\n", encoding="ascii")
    (tmp_path / "ca.crt").write_text(CERTIFICATE, encoding="ascii")
    return tmp_path


CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBdjCCAR2gAwIBAgIBADAKBggqhkjOPQQDAjAPMQ0wCwYDVQQDDAR0ZXN0MB4X
-----END CERTIFICATE-----
"""


async def test_unreadable_authority_in_a_pod_is_an_error(service_account: Path) -> None:
    with pytest.raises(ConfigError, match="in-cluster service account"):
        await load_config(environ=POD, service_account=service_account)


async def test_empty_token_in_a_pod_is_an_error(service_account: Path) -> None:
    (service_account / "token").write_text("", encoding="ascii")

    with pytest.raises(ConfigError, match="empty"):
        await load_config(environ=POD, service_account=service_account)


# -- rotation --------------------------------------------------------------------------------


async def test_reload_after_a_401_reads_everything_anew(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first", encoding="ascii")
    path = kubeconfig(tmp_path / "c", user={"tokenFile": str(token)})
    config = await load_config(kubeconfig=path, environ={})
    credentials = config.credentials
    assert credentials is not None
    old = await credentials.authorization()
    assert not await credentials.reload(old), "nothing has changed: do not try again"

    token.write_text("second", encoding="ascii")
    results = await asyncio.gather(*(credentials.reload(old) for _ in range(5)))

    assert all(results)
    assert await credentials.authorization() == "Bearer second"


class Rotating:
    """A configuration whose hook finds a new token, as the official package's does."""

    cert_file = ssl_ca_cert = None

    def __init__(self) -> None:
        self.api_key = {"BearerToken": "first"}
        self.fails = False
        self.looked = 0

    def refresh_api_key_hook(self, _: object) -> None:
        self.looked += 1
        if self.fails:
            raise OSError("the token file is gone")
        self.api_key = {"BearerToken": f"token {self.looked}"}


async def test_token_is_looked_at_once_a_minute() -> None:
    now = [0.0]
    source = Rotating()
    credentials = Credentials(
        load=lambda: source, loaded=source, context=None, clock=lambda: now[0]
    )

    assert await credentials.authorization() == "first"
    now[0] = 59.0
    assert await credentials.authorization() == "first"
    now[0] = 61.0
    assert {await credentials.authorization() for _ in range(5)} == {"token 1"}

    source.fails = True
    now[0] = 122.0
    assert await credentials.authorization() == "token 1", "the old one may still be good"
    assert source.looked == 2
