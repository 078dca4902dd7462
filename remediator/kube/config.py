"""Where the API server is and how to prove who we are, read by the official package.

In-cluster service account, kubeconfig, contexts, client certificates, token files
and exec plugins are the official package's business (`kubernetes.config`); what
comes out here is plain: an address, an SSL context, a header. Typed API classes
are never touched (the first one costs 80 MB), and the package is imported only
when a configuration is loaded, so that `remediator --help` stays quick.

Loading may run an exec plugin and read files: it happens in a thread. Tokens are
looked at again once a minute, and everything is read anew when the server
answers 401, which covers rotated token files, expired plugins and new client
certificates alike. The user's kubeconfig is never written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from remediator.kube.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

T = TypeVar("T")

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CREDENTIALS_AGE = 60.0
"""Seconds after which a token file is looked at again. The kubelet renews a token
at 80 % of its life (10 minutes at least), so a minute is soon enough."""


class Credentials:
    """The Authorization header, kept current, and the client certificate in `ssl`.

    Args:
        load: reads the configuration from scratch; runs in a thread.
        loaded: what `load` returned at start.
        context: the SSL context into which a new client certificate is loaded.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        *,
        load: Callable[[], Any],
        loaded: Any,
        context: ssl.SSLContext | None,
        clock: Callable[[], float],
    ) -> None:
        self._load = load
        self._configuration = loaded
        self._context = context
        self._clock = clock
        self._lock = asyncio.Lock()
        self._reading: set[asyncio.Task[object]] = set()
        self._header = _authorization(loaded)
        self._due = clock() + _CREDENTIALS_AGE

    async def authorization(self) -> str:
        """The header's value, "" for none (client certificate, or a proxy that adds it).

        Once in a while a call looks for a newer token, which may run a plugin and last. While it
        does, and for a call that gave up waiting, the header before is good enough: if it is not,
        the server says 401.
        """
        if self._clock() >= self._due:
            await self._outlasting(self._refresh())
        return self._header

    async def reload(self, refused: str) -> bool:
        """After a 401 for the header `refused`: read all anew; whether that changed anything."""
        return await self._outlasting(self._reload(refused))

    async def _outlasting(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`, which goes on if the one who waits gives up: its news is for all."""
        task = asyncio.create_task(work)
        self._reading.add(task)
        task.add_done_callback(self._read)
        return await asyncio.shield(task)

    def _read(self, task: asyncio.Task[object]) -> None:
        self._reading.discard(task)
        if not task.cancelled():
            task.exception()  # is seen, also where nobody waits any more

    async def _reload(self, refused: str) -> bool:
        async with self._lock:
            if self._header == refused:
                self._configuration = await asyncio.to_thread(self._load)
                self._take_over()
            return self._header != refused

    async def _refresh(self) -> None:
        """Let the official package look whether the token has been rotated or has expired."""
        async with self._lock:
            if self._clock() < self._due:
                return
            self._due = self._clock() + _CREDENTIALS_AGE
            # An unreadable file or a failing plugin: the old token may still be good, and
            # if it is not, the server's 401 leads to a full reload, whose error is shown.
            with contextlib.suppress(ConfigError):
                await asyncio.to_thread(_run_hook, self._configuration)
                self._take_over()

    def _take_over(self) -> None:
        self._header = _authorization(self._configuration)
        self._due = self._clock() + _CREDENTIALS_AGE
        if self._context is not None:
            _load_authority(self._context, self._configuration)
            _load_client_certificate(self._context, self._configuration)


class ApiConfig:
    """The API server and our way in.

    Attributes:
        server: base URL without a trailing slash.
        ssl: context for https, None for http.
        server_name: name to expect in the server's certificate, None for the URL's host.
        proxy: URL of an HTTP proxy, None for none.
        credentials: provider of the Authorization header, None for none.
        source: where this came from, for messages ("context dev of /home/x/.kube/config").
    """

    def __init__(
        self,
        server: str,
        *,
        ssl: ssl.SSLContext | None = None,
        server_name: str | None = None,
        proxy: str | None = None,
        credentials: Credentials | None = None,
        source: str = "",
    ) -> None:
        self.server = server.rstrip("/")
        self.ssl = ssl
        self.server_name = server_name
        self.proxy = proxy
        self.credentials = credentials
        self.source = source


async def load_config(
    *,
    kubeconfig: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = _SERVICE_ACCOUNT,
) -> ApiConfig:
    """Find the cluster in the order that controllers usually do.

    1. `kubeconfig` (a path, as from a flag); 2. `$KUBECONFIG`; 3. the pod's service
    account; 4. `~/.kube/config`. A `context` rules the service account out.

    Raises:
        ConfigError: nothing was found or it cannot be used, with what to do.
    """
    loop = asyncio.get_running_loop()
    load, source = _choose(kubeconfig, context, environ, service_account)
    try:
        configuration = await asyncio.to_thread(load)
        tls = _ssl_context(configuration)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    credentials = Credentials(load=load, loaded=configuration, context=tls, clock=loop.time)
    return ApiConfig(
        configuration.host,
        ssl=tls,
        server_name=configuration.tls_server_name,
        proxy=configuration.proxy,
        credentials=credentials,
        source=source,
    )


def _choose(
    kubeconfig: str | None,
    context: str | None,
    environ: Mapping[str, str],
    service_account: Path,
) -> tuple[Callable[[], Any], str]:
    """How to load the configuration, and its name for messages."""
    named = kubeconfig or environ.get("KUBECONFIG")
    in_cluster = bool(environ.get("KUBERNETES_SERVICE_HOST")) and service_account.is_dir()
    if not named and not context and in_cluster:
        return lambda: _load_in_cluster(environ, service_account), "in-cluster service account"
    paths = named or str(Path("~/.kube/config").expanduser())
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        missing = f"the kubeconfig {paths} does not exist" if named else "no kubeconfig found"
        raise ConfigError(
            f"{missing}: give one by --kubeconfig or $KUBECONFIG, put one at ~/.kube/config,"
            " or run in a pod whose service account token is mounted"
        )
    source = f"context {context} of {paths}" if context else f"current context of {paths}"
    return lambda: _load_kubeconfig(paths, context), source


def _load_in_cluster(environ: Mapping[str, str], folder: Path) -> Any:
    from kubernetes.client.configuration import Configuration  # noqa: PLC0415 - 10 MB, 0.3 s
    from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    configuration = Configuration()
    with _official_errors():
        InClusterConfigLoader(
            token_filename=str(folder / "token"),
            cert_filename=str(folder / "ca.crt"),
            environ=environ,
        ).load_and_set(configuration)
    return configuration


def _load_kubeconfig(paths: str, context: str | None) -> Any:
    from kubernetes.client.configuration import Configuration  # noqa: PLC0415 - 10 MB, 0.3 s
    from kubernetes.config import load_kube_config  # noqa: PLC0415

    configuration = Configuration()
    with _official_errors() as logged:
        load_kube_config(
            config_file=paths,
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
    if logged and not configuration.api_key and not configuration.cert_file:
        # The official loader logs a failed exec plugin and goes on as nobody.
        raise ConfigError(f"the user's credentials cannot be had: {'; '.join(logged)}")
    return configuration


def _run_hook(configuration: Any) -> None:
    with _official_errors():
        if configuration.refresh_api_key_hook is not None:
            configuration.refresh_api_key_hook(configuration)


@contextlib.contextmanager
def _official_errors() -> Iterator[list[str]]:
    """Turn the loaders' exceptions into ours and collect what they only log."""
    logged: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        logged.append(record.getMessage())
        return False

    root = logging.getLogger()
    root.addFilter(collect)
    try:
        yield logged
    except ConfigError:
        raise
    except Exception as error:
        # ConfigException, yaml errors, OSError, and AttributeError or TypeError for
        # a file of another shape: for the user all of them mean the same.
        raise ConfigError(f"cannot be used: {error}".rstrip(". ")) from error
    finally:
        root.removeFilter(collect)


def _authorization(configuration: Any) -> str:
    """The header; the official loaders put the scheme ("bearer ...") into the key itself."""
    return str(configuration.api_key.get("BearerToken") or "").strip()


def _ssl_context(configuration: Any) -> ssl.SSLContext | None:
    if not configuration.host.startswith("https"):
        return None
    if configuration.ssl_ca_cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody else
        _load_authority(context, configuration)
    else:
        context = ssl.create_default_context()
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _load_client_certificate(context, configuration)
    return context


def _load_authority(context: ssl.SSLContext, configuration: Any) -> None:
    """Also into a live context, where a renewed authority is trusted beside the old one."""
    if not configuration.ssl_ca_cert:
        return
    try:
        context.load_verify_locations(configuration.ssl_ca_cert)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificate authority cannot be read: {error}") from error


def _load_client_certificate(context: ssl.SSLContext, configuration: Any) -> None:
    """Also into a live context: connections made from now on present the new one."""
    if not configuration.cert_file:
        return
    try:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the client certificate cannot be read: {error}") from error
