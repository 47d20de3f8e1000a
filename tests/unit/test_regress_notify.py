"""People are told what has changed; what hangs or lacks costs ten seconds and a line at most."""

import json
import re
import socket
import sys
import threading
import time
from dataclasses import replace
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdl.regress import notify
from hpcdl.regress.answer import Finding, GateAnswer
from hpcdl.regress.identity import Series
from hpcdl.regress.notify import notice_of, read_addressees, tell
from hpcdl.system.errors import BadInput

SERIES = Series("throughput", "resnet50", "p100", "rate", unit="images/s")
DROP = Finding(SERIES, "drop", "-5.0% since 2026-11-01: 1000 -> 950")
SLOW = Finding(SERIES, "slow node", "p100-02 is slower than the others", node="p100-02")
CLOSED, OPEN = GateAnswer(9, (DROP,), 9), GateAnswer(9, (), 9)
HOSTILE = "<!channel> @all ``` *x* [y](http://evil) \x1b[2J\nBcc: all"
EXAMPLES = Path(__file__).parents[2] / "examples"


class Server:
    """A real web server that keeps what it is sent, and answers as it is told."""

    def __init__(self, code=200, **headers):
        self.got: list[Any] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):  # the library's name for it
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.got.append(json.loads(body or "null"))
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


def command(*run):
    return {"kind": "command", "run": [*map(str, run)]}


def keeps(file):
    """A command that adds the notice it gets to a file, a line each."""
    return command("sh", "-c", f"cat >> {file}; echo >> {file}")


