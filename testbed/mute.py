"""A TLS server that takes a request and then says nothing, not even farewell."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_server, socket
from threading import Event, Thread

from testbed.certificates import make_certificates


class Mute:
    """The server; it serves one connection. Use `serving`.

    Attributes:
        url: where it listens.
        ca_file: its authority.
        asked: a request has arrived.
        left: its caller has gone: the connection has ended.
    """

    def __init__(self, listener: socket, folder: Path) -> None:
        make_certificates(folder, {"ca": ["mute"]})
        self.url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        self.ca_file = folder / "ca.pem"
        self.asked, self.left = Event(), Event()
        self._listener = listener
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "mute.pem", folder / "mute.key")

    def serve(self) -> None:
        """Take one connection, read a request, and wait in silence for its end."""
        taken, _ = self._listener.accept()
        with self._tls.wrap_socket(taken, server_side=True) as secured:
            secured.recv(1 << 16)
            self.asked.set()
            plain = socket(fileno=secured.detach())  # below TLS: its farewell is not understood
        with plain, suppress(ConnectionError):
            while plain.recv(1 << 16):
                pass
        self.left.set()


@contextmanager
def serving(folder: Path) -> Iterator[Mute]:
    """Serve on a free port, with certificates made in this folder."""
    with create_server(("127.0.0.1", 0)) as listener:
        server = Mute(listener, folder)
        thread = Thread(target=server.serve, daemon=True)
        thread.start()
        yield server
        thread.join(10)
