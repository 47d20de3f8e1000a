"""Notifies people of the gate's answer: by mail, a webhook or a command, all at once.

An addressee is sent what is new, what is over and what still holds. Names and reasons may be
anybody's: they are made inert before they leave. The file of addressees holds secrets and has mode
0600: no address of a webhook is ever printed. A notice that fails is one line on stderr, and is
sent again the next time; it changes no answer of the gate.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import smtplib
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hpcdl import facts
from hpcdl.regress.answer import Finding, GateAnswer
from hpcdl.regress.causes import POOLED, causes_of
from hpcdl.system.document import InvalidDocument, read_document
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import write_atomic
from hpcdl.system.inert import in_a_line, inert_values
from hpcdl.system.resources import home
from hpcdl.system.safe_read import read_regular
from hpcdl.system.schema import check
from hpcdl.system.trust import require_known_owner

SECONDS = 10.0
"""That an addressee may take, and so all of them."""
_MOST_BYTES = 20_000_000
_VALUE = re.compile(r" is .*, (which )?", re.DOTALL)
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_MOST = 20
"""Lines of a notice; more are counted."""


class Target(NamedTuple):
    """An addressee: its kind, and the values of that kind (facts/check_formats.yaml)."""

    kind: str
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return a printable form: a webhook's path and a command's arguments may be secret."""
        if self.kind == "mail":
            return f"mail to {', '.join(self.values['to'])}"
        where = self.values["run"][0] if self.kind == "command" else self.values["url"]
        return f"{self.kind} {where}" if self.kind == "command" else f"webhook at {_host(where)}"

    @property
    def key(self) -> str:
        """Return its key in the record of notices."""
        text = json.dumps([self.kind, *(self.values.get(of) for of in ("url", "to", "run"))])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Addressees:
    """Whom to notify, when (`change` or `always`), and the page's address."""

    targets: tuple[Target, ...]
    when: str
    link: str


def read_addressees(path: Path) -> Addressees:
    """Return whom to notify, from a file that only this user can read.

    Raises BadInput: others may read it, or it has faults; all of them, with their places but not
    with what is there, which may be a secret. MissingPrerequisite: it is another user's.
    """
    try:
        hint = "docs/nights-operation.md shows one"
        document = read_document(path, if_empty=hint, require=_require_secret)
        values = check(document, facts.load("check_formats")["addressees"]) or {}
        for index, target in enumerate(values.get("targets") or ()):
            if lack := _lack(target or {}):
                document.fault(lack, document.find(("targets", index)))
        document.raise_faults()
    except InvalidDocument as found:
        details = [
            f"{path}:{one.mark.line}:{one.mark.column}: {_VALUE.sub(': ', one.message)}"
            for one in found.faults
        ]
        raise BadInput(found.message, details=details, hint=found.hint) from None
    targets = tuple(Target(one["kind"], one) for one in values["targets"])
    return Addressees(targets, values["when"], values.get("link") or "")


def _require_secret(path: Path, status: os.stat_result) -> None:
    require_known_owner(path, status)  # it names a program to run
    if status.st_mode & 0o077:
        raise BadInput(f"others may read {path}, which holds secrets", hint=f"chmod 600 {path}")


