"""What the stories inside a booted machine are told with: nothing but Debian's own Python."""

import hashlib
import hmac
import http.client
import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

ADMIN, WEBHOOKS, DESTINATION = 3001, 3000, 9001
SECRETS = Path("/etc/reconciler/credentials/shop-secret")
CONFIG = Path("/etc/reconciler/reconciler.toml")
DROP_IN = Path("/etc/systemd/system/reconciler.service.d")
WATCHDOG = 4  #: seconds

CONFIGURATION = """\
[database]
url = "postgresql:///reconciler?host=/run/postgresql"
embedded = "never"
search_path = "public"

[server]
listen = "127.0.0.1:3999"  # does not count: the socket is systemd's
admin_listen = "127.0.0.1:3001"

[senders.shop]
preset = "generic"
secrets = ["credential:shop-secret"]
grace = "1m"

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
fields = { status = "status", paid = "paid", amount = "amount" }
first_seen = "fire"

[destinations.payments]
base_url = "http://127.0.0.1:9001"
timeout = "30s"
allow_private = ["127.0.0.0/8"]

[effects.capture]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /v1/charges"
json = { amount = "{{ state.amount }}", reference = "{{ key }}" }
"""


class Destination(ThreadingHTTPServer):
    """Takes calls; one whose reference begins with `slow` takes its time."""

    daemon_threads = True
    slow = 25.0  #: seconds

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", DESTINATION), _Call)
        self.begun: list[str] = []
        self.answered: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Call(BaseHTTPRequestHandler):
    server: Destination

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        reference = json.loads(body)["reference"]
        self.server.begun.append(reference)
        if reference.startswith("slow"):
            time.sleep(self.server.slow)
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        self.server.answered.append(reference)

    def log_message(self, *_: object) -> None:
        return


class Load:
    """Senders that never pause, each with a connection for every delivery or one for all."""

    def __init__(self, senders: int) -> None:
        self.answers: list[tuple[str, float]] = []
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(number,)) for number in range(senders)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _send(self, sender: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", WEBHOOKS, timeout=60)
        number = 0
        while not self._stopping.is_set():
            number += 1
            began = time.monotonic()
            try:
                status, _ = deliver(f"load-{sender}-{number}", connection=connection)
                told = str(status)
            except (OSError, http.client.HTTPException) as error:
                told = repr(error)
                connection.close()
            self.answers.append((told, time.monotonic() - began))
            if sender % 2:
                connection.close()
        connection.close()


def deliver(
    key: str,
    *,
    paid: bool = False,
    secret: str | None = None,
    connection: http.client.HTTPConnection | None = None,
) -> tuple[int, dict[str, Any]]:
    """Send one signed webhook about the order *key*; status and answer."""
    data = {"order_id": key, "version": 1, "status": "new", "paid": paid, "amount": 4200}
    body = json.dumps({"id": f"evt-{key}", "type": "order.updated", "data": data}).encode()
    moment = str(int(time.time()))
    signed = moment.encode() + b"." + body
    mac = hmac.new((secret or the_secret()).encode(), signed, hashlib.sha256).hexdigest()
    headers = {"X-Signature": mac, "X-Signature-Timestamp": moment}
    used = connection or http.client.HTTPConnection("127.0.0.1", WEBHOOKS, timeout=30)
    used.request("POST", "/webhooks/shop", body=body, headers=headers)
    answer = used.getresponse()
    told = json.loads(answer.read())
    if connection is None:
        used.close()
    return answer.status, told


def the_secret() -> str:
    return SECRETS.read_text().strip()


def asked(path: str) -> str:
    """What the admin listener answers; empty where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}{path}", timeout=5) as answer:
            return str(answer.read().decode()).strip()
    except OSError:
        return ""


def run(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def show(*names: str, unit: str = "reconciler.service") -> list[str]:
    """Properties of the unit, in the order asked for."""
    told = run("systemctl", "show", unit, *(f"--property={name}" for name in names))
    found = dict(line.split("=", 1) for line in told.splitlines())
    return [found.get(name, "") for name in names]


def sql(statement: str) -> str:
    """One value, as the service's own account."""
    return run("runuser", "-u", "reconciler", "--", "psql", "-qtAX", "reconciler", "-c", statement)


def journal(*words: str) -> str:
    return run("journalctl", "--unit=reconciler.service", "--output=cat", "--no-pager", *words)


def eventually(look: Callable[[], object], within: float = 60, what: str = "") -> Any:
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what or look} did not come true\n{journal('-n30')}"
        time.sleep(0.05)
    return found


def drop_in(name: str, *lines: str) -> None:
    """Say *lines* in a drop-in, as an administrator would."""
    DROP_IN.mkdir(exist_ok=True)
    (DROP_IN / f"{name}.conf").write_text("\n".join(["[Service]", *lines, ""]))
    run("systemctl", "daemon-reload")
