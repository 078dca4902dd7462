"""Where the API server is and who we are there, without paying for a client library.

In a pod: address from the environment, token and CA from the service account's folder.
The kubelet rotates both, so the files are looked at again each minute and after a 401.
Outside: a kubeconfig, read by the official package, which is imported only then (it costs
about 50 MB of memory that no pod pays).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol


REREAD_SECONDS: Final = 60.0


class AccessError(Exception):
    """No way to the API server can be made from what there is. The text says what to do."""


class Access(Protocol):
    """A way to one API server."""

    server: str

    def authorization(self, *, now: float, again: bool = False) -> str:
        """The Authorization header, empty for none. ``again``: after a 401, read anew."""
        ...

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context; another object after the CA was rotated. None for plain HTTP."""
        ...


class ServiceAccount:
    """The identity of a pod.

    Args:
        environ: holds ``KUBERNETES_SERVICE_HOST`` and ``_PORT``.
        folder: holds ``token`` and ``ca.crt``.

    Raises:
        AccessError: one of them is missing.
    """

    def __init__(self, *, environ: Mapping[str, str], folder: Path) -> None:
        host, port = (environ.get(f"KUBERNETES_SERVICE_{x}", "") for x in ("HOST", "PORT"))
        if not host:
            raise AccessError(
                "not in a pod (KUBERNETES_SERVICE_HOST is not set): "
                "give a kubeconfig by --kubeconfig or NODE_AGENT_KUBECONFIG"
            )
        address = f"[{host}]" if ":" in host else host
        self.server = f"https://{address}:{port or 443}"
        self._folder = folder
        self._token = ""
        self._looked = float("-inf")
        self._ca = b""
        self._tls = self._read_ca() or ssl.create_default_context()
        self._read_token()

    def authorization(self, *, now: float, again: bool = False) -> str:
        """The token, read again each minute. Keeps the old one while the file is unreadable."""
        if again or now - self._looked >= REREAD_SECONDS:
            self._looked = now
            try:
                self._read_token()
                self._tls = self._read_ca() or self._tls
            except AccessError:
                if not self._token:
                    raise
        return f"Bearer {self._token}"

    def tls(self) -> ssl.SSLContext:
        """TLS that trusts the cluster's CA only."""
        return self._tls

    def _read_token(self) -> None:
        try:
            self._token = (self._folder / "token").read_text("ascii").strip()
        except (OSError, ValueError) as error:
            raise AccessError(
                f"cannot read the pod's token {self._folder / 'token'}: {error}; "
                "is automountServiceAccountToken on for this pod?"
            ) from error

    def _read_ca(self) -> ssl.SSLContext | None:
        """A new context if the CA has changed."""
        path = self._folder / "ca.crt"
        try:
            raw = path.read_bytes()
            if raw == self._ca:
                return None
            context = ssl.create_default_context(cadata=raw.decode("ascii"))
        except (OSError, ValueError, ssl.SSLError) as error:
            raise AccessError(f"cannot use the cluster's CA {path}: {error}") from error
        self._ca = raw
        return context


class Kubeconfig:
    """The identity of a person or a test, from a kubeconfig.

    A plugin that it names runs on the event loop: right for a trial, not for a DaemonSet.
    """

    def __init__(self, *, load: Callable[[], Any]) -> None:
        self._load = load
        self._looked = float("-inf")
        self._read()

    def authorization(self, *, now: float, again: bool = False) -> str:
        """The header that the official package makes; it renews tokens of plugins and files."""
        try:
            if again:
                self._read()
            elif now - self._looked >= REREAD_SECONDS and self._configuration.refresh_api_key_hook:
                self._configuration.refresh_api_key_hook(self._configuration)
                self._looked = now
        except Exception as error:  # the package raises what its parsers and plugins raise
            raise AccessError(f"cannot renew the kubeconfig's credentials: {error}") from error
        # The loaders put the scheme ("Bearer ...") into the key itself.
        return str(self._configuration.api_key.get("BearerToken") or "").strip()

    def tls(self) -> ssl.SSLContext | None:
        """TLS with the client certificate, if there is one."""
        return self._tls

    def _read(self) -> None:
        self._configuration = self._load()
        self.server = str(self._configuration.host).rstrip("/")
        self._tls = self._context() if self.server.startswith("https") else None

    def _context(self) -> ssl.SSLContext:
        configuration = self._configuration
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        return context


def find_access(
    *, kubeconfig: str, context: str, service_account: Path, environ: Mapping[str, str]
) -> Access:
    """The pod's identity, or that of a kubeconfig where one is named.

    Raises:
        AccessError: neither can be used.
    """
    if not kubeconfig:
        return ServiceAccount(environ=environ, folder=service_account)
    path = Path(kubeconfig).expanduser()
    if not path.is_file():
        raise AccessError(f"the kubeconfig {path} does not exist")
    try:
        return Kubeconfig(load=lambda: _load_kubeconfig(path, context))
    except Exception as error:  # the package raises what its parsers and plugins raise
        raise AccessError(f"cannot use the kubeconfig {path}: {error}") from error


def _load_kubeconfig(path: Path, context: str) -> Any:
    from kubernetes.client.configuration import Configuration  # noqa: PLC0415 - see above
    from kubernetes.config import load_kube_config  # noqa: PLC0415

    configuration = Configuration()
    load_kube_config(
        config_file=str(path),
        context=context or None,
        client_configuration=configuration,
        persist_config=False,
    )
    return configuration
