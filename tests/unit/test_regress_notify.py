"""People are told what has changed; what hangs or lacks costs ten seconds and a line at most."""

import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdl.regress import notify
from hpcdl.regress.answer import Finding, GateAnswer
from hpcdl.regress.history import Result, open_history
from hpcdl.regress.identity import Series
from hpcdl.regress.notify import Addressees, Target, notice_of, read_addressees, tell
from hpcdl.system.errors import BadInput

SERIES = Series("throughput", "resnet50", "p100", "rate", unit="images/s")
DROP = Finding(SERIES, "drop", "-5.0% since 2026-11-01: 1000 -> 950")
SLOW = Finding(SERIES, "slow node", "p100-02 is slower than the others", node="p100-02")
CLOSED, OPEN = GateAnswer(9, (DROP,), 9), GateAnswer(9, (), 9)
HOSTILE = "<!channel> @all ``` *x* [y](http://evil) \x1b[2J\nBcc: all"


class Server:
    """A real web server that keeps what it is sent, and answers as it is told."""

    def __init__(self, code=200, **headers):
        self.got: list[tuple[str, dict[str, str], Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):  # the library's name for it
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.got.append((self.path, dict(self.headers), json.loads(body or "null")))
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            do_GET = do_POST  # noqa: N815 - what follows a redirection asks so

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/hook/secret"


@pytest.fixture
def server():
    one = Server()
    yield one
    one.http.shutdown()


def hook(url, **more):
    return {"kind": "webhook", "url": url, **more}


def to(*targets, when="change"):
    found = tuple(Target(one["kind"], one) for one in targets)
    return Addressees(found, when, "https://x/night.html")


def test_only_what_changed_is_told_and_once(server):
    asked = to(hook(server.url, headers={"X-Key": "k"}))
    both = GateAnswer(9, (DROP, SLOW), 9)
    for answer in (CLOSED, CLOSED, both, both, GateAnswer(9, (SLOW,), 9), OPEN, OPEN):
        assert tell("here", answer, asked) == []
    bodies = [body for _, _, body in server.got]
    told = [(len(body["new"]), len(body["over"]), body["gate"]["open"]) for body in bodies]
    assert told == [(1, 0, False), (1, 0, False), (0, 1, False), (0, 1, True)]
    assert server.got[0][1]["X-Key"] == "k"
    tell("here", OPEN, replace(asked, when="always"))
    assert len(server.got) == 5


def test_who_could_not_be_told_is_told_the_next_time(server):
    broken = Server(code=500)
    both = to(hook(server.url), hook(broken.url))
    assert tell("here", CLOSED, both) == ["webhook at 127.0.0.1: it answered 500"]
    tell("here", CLOSED, both)
    assert (len(server.got), len(broken.got)) == (1, 2)


def test_a_secret_goes_to_nobody_else(server):
    elsewhere = Server(code=302, Location=server.url)
    target = hook(elsewhere.url, headers={"Authorization": "secret"})
    (line,) = tell("here", CLOSED, to(target))
    assert "it answered 302" in line
    assert "secret" not in line
    assert server.got == []


def test_one_that_hangs_costs_ten_seconds_and_holds_nobody_up(server, monkeypatch):
    assert notify.SECONDS == 10
    monkeypatch.setattr(notify, "SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hung = [hook(f"http://127.0.0.1:{silent.getsockname()[1]}/{n}") for n in range(3)]
        begun = time.monotonic()
        lines = tell("here", CLOSED, to(*hung, hook(server.url)))
        seconds = time.monotonic() - begun
    assert 1.8 < seconds < 12
    assert len(lines) == 3
    assert len(server.got) == 1


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("service", ["slack", "mattermost", "teams"])
def test_a_hook_sends_what_others_chose_unformatted_and_without_mentions(service, server, tmp_path):
    """The examples are run as they are, as the command of a target."""
    odd = replace(DROP, series=SERIES._replace(check=HOSTILE), description=HOSTILE)
    address = tmp_path / "address"
    address.write_text(server.url + "\n")
    run = [sys.executable, str(EXAMPLES / f"notify_{service}.py"), str(address)]
    assert tell("here", GateAnswer(1, (odd,), 1), to({"kind": "command", "run": run})) == []
    ((_, _, body),) = server.got
    assert "\\x1b" not in repr(body)
    if service == "teams":
        card = body["attachments"][0]["content"]
        assert {part["type"] for part in card["body"]} == {"RichTextBlock"}
        return
    head, fence, rest = body["text"].partition("```\n")
    assert fence
    assert "<!" not in head + rest * (service == "slack")
    assert "@all" not in head
    assert "`" not in rest.partition("\n```")[0]
    assert "@all" not in rest.partition("\n```")[2]


def test_a_command_that_fails_or_is_not_there_is_one_line(tmp_path):
    both = [{"kind": "command", "run": [name, "hush"]} for name in ("false", str(tmp_path / "no"))]
    lines = tell("here", CLOSED, to(*both))
    assert lines[0] == "command false: it answered 1"
    assert lines[1].endswith("/no: No such file or directory")
    assert "hush" not in "".join(lines)


def test_a_notice_is_inert():
    odd = replace(DROP, series=SERIES._replace(check=HOSTILE), description=HOSTILE)
    assert "\\x1b" not in repr(notice_of("here", GateAnswer(1, (odd,), 1), {}, ""))


class Smtp:
    """As much of an SMTP server as one mail needs."""

    def __init__(self):
        self.mail = b""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        connection, _ = self.socket.accept()
        with connection, connection.makefile("rwb") as file:

            def say(text):
                file.write(text + b"\r\n")
                file.flush()

            say(b"220 here")
            for line in file:
                word = line[:4].upper()
                if word == b"DATA":
                    say(b"354 go on")
                    while (row := file.readline()) != b".\r\n":
                        self.mail += row
                say(b"221 bye" if word == b"QUIT" else b"250 ok")


def test_a_mail_has_what_changed_and_the_page(tmp_path):
    smtp = Smtp()
    page = tmp_path / "night.html"
    page.write_text("<html>the page</html>")
    target = {"kind": "mail", "to": ["ada@example.org"], "smtp": f"127.0.0.1:{smtp.port}"}
    odd = replace(DROP, description=HOSTILE)
    assert tell("here\nBcc: all", GateAnswer(9, (odd,), 9), to(target), page) == []
    mail = message_from_bytes(smtp.mail, policy=policy.default)
    assert mail["Subject"].startswith("[hpcdl] here")
    assert mail["Bcc"] is None
    body = mail.get_body().get_content()
    assert f"(id {odd.id})" in body
    assert "https://x/night.html" in body
    assert [part.get_filename() for part in mail.iter_attachments()] == ["night.html"]


def test_no_password_goes_to_a_server_that_nobody_vouches_for(tmp_path):
    """Whoever is in between answers with a certificate of his own."""
    key, said = tmp_path / "key", list[bytes]()
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=evil",
            "-addext",
            "subjectAltName=IP:127.0.0.2",
            "-keyout",
            key,
            "-out",
            key,
        ],
        check=True,
        capture_output=True,
    )
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(key)
    door = socket.create_server(("127.0.0.2", 0))

    def serve():
        line, _ = door.accept()
        line.sendall(b"220 here\r\n")
        while (got := line.recv(1000)) and b"STARTTLS" not in got:
            line.sendall(b"250-here\r\n250 STARTTLS\r\n")
        line.sendall(b"220 go on\r\n")
        with suppress(OSError), own.wrap_socket(line, server_side=True) as closed:
            while got := closed.recv(1000):
                said.append(got)
                closed.sendall(b"250-here\r\n250 AUTH PLAIN\r\n")

    other = threading.Thread(target=serve)
    other.start()
    target = {
        "kind": "mail",
        "to": ["a@b.c"],
        "smtp": f"127.0.0.2:{door.getsockname()[1]}",
        "user": "me",
        "password": "hush",
    }
    (failed,) = tell("here", CLOSED, to(target))
    other.join(20)
    assert "SSLCertVerificationError" in failed or "certificate" in failed.lower()
    assert said == []


