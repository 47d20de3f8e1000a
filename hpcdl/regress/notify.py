"""Notifies people of the gate's answer: mail and webhooks, all at once, each within ten seconds.

They are told what is new, what is over, what still holds. Names and reasons may be anybody's: each
service gets them as text that it neither formats nor takes for a mention of somebody.

Whom to tell stands in a file of mode 0600, for it holds secrets: no address of a webhook is ever
printed. What cannot be told is one line on stderr, and changes no answer; the next notice tells it
again, since what was told is kept for each addressee.
"""

from __future__ import annotations

import hashlib
import json
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
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpcdl import facts
from hpcdl.regress.answer import Finding, GateAnswer
from hpcdl.regress.causes import POOLED, Cause, causes_of
from hpcdl.system.document import InvalidDocument, read_document
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import write_atomic
from hpcdl.system.inert import in_a_line, inert_values
from hpcdl.system.resources import home
from hpcdl.system.safe_read import read_regular
from hpcdl.system.schema import check

SECONDS = 10.0
"""That an addressee may take, and so all of them."""
_MOST_BYTES = 20_000_000
_VALUE = re.compile(r" is .*, (which )?", re.DOTALL)
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_MOST = 20
"""Findings that a message lists; more are counted."""
Told = Mapping[str, str]
"""What was told last: the name of each finding by its id."""


@dataclass(frozen=True)
class Notice:
    """The gate's answer and what is new since the last; `link` leads to the page, '' for none."""

    site: str
    answer: GateAnswer
    new: tuple[Finding, ...]
    over: tuple[str, ...]
    link: str = ""

    @property
    def subject(self) -> str:
        """One line: the site and the gate's answer."""
        return in_a_line(f"{self.site}: {self.answer.headline}")


def notice_of(site: str, answer: GateAnswer, before: Told, link: str = "") -> Notice:
    """A notice of what has changed since the last one."""
    current = notified_findings(answer)
    new = tuple(finding for finding in current if finding.id not in before)
    there = {finding.id: finding for finding in current}
    snoozed = {finding.id for finding in answer.accepted}
    over = tuple(
        f"{'snoozed' if known in snoozed else 'over'}: {name}"
        for known, name in before.items()
        if known not in there
    )
    return Notice(site, answer, new, over, link)


def notified_findings(answer: GateAnswer) -> tuple[Finding, ...]:
    """Return what people are notified of once: what closes the gate, and pooled warnings."""
    return (*answer.findings, *(one for one in answer.warnings if one.kind == POOLED))


