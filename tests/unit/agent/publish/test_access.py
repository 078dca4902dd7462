"""The pod's identity is read again when the kubelet rotates it; what is missing is said."""

import ssl
from pathlib import Path

import pytest

from node_agent.publish.access import AccessError, ServiceAccount, find_access


ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    der = ssl.create_default_context().get_ca_certs(binary_form=True)[0]
    (tmp_path / "ca.crt").write_text(ssl.DER_cert_to_PEM_cert(der))
    return tmp_path


def test_a_rotated_token_is_taken_within_a_minute_or_after_a_refusal(folder: Path) -> None:
    account = ServiceAccount(environ=ENVIRON, folder=folder)
    assert account.authorization(now=0.0) == "Bearer first"
    (folder / "token").write_text("second")
    assert account.authorization(now=59.0) == "Bearer first"
    assert account.authorization(now=59.0, again=True) == "Bearer second"
    (folder / "token").write_text("third")
    assert account.authorization(now=120.0) == "Bearer third"


def test_a_token_that_cannot_be_read_for_a_moment_is_kept(folder: Path) -> None:
    account = ServiceAccount(environ=ENVIRON, folder=folder)
    (folder / "token").unlink()
    assert account.authorization(now=100.0) == "Bearer first"


def test_a_rotated_ca_gives_another_context_and_an_equal_one_the_same(folder: Path) -> None:
    account = ServiceAccount(environ=ENVIRON, folder=folder)
    before = account.tls()
    account.authorization(now=100.0)
    assert account.tls() is before
    other = ssl.create_default_context().get_ca_certs(binary_form=True)[1]
    (folder / "ca.crt").write_text(ssl.DER_cert_to_PEM_cert(other))
    account.authorization(now=200.0)
    assert account.tls() is not before


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")],
)
def test_the_address_comes_from_the_environment(folder: Path, host: str, server: str) -> None:
    environ = {**ENVIRON, "KUBERNETES_SERVICE_HOST": host}
    assert ServiceAccount(environ=environ, folder=folder).server == server


@pytest.mark.parametrize(
    ("environ", "file", "says"),
    [
        ({}, "", "give a kubeconfig"),
        (ENVIRON, "token", "is automountServiceAccountToken on"),
        (ENVIRON, "ca.crt", "cannot use the cluster's CA"),
    ],
)
def test_what_is_missing_is_said(
    folder: Path, environ: dict[str, str], file: str, says: str
) -> None:
    if file:
        (folder / file).unlink()
    with pytest.raises(AccessError, match=says):
        find_access(kubeconfig="", context="", service_account=folder, environ=environ)


def test_a_kubeconfig_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="does not exist"):
        find_access(
            kubeconfig=str(tmp_path / "none"), context="", service_account=tmp_path, environ={}
        )