def test_a_mail_goes_by_sendmail(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "sendmail"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$*" = "-t -i" ] && cat >{tmp_path}/sent\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert tell("here", CLOSED, to({"kind": "mail", "to": ["ada@example.org"]})) == []
    assert "To: ada@example.org" in (tmp_path / "sent").read_text()


def test_a_missing_mailer_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    if Path("/usr/sbin/sendmail").exists():
        pytest.skip("this machine has a sendmail")
    (line,) = tell("here", CLOSED, to({"kind": "mail", "to": ["ada@example.org"]}))
    assert line.startswith("mail to ada@example.org: there is no sendmail")


def addressees(path, mode=0o600, **target):
    path.write_text(yaml.safe_dump({"schema": 1, "targets": [target]}))
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("mode", "target", "said"),
    [
        (0o640, {"kind": "webhook", "url": "https://x/y"}, "others may read"),
        (0o600, {"kind": "webhook"}, "1 fault"),
        (0o600, {"kind": "command"}, "1 fault"),
        (0o600, {"kind": "webhook", "url": "http://x.org/y"}, "1 fault"),
        (0o600, {"kind": "mail"}, "1 fault"),
        (0o600, {"kind": "pigeon"}, "fault"),
        (0o600, {"kind": "webhook", "url": "https://[::1/y"}, "1 fault"),
        (0o600, {"kind": "webhook", "url": "https://x:99999/y"}, "1 fault"),
        (0o600, {"kind": "mail", "to": ["a@b.c"], "smtp": "here:there"}, "1 fault"),
    ],
)
def test_a_file_that_others_read_or_that_tells_nobody_is_refused(tmp_path, mode, target, said):
    with pytest.raises(BadInput, match=said):
        read_addressees(addressees(tmp_path / "n.yaml", mode, **target))