def lines_of(notice: Notice) -> list[str]:
    """The notice as lines of plain text, each inert."""
    new = {finding.id for finding in notice.new}
    causes = causes_of(notice.answer)
    fresh = [cause for cause in causes if new & {each.id for each in cause.findings}]
    lines = [f"new: {_line(cause)}" for cause in fresh]
    lines += notice.over
    lines += [f"still: {_line(cause)}" for cause in causes if cause.closes and cause not in fresh]
    lines += [
        f"not sure yet: {cause.title}"
        for cause in causes
        if not cause.closes and cause not in fresh
    ]
    more = [f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    return [in_a_line(line) for line in (*lines[:_MOST], *more)]


def _line(cause: Cause) -> str:
    ids = f" (id {cause.findings[0].id})" if len(cause.findings) == 1 else ""
    return cause.title + ids


def as_text(notice: Notice) -> str:
    """The notice as a mail has it."""
    link = ["", notice.link] if notice.link else []
    accept = ["", "`hpcdl check accept ID --because ... --by ...` accepts a finding."]
    rest = accept if notice.answer.findings else []
    return "\n".join([notice.subject, "", *lines_of(notice), *rest, *link]) + "\n"


def as_slack(notice: Notice) -> dict[str, Any]:
    """Slack: all that others chose is in a block of code, where nothing is formatted."""
    body = "\n".join(_escaped(line) for line in lines_of(notice))
    block = f"\n```\n{body}\n```" if body else ""
    link = f"\n<{_escaped(notice.link)}>" if notice.link else ""
    return {"text": f"{_escaped(notice.subject)}{block}{link}"}


def as_mattermost(notice: Notice) -> dict[str, Any]:
    """Mattermost: the same; names in a block of code are no mentions."""
    body = "\n".join(line.replace("`", "'") for line in lines_of(notice))
    subject = notice.subject.replace("`", "'")
    return {"text": f"`{subject}`\n```\n{body}\n```\n{notice.link}".rstrip()}


def as_teams(notice: Notice) -> dict[str, Any]:
    """Teams: an adaptive card whose texts are runs, which have no markdown."""

    def text(line: str, weight: str = "Default") -> dict[str, Any]:
        run = {"type": "TextRun", "text": line, "weight": weight}
        return {"type": "RichTextBlock", "inlines": [run]}

    body = [text(notice.subject, "Bolder"), *map(text, lines_of(notice))]
    actions = [{"type": "Action.OpenUrl", "title": "Page", "url": notice.link}]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
        **({"actions": actions} if notice.link else {}),
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def as_webhook(notice: Notice) -> dict[str, Any]:
    """Any other program: the gate's answer as `check gate --json` has it, and what changed."""
    data = {
        "site": notice.site,
        "link": notice.link,
        "new": [finding.id for finding in notice.new],
        "over": list(notice.over),
        "gate": notice.answer.as_data(),
    }
    inert: dict[str, Any] = inert_values(data)
    return inert


BODIES: Mapping[str, Callable[[Notice], dict[str, Any]]] = {
    "slack": as_slack,
    "mattermost": as_mattermost,
    "teams": as_teams,
    "webhook": as_webhook,
}
"""What each kind of service takes, as JSON."""


def _escaped(text: str) -> str:
    """Slack's three special characters; and no end of a block of code."""
    return escape(text, quote=False).replace("`", "'")


@dataclass(frozen=True)
class Target:
    """An addressee: its kind, and what that kind needs (facts/check_formats.yaml)."""

    kind: str
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return a printable form: a webhook's path is a secret."""
        if self.kind == "mail":
            return f"mail to {', '.join(self.values['to'])}"
        return f"{self.kind} at {urlsplit(self.values['url']).hostname}"

    @property
    def key(self) -> str:
        """Its key in the record of notices."""
        text = json.dumps([self.kind, self.values.get("url"), self.values.get("to")])
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
    with what is there, which may be a secret.
    """
    try:
        return _addressees(path)
    except InvalidDocument as found:
        details = [
            f"{path}:{one.mark.line}:{one.mark.column}: {_VALUE.sub(': ', one.message)}"
            for one in found.faults
        ]
        raise BadInput(found.message, details=details, hint=found.hint) from None


def _addressees(path: Path) -> Addressees:
    if path.exists() and path.stat().st_mode & 0o077:
        raise BadInput(f"others may read {path}, which holds secrets", hint=f"chmod 600 {path}")
    document = read_document(path, if_empty="docs/nightly.md shows one")
    values = check(document, facts.load("check_formats")["addressees"]) or {}
    for index, target in enumerate(values.get("targets") or ()):
        for lack in _lacks(target) if target else ():
            document.fault(lack, document.find(("targets", index)))
    document.raise_faults()
    targets = tuple(Target(one["kind"], one) for one in values["targets"])
    return Addressees(targets, values["when"], values.get("link") or "")


def _lacks(target: Mapping[str, Any]) -> list[str]:
    if target.get("kind") == "mail":
        return [] if target.get("to") else ["a mail needs `to`, a list of addresses"]
    try:
        url = urlsplit(target.get("url") or "")
        known = url.hostname and url.port != 0 and " " not in url.geturl()
    except ValueError:  # no address, or no port
        known = False
    if not known:
        return [f"a {target.get('kind')} needs `url`, the address of a web server"]
    if url.scheme != "https" and not (url.scheme == "http" and url.hostname in _LOCAL):
        return ["a webhook's `url` begins with https://, since it is a secret"]
    return []


def tell(
    site: str, answer: GateAnswer, addressees: Addressees, page: Path | None = None
) -> list[str]:
    """Notify everybody of what has changed since the last notice; return a line per failure.

    `page` is attached to mails.
    """
    record = home("notices") / f"{site}.json"
    before, lines = _read(record), []
    notices = [
        (target, notice_of(site, answer, before.get(target.key, {}), addressees.link))
        for target in addressees.targets
    ]
    work = [
        (target, notice)
        for target, notice in notices
        if addressees.when == "always" or notice.new or notice.over
    ]
    failed = _at_once(
        [
            partial(_mail, target.values, notice, page)
            if target.kind == "mail"
            else partial(_post, target, notice)
            for target, notice in work
        ]
    )
    for (target, _), fault in zip(work, failed, strict=True):
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
    code = getattr(fault, "code", None) or getattr(fault, "smtp_code", None)
    if code:
        return f"it answered {code}"
    if isinstance(fault, HpcdlError):
        return fault.message
    cause = getattr(fault, "reason", None)
    text = getattr(cause, "strerror", None) or getattr(fault, "strerror", None)
    return str(text or type(cause or fault).__name__)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A secret is sent to no other server."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer is an error with its code."""


def _post(target: Target, notice: Notice) -> None:
    headers = {"Content-Type": "application/json", **(target.values.get("headers") or {})}
    data = json.dumps(BODIES[target.kind](notice)).encode()
    request = urllib.request.Request(  # noqa: S310 - https, or this machine
        target.values["url"], data=data, headers=headers, method="POST"
    )
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(request, timeout=SECONDS) as answer:
        answer.read(1000)


def _mail(values: Mapping[str, Any], notice: Notice, page: Path | None) -> None:
    message = EmailMessage()
    message["Subject"], message["To"] = f"[hpcdl] {notice.subject}", ", ".join(values["to"])
    message["From"] = values.get("from") or "hpcdl"
    message.set_content(as_text(notice))
    if page is not None:
        data = read_regular(page, _MOST_BYTES, "page")
        message.add_attachment(data, maintype="text", subtype="html", filename=page.name)
    if values.get("smtp"):
        _by_smtp(message, values, values["smtp"])
        return
    program = shutil.which("sendmail") or "/usr/sbin/sendmail"
    if not Path(program).exists():
        raise BadInput("there is no sendmail on this machine; give `smtp: HOST:PORT`")
    subprocess.run(
        [program, "-t", "-i"],
        input=bytes(message),
        timeout=SECONDS,
        capture_output=True,
        check=True,
    )


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
