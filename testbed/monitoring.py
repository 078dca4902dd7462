"""A real Prometheus, and real Alertmanagers that form a cluster of peers, on 127.0.0.1."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from testbed.binaries import provide
from testbed.processes import Child, free_port


PATIENCE = 60.0


def call(url: str, body: object = None, *, method: str = "", timeout: float = 10.0) -> Any:
    """GET, or POST a JSON body, or another method; the decoded answer, None if it is empty."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method or None)  # noqa: S310 - our own servers
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - as above
        text = answer.read()
    return json.loads(text) if text.strip() else None


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


class Alertmanager:
    """One peer. Can be stopped and started again: it keeps its silences, not its alerts."""

    def __init__(self, folder: Path, *, name: str, peers: Sequence["Alertmanager"] = ()) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.url = f"http://127.0.0.1:{free_port()}"
        self.gossip = f"127.0.0.1:{free_port()}"
        argv = [
            str(provide("alertmanager")),
            f"--config.file={self.folder / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            f"--cluster.listen-address={self.gossip}",
            "--cluster.settle-timeout=1s",
            "--cluster.gossip-interval=50ms",
            "--cluster.pushpull-interval=1s",
            *(f"--cluster.peer={one.gossip}" for one in peers),
        ]
        self.process = Child(name, argv, log=self.folder / "log")

    def configure(
        self,
        *,
        webhook: Mapping[str, Any] | None = None,
        inhibit: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write its configuration: every alert of a node is a group, sent at once."""
        receiver: dict[str, Any] = {"name": "remediator"}
        if webhook is not None:
            receiver["webhook_configs"] = [dict(webhook)]
        document = {
            "route": {
                "receiver": "remediator",
                "group_by": ["alertname", "node"],
                "group_wait": "100ms",
                "group_interval": "1s",
                "repeat_interval": "1h",
            },
            "inhibit_rules": list(inhibit),
            "receivers": [receiver],
        }
        (self.folder / "alertmanager.yml").write_text(json.dumps(document), encoding="utf-8")

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process.start()
        self.process.wait_until(self.ready, timeout=PATIENCE)

    def stop(self) -> None:
        """Stop it."""
        self.process.stop()

    def ready(self) -> bool:
        """Tell whether it answers."""
        try:
            call(f"{self.url}/api/v2/status", timeout=2.0)
        except OSError:
            return False
        return True

    def fire(self, *, ends_in: float = 3600.0, starts_ago: float = 0.0, **labels: str) -> None:
        """Send an alert as Prometheus does; `ends_in` 0 resolves it."""
        now = datetime.now(tz=UTC)
        alert = {
            "labels": labels,
            "startsAt": _stamp(now - timedelta(seconds=starts_ago)),
            "endsAt": _stamp(now + timedelta(seconds=ends_in)),
        }
        call(f"{self.url}/api/v2/alerts", [alert])

    def fire_many(self, alerts: Sequence[Mapping[str, str]], *, ends_in: float = 3600.0) -> None:
        """Send many alerts at once."""
        ends = _stamp(datetime.now(tz=UTC) + timedelta(seconds=ends_in))
        call(f"{self.url}/api/v2/alerts", [{"labels": dict(a), "endsAt": ends} for a in alerts])

    def silence(self, **labels: str) -> str:
        """Silence alerts with these labels for an hour; the silence's id."""
        now = datetime.now(tz=UTC)
        body = {
            "matchers": [
                {"name": key, "value": value, "isRegex": False, "isEqual": True}
                for key, value in labels.items()
            ],
            "startsAt": _stamp(now),
            "endsAt": _stamp(now + timedelta(hours=1)),
            "createdBy": "test",
            "comment": "leave it",
        }
        return str(call(f"{self.url}/api/v2/silences", body)["silenceID"])

    def unsilence(self, silence: str) -> None:
        """End a silence."""
        call(f"{self.url}/api/v2/silence/{silence}", method="DELETE")

    def alerts(self) -> list[dict[str, Any]]:
        """All alerts that it has."""
        return list(call(f"{self.url}/api/v2/alerts"))


class Pair:
    """Two peers that gossip, as a highly available Alertmanager; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.first = Alertmanager(folder, name="alertmanager-0")
        self.second = Alertmanager(folder, name="alertmanager-1", peers=[self.first])

    @property
    def both(self) -> tuple[Alertmanager, Alertmanager]:
        """Both peers."""
        return (self.first, self.second)

    @property
    def urls(self) -> list[str]:
        """Where they are."""
        return [one.url for one in self.both]

    def configure(self, **options: Any) -> None:
        """See `Alertmanager.configure`."""
        for one in self.both:
            one.configure(**options)

    def fire(self, **options: Any) -> None:
        """Send an alert to both, as Prometheus does."""
        for one in self.both:
            if one.process.running:
                one.fire(**options)

    def __enter__(self) -> Self:
        """Start both, with a configuration that sends nothing if none was written."""
        for one in self.both:
            if not (one.folder / "alertmanager.yml").exists():
                one.configure()
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End both."""
        for one in self.both:
            one.process.close()


class Prometheus:
    """One that scrapes each second, evaluates rules, and sends alerts; a context manager."""

    def __init__(
        self,
        folder: Path,
        *,
        scrape: Sequence[Mapping[str, Any]] = (),
        rules: str | None = None,
        alertmanagers: Sequence[str] = (),
    ) -> None:
        config: dict[str, Any] = {
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "scrape_configs": list(scrape),
            "alerting": {
                "alertmanagers": [
                    {
                        "static_configs": [
                            {"targets": [one.removeprefix("http://") for one in alertmanagers]}
                        ]
                    }
                ]
            },
        }
        if rules is not None:
            (folder / "rules.yml").write_text(rules, encoding="utf-8")
            config["rule_files"] = [str(folder / "rules.yml")]
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        argv = [
            str(provide("prometheus")),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address={address}",
            "--rules.alert.resend-delay=1s",
        ]
        self.process = Child("prometheus", argv, log=folder / "prometheus.log")

    def __enter__(self) -> Self:
        """Start it and wait until it answers."""
        self.process.start()
        self.wait_until(lambda: self.query("vector(1)") != [], "the server")
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.process.close()

    def query(self, promql: str) -> list[Any]:
        """The result of an instant query."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
        return list(call(url)["data"]["result"])

    def wait_until(self, found: Callable[[], bool], what: str) -> None:
        """Return when `found` is true; while it does not answer, it is not."""

        def look() -> bool:
            try:
                return found()
            except OSError:
                return False

        del what
        self.process.wait_until(look, timeout=PATIENCE)