@pytest.mark.parametrize(
    "text",
    [
        "schema: 1\ntargets:\n- {kind: webhook, url: 'http://x.org/hush'}\n",
        'schema: 1\ntargets:\n- {kind: webhook, url: "https://x.org/hush\\a"}\n',
        "schema: 1\ntargets:\n- {kind: mail, to: [a@b.c], password: [hush]}\n",
        "schema: 1\ntargets:\n- {kind: mail, password: hush\n",
    ],
)
def test_a_fault_is_told_without_what_may_be_a_secret(tmp_path, text):
    (tmp_path / "n.yaml").write_text(text)
    (tmp_path / "n.yaml").chmod(0o600)
    with pytest.raises(BadInput) as found:
        read_addressees(tmp_path / "n.yaml")
    said = found.value.render()
    assert re.search("n.yaml:[34]", said)
    assert "hush" not in said


def test_the_gate_answers_the_same_whoever_can_be_told(tmp_path, hpcdl, monkeypatch):
    at = (datetime.now(timezone.utc) - timedelta(days=1)).isoformat(timespec="seconds")
    row = Result("r", at, "throughput", "x", "p100", "rate", 1.0, "images/s", "FAIL")
    with open_history(tmp_path / "h", "embedded") as history:
        history.add([row])
    monkeypatch.setenv("HPCDL_HISTORY", str(tmp_path / "h"))
    words = ["check", "gate", "--site", "embedded"]
    answer = hpcdl(*words, code=1).out
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody_listens.getsockname()[1]}/secret"
        file = addressees(tmp_path / "n.yaml", kind="webhook", url=url)
        told = hpcdl(*words, "--notify", str(file), code=1)
    said = "not notified: webhook at 127.0.0.1: Connection refused\n"
    assert (told.out, told.err) == (answer, said)
    hpcdl(*words, "--name", "throughput", "--notify", str(file), code=2)