def _host(url: str) -> str:
    """Return an address's host, '' if it is no address of a web server."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "") if parts.port != 0 and " " not in url else ""
    except ValueError:  # no address, or no port
        return ""


def _lack(target: Mapping[str, Any]) -> str:
    """What a target of a kind lacks, '' for nothing."""
    kind, url = target.get("kind"), target.get("url") or ""
    if kind == "mail" and not target.get("to"):
        return "a mail needs `to`, a list of addresses"
    if kind == "command" and not target.get("run"):
        return "a command needs `run`, a program and its arguments"
    if kind == "webhook" and not _host(url):
        return "a webhook needs `url`, the address of a web server"
    plain = kind == "webhook" and not url.startswith("https:") and _host(url) not in _LOCAL
    return "a webhook's `url` begins with https://, since it is a secret" if plain else ""


def notice_of(
    site: str, answer: GateAnswer, before: Mapping[str, str], link: str
) -> dict[str, Any]:
    """A notice of what has changed since the last one, as webhooks and commands get it.

    `before` has the findings of the last notice: their names by their ids. All text is inert.
    """
    current = {finding.id: finding for finding in notified_findings(answer)}
    snoozed = {finding.id for finding in answer.accepted}
    over = [
        f"{'snoozed' if known in snoozed else 'over'}: {name}"
        for known, name in before.items()
        if known not in current
    ]
    new = [known for known in current if known not in before]
    lines = _lines(answer, new, over)
    more = [f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    notice = {
        "site": site,
        "subject": in_a_line(f"{site}: {answer.headline}"),
        "lines": [in_a_line(line) for line in (*lines[:_MOST], *more)],
        "link": link,
        "new": new,
        "over": over,
        "gate": answer.as_data(),
    }
    inert: dict[str, Any] = inert_values(notice)
    return inert


def notified_findings(answer: GateAnswer) -> tuple[Finding, ...]:
    """Return what people are notified of once: what closes the gate, and pooled warnings."""
    return (*answer.findings, *(one for one in answer.warnings if one.kind == POOLED))


def _lines(answer: GateAnswer, new: Sequence[str], over: Sequence[str]) -> list[str]:
    """Causes with a new finding, then what is over, then what still holds."""
    fresh, still = list[str](), list[str]()
    for cause in causes_of(answer):
        ids = f" (id {cause.findings[0].id})" if len(cause.findings) == 1 else ""
        if {*new} & {finding.id for finding in cause.findings}:
            fresh.append(f"new: {cause.title}{ids}")
        else:
            still.append(f"{'still' if cause.closes else 'not sure yet'}: {cause.title}{ids}")
    return [*fresh, *over, *still]


def tell(
    site: str, answer: GateAnswer, addressees: Addressees, page: Path | None = None
) -> list[str]:
    """Notify everybody of what has changed since the last notice; return a line per failure.

    `page` is attached to mails.
    """
    record = home("notices") / f"{site}.json"
    before, work = _read(record), []
    for target in addressees.targets:
        notice = notice_of(site, answer, before.get(target.key, {}), addressees.link)
        if addressees.when == "always" or notice["new"] or notice["over"]:
            work.append((target, partial(_SENDERS[target.kind], target.values, notice, page)))
    lines = []
    for (target, _), fault in zip(work, _at_once([send for _, send in work]), strict=True):
        if fault:
            lines.append(in_a_line(f"{target.name}: {fault}"))
        else:
            before[target.key] = {one.id: one.name for one in notified_findings(answer)}
    try:
        write_atomic(record, json.dumps(before) + "\n")
    except HpcdlError as fault:
        lines.append(f"the record of notices cannot be written: {fault.message}")
    return lines


def _read(record: Path) -> dict[str, dict[str, str]]:
    """Return the last notices, by addressee; empty if no record can be read."""
    with suppress(BadInput, ValueError, AttributeError):
        found = json.loads(read_regular(record, _MOST_BYTES, "record of notices"))
        return {str(key): dict(notified) for key, notified in found.items()}
    return {}


def _at_once(senders: Sequence[Callable[[], None]]) -> list[str]:
    """Call all at the same time; what went wrong with each, '' for nothing."""
    failed = [f"no answer within {SECONDS:.0f} s"] * len(senders)

    def call(index: int) -> None:
        try:
            senders[index]()
            failed[index] = ""
        except Exception as fault:  # whatever a library or a server thinks of: the night goes on
            failed[index] = _reason(fault)

    # One that hangs is left behind: it ends with this process.
    threads = [
        threading.Thread(target=call, args=(index,), daemon=True) for index in range(len(senders))
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [*failed]


def _reason(fault: Exception) -> str:
    """Return the reason of a failure, without the address that a message may hold."""
    if isinstance(fault, HpcdlError):
        return fault.message
    for name in ("code", "smtp_code", "returncode"):
        if code := getattr(fault, name, None):
            return f"it answered {code}"
    cause = getattr(fault, "reason", None)
    text = getattr(cause, "strerror", None) or getattr(fault, "strerror", None)
    return str(text or type(cause or fault).__name__)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A secret is sent to no other server."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer is an error with its code."""


def _post(values: Mapping[str, Any], notice: Mapping[str, Any], page: Path | None) -> None:
    headers = {"Content-Type": "application/json", **(values.get("headers") or {})}
    request = urllib.request.Request(  # noqa: S310 - https, or this machine
        values["url"], data=json.dumps(notice).encode(), headers=headers, method="POST"
    )
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(request, timeout=SECONDS) as answer:
        answer.read(1000)


def _command(values: Mapping[str, Any], notice: Mapping[str, Any], page: Path | None) -> None:
    """The program gets the notice as JSON on its standard input."""
    _run(values["run"], json.dumps(notice).encode())


def _run(argv: Sequence[str], data: bytes) -> None:
    subprocess.run(argv, input=data, timeout=SECONDS, capture_output=True, check=True)


def _mail(values: Mapping[str, Any], notice: Mapping[str, Any], page: Path | None) -> None:
    message = EmailMessage()
    message["Subject"], message["To"] = f"[hpcdl] {notice['subject']}", ", ".join(values["to"])
    message["From"] = values.get("from") or "hpcdl"
    text = [notice["subject"], "", *notice["lines"]]
    if notice["gate"]["findings"]:
        text += ["", "`hpcdl check accept ID --because ... --by ...` accepts a finding."]
    message.set_content("\n".join([*text, "", notice["link"]]).rstrip() + "\n")
    if page is not None:
        data = read_regular(page, _MOST_BYTES, "page")
        message.add_attachment(data, maintype="text", subtype="html", filename=page.name)
    if values.get("smtp"):
        _by_smtp(message, values, values["smtp"])
        return
    program = shutil.which("sendmail") or "/usr/sbin/sendmail"
    if not Path(program).exists():
        raise BadInput("there is no sendmail on this machine; give `smtp: HOST:PORT`")
    _run([program, "-t", "-i"], bytes(message))


def _by_smtp(message: EmailMessage, values: Mapping[str, Any], server: str) -> None:
    """Port 465 speaks TLS at once; others are asked for it, unless they are on this machine.

    The library checks no certificate by itself, and would send the password to any server.
    """
    host, _, port = server.partition(":")
    context = ssl.create_default_context()
    with (
        smtplib.SMTP_SSL(host, 465, timeout=SECONDS, context=context)
        if port == "465"
        else smtplib.SMTP(host, int(port or 25), timeout=SECONDS)
    ) as smtp:
        if port != "465" and host not in _LOCAL:
            smtp.starttls(context=context)
        if values.get("user"):
            smtp.login(values["user"], values.get("password") or "")
        smtp.send_message(message)


_SENDERS = {"mail": _mail, "webhook": _post, "command": _command}