def kept(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def webhook(url):
    return {"kind": "webhook", "url": url}


def to(*targets, when="change"):
    return {"targets": targets, "when": when, "link": "https://x/night.html"}


def hook(service, url, folder):
    """A hook of the examples, as it is, with its address in a file."""
    address = folder / "address"
    address.write_text(url + "\n")
    return command(sys.executable, EXAMPLES / f"notify_{service}.py", address)


def test_only_what_changed_is_told_and_once(tmp_path):
    asked = to(keeps(tmp_path / "n"))
    both = GateAnswer(9, (DROP, SLOW), 9)
    for answer in (CLOSED, CLOSED, both, both, GateAnswer(9, (SLOW,), 9), OPEN, OPEN):
        assert tell("here", answer, asked) == []
    told = [
        (len(notice["new"]), len(notice["over"]), notice["gate"]["open"])
        for notice in kept(tmp_path / "n")
    ]
    assert told == [(1, 0, False), (1, 0, False), (0, 1, False), (0, 1, True)]
    tell("here", OPEN, {**asked, "when": "always"})
    assert len(kept(tmp_path / "n")) == 5


def test_who_could_not_be_told_is_told_the_next_time(server, tmp_path):
    broken = command("sh", "-c", f"echo x >> {tmp_path}/tried; exit 7", "hush")
    all_of_them = to(webhook(server.url), webhook(Server(code=500).url), broken)
    failed = ["webhook at 127.0.0.1: it answered 500", "sh: it answered 7"]
    assert tell("here", CLOSED, all_of_them) == failed, "no argument and no path: a secret"
    assert tell("here", CLOSED, all_of_them) == failed
    (notice,) = server.got
    assert notice["lines"] == [f"new: drop, {DROP.name}: {DROP.description} [{DROP.id}]"]
    assert (tmp_path / "tried").read_text() == "x\nx\n"


def test_a_secret_goes_to_no_other_server(server):
    elsewhere = Server(code=302, Location=server.url)
    lines = tell("here", CLOSED, to(webhook(elsewhere.url)))
    assert lines == ["webhook at 127.0.0.1: it answered 302"]
    assert (len(elsewhere.got), len(server.got)) == (1, 0)


def test_one_that_hangs_costs_ten_seconds_and_holds_nobody_up(server, monkeypatch):
    """Neither does what a command started, which holds its pipes open."""
    assert notify.SECONDS == 10
    monkeypatch.setattr(notify, "SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hung = webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/hush")
        begun = time.monotonic()
        lines = tell(
            "here",
            CLOSED,
            to(hung, command("sh", "-c", "sleep 20 & sleep 30"), webhook(server.url)),
        )
    assert 0.9 < time.monotonic() - begun < 10
    assert lines == [f"{name}: no answer within 1 s" for name in ("webhook at 127.0.0.1", "sh")]
    assert len(server.got) == 1


@pytest.mark.parametrize("service", ["slack", "mattermost", "teams"])
def test_a_hook_sends_what_others_chose_unformatted_and_without_mentions(service, server, tmp_path):
    odd = replace(DROP, series=SERIES._replace(check=HOSTILE), description=HOSTILE)
    assert tell("here", GateAnswer(1, (odd,), 1), to(hook(service, server.url, tmp_path))) == []
    (body,) = server.got
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


def test_a_notice_is_inert():
    odd = replace(DROP, series=SERIES._replace(check=HOSTILE), description=HOSTILE)
    assert "\\x1b" not in repr(notice_of("here", GateAnswer(1, (odd,), 1), {}, ""))


def test_a_mail_has_what_changed_and_the_page(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "sendmail"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$*" = "-t -i" ] && cat >{tmp_path}/sent\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    page = tmp_path / "night.html"
    page.write_text("<html>the page</html>")
    odd, target = replace(DROP, description=HOSTILE), {"kind": "mail", "to": ["ada@example.org"]}
    assert tell("here\nBcc: all", GateAnswer(9, (odd,), 9), to(target), page) == []
    mail = message_from_bytes((tmp_path / "sent").read_bytes(), policy=policy.default)
    assert mail["Subject"].startswith("[hpcdl] here")
    assert (mail["To"], mail["Bcc"]) == ("ada@example.org", None)
    body = mail.get_body().get_content()
    assert f"[{odd.id}]" in body
    assert "https://x/night.html" in body
    assert [part.get_filename() for part in mail.iter_attachments()] == ["night.html"]


def test_a_program_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    no = tmp_path / "no"
    assert tell("here", CLOSED, to(command(no))) == [f"{no}: No such file or directory"]
    monkeypatch.setenv("PATH", str(tmp_path))
    if Path("/usr/sbin/sendmail").exists():
        pytest.skip("this machine has a sendmail")
    (line,) = tell("here", CLOSED, to({"kind": "mail", "to": ["ada@example.org"]}))
    assert line.startswith("mail to ada@example.org: there is no sendmail")


def addressees(path, target, mode=0o600):
    path.write_text(yaml.safe_dump({"schema": 1, "targets": [target]}))
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"kind": "command"}, "a command needs a valid `run`"),
        ({"kind": "command", "run": []}, "a command needs a valid `run`"),
        ({"kind": "mail"}, "a mail needs a valid `to`"),
        ({"kind": "pigeon"}, "'kind'"),
        ({"kind": "mail", "to": ["a@b.c\nBcc: hush"]}, "'to'"),
        ({"kind": "webhook"}, "a webhook needs a valid `url`"),
        ({"kind": "webhook", "url": "http://x.org/hush"}, "is https://HOST"),
        ({"kind": "webhook", "url": "https://x.org/hush\a"}, "'url'"),
        ({"kind": "webhook", "url": "https://[x/hush"}, "'url'"),
        ({"kind": "webhook", "url": "https:///hush"}, "'url'"),
        ({"kind": "webhook", "url": "https://x.org:99999/hush"}, "'url'"),
        ({"kind": "webhook", "url": "http://127.0.0.1:80@evil.org/hush"}, "'url'"),
        ({"kind": "mail", "to": "hush"}, "'to'"),
    ],
)
def test_a_fault_is_told_without_what_may_be_a_secret(tmp_path, target, said):
    with pytest.raises(BadInput) as found:
        read_addressees(addressees(tmp_path / "n.yaml", target))
    text = found.value.render()
    assert said in text
    assert re.search("n.yaml:[0-9]", text)
    assert "hush" not in text


def test_a_file_that_others_may_read_is_refused(tmp_path):
    file = addressees(tmp_path / "n.yaml", webhook("https://x/y"), mode=0o640)
    with pytest.raises(BadInput, match="others may read"):
        read_addressees(file)
    file.write_text("schema: 1\ntargets:\n- {kind: webhook, url: hush\n")
    file.chmod(0o600)
    with pytest.raises(BadInput) as found:
        read_addressees(file)
    assert "hush" not in found.value.render()


def test_who_cannot_be_told_is_named_and_changes_nothing(tmp_path):
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody_listens.getsockname()[1]}/secret"
        people = read_addressees(addressees(tmp_path / "n.yaml", webhook(url)))
        answer = GateAnswer(1, (Finding(Series("bw", "", "p100", "rate"), "drop", "-9 %"),), 1)
        said = tell("embedded", answer, people, None)
    assert said == ["webhook at 127.0.0.1: Connection refused"]
