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
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpcdl import facts
from hpcdl.regress.answer import POOLED, Finding, GateAnswer, causes_of
from hpcdl.system.document import InvalidDocument, check, read_document
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import read_regular, write_atomic
from hpcdl.system.resources import home
from hpcdl.system.text import in_a_line, inert_values
from hpcdl.system.trust import require_known_owner

SECONDS = 10.0
"""That an addressee may take, and so all of them."""
_MOST_BYTES = 20_000_000
_NEEDS = {"mail": "to", "webhook": "url", "command": "run"}
_MOST = 20
"""Lines of a notice; more are counted."""

Target = Mapping[str, Any]
"""An addressee: its `kind`, and what that kind needs (facts/check_formats.yaml)."""


def read_addressees(path: Path) -> Mapping[str, Any]:
    """Return `targets`, `when` to notify them (`change` or `always`) and the page's `link`.

    Raises BadInput: others may read the file, or it has faults; all of them, with their places but
    not with what is there, which may be a secret. MissingPrerequisite: it is another user's.
    """
    hint = "docs/nights-operation.md shows one"
    try:
        document = read_document(path, if_empty=hint, require=_require_secret)
        values: Mapping[str, Any] = check(document, facts.load("check_formats")["addressees"])
        for index, target in enumerate((values or {}).get("targets") or ()):
            for kind, key in _NEEDS.items() if target else ():
                if target.get("kind") == kind and not target.get(key):
                    place = document.find(("targets", index))
                    document.fault(f"a {kind} needs a valid `{key}`", place)
        document.raise_faults()
    except InvalidDocument as found:
        details = [
            f"{path}:{one.mark.line}:{one.mark.column}: "
            + "; ".join(filter(None, [_without_value(one.message), one.hint]))
            for one in found.faults
        ]
        raise BadInput(found.message, details=details, hint=hint) from None
    return values


def _without_value(message: str) -> str:
    return re.sub(r"( is|, not) '.*'", r"\1 this", message, flags=re.DOTALL)


def _require_secret(path: Path, status: os.stat_result) -> None:
    require_known_owner(path, status)  # it names a program to run
    if status.st_mode & 0o077:
        raise BadInput(f"others may read {path}, which holds secrets", hint=f"chmod 600 {path}")


def notice_of(
    site: str, answer: GateAnswer, before: Mapping[str, str], link: str
) -> dict[str, Any]:
    """A notice of what has changed since the last one, as commands get it.

    `before` has the findings of the last notice: their names by their ids. All text is inert.
    """
    current = {finding.id for finding in notified_findings(answer)}
    snoozed = {finding.id for finding in answer.accepted}
    over = [
        f"{'snoozed' if known in snoozed else 'over'}: {name}"
        for known, name in before.items()
        if known not in current
    ]
    fresh, still = list[str](), list[str]()
    for cause in causes_of(answer):
        is_new = {finding.id for finding in cause.findings} & current - {*before}
        (fresh if is_new else still).append(f"{'new' if is_new else 'still'}: {cause.line}")
    lines = [*fresh, *over, *still]
    more = [f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    inert: dict[str, Any] = inert_values(
        {
            "site": site,
            "subject": in_a_line(f"{site}: {answer.headline}"),
            "lines": [in_a_line(line) for line in (*lines[:_MOST], *more)],
            "link": link,
            "new": sorted(current - {*before}),
            "over": over,
            "gate": answer.as_data(),
        }
    )
    return inert


def notified_findings(answer: GateAnswer) -> tuple[Finding, ...]:
    """Return what people are notified of once: what closes the gate, and pooled warnings."""
    return (*answer.findings, *(one for one in answer.warnings if one.kind == POOLED))


def tell(
    site: str, answer: GateAnswer, addressees: Mapping[str, Any], page: Path | None = None
) -> list[str]:
    """Notify everybody of what has changed since the last notice; return a line per failure.

    `page` is attached to mails.
    """
    record = home("notices") / f"{site}.json"
    before, targets = _read(record), addressees["targets"]
    failed = [_reason(TimeoutError())] * len(targets)

    def send(index: int, target: Target) -> None:
        key = hashlib.sha256(json.dumps(target, sort_keys=True).encode()).hexdigest()[:16]
        notice = notice_of(site, answer, before.get(key, {}), addressees.get("link") or "")
        try:
            if addressees["when"] == "always" or notice["new"] or notice["over"]:
                _send(target, notice, page)
                before[key] = {each.id: each.name for each in notified_findings(answer)}
            failed[index] = ""
        except Exception as fault:  # whatever a library or a server thinks of: the night goes on
            failed[index] = _reason(fault)

    # One that hangs is left behind: it ends with this process.
    threads = [threading.Thread(target=send, args=row, daemon=True) for row in enumerate(targets)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + SECONDS + 1
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    lines = [
        in_a_line(f"{_name(target)}: {fault}")
        for target, fault in zip(targets, [*failed], strict=True)
        if fault
    ]
    try:
        write_atomic(record, json.dumps({**before}) + "\n")
    except HpcdlError as fault:
        lines.append(f"the record of notices cannot be written: {fault.message}")
    return lines


def _name(target: Target) -> str:
    """Return a printable form: a webhook's path and a command's arguments may be secret."""
    if target["kind"] == "webhook":
        return f"webhook at {urlsplit(target['url']).hostname}"
    return f"mail to {', '.join(target['to'])}" if "to" in target else str(target["run"][0])


def _read(record: Path) -> dict[str, dict[str, str]]:
    """Return the last notices, by addressee; empty if no record can be read."""
    with suppress(BadInput, ValueError, AttributeError):
        found = json.loads(read_regular(record, _MOST_BYTES, "record of notices"))
        return {str(key): dict(notified) for key, notified in found.items()}
    return {}


def _send(target: Target, notice: Mapping[str, Any], page: Path | None) -> None:
    """Send a notice: as a request's body, or to the standard input of a program."""
    data = json.dumps(notice).encode()
    if target["kind"] == "webhook":
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(target["url"], data, headers)  # noqa: S310 - as its pattern
        urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS).close()
        return
    argv = target.get("run")
    if target["kind"] == "mail":
        argv, data = _sendmail(), bytes(_mail(target, notice, page))
    # No pipe to read: what the program started might hold it open for ever.
    nowhere = subprocess.DEVNULL
    subprocess.run(
        argv or (), input=data, timeout=SECONDS, stdout=nowhere, stderr=nowhere, check=True
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A secret is sent to no other server."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer is an error with its code."""


def _reason(fault: Exception) -> str:
    """Return the reason of a failure, without the address that a message may hold."""
    if isinstance(fault, HpcdlError):
        return fault.message
    if code := getattr(fault, "code", None) or getattr(fault, "returncode", None):
        return f"it answered {code}"
    cause = getattr(fault, "reason", fault)  # of an address that is not reached
    if isinstance(cause, TimeoutError | subprocess.TimeoutExpired):
        return f"no answer within {SECONDS:.0f} s"
    return str(getattr(cause, "strerror", None) or type(cause).__name__)


def _sendmail() -> Sequence[str]:
    program = shutil.which("sendmail") or "/usr/sbin/sendmail"
    if not Path(program).exists():
        raise BadInput("there is no sendmail on this machine (postfix, msmtp and others have one)")
    return [program, "-t", "-i"]


def _mail(target: Target, notice: Mapping[str, Any], page: Path | None) -> EmailMessage:
    message = EmailMessage()
    message["Subject"], message["To"] = f"[hpcdl] {notice['subject']}", ", ".join(target["to"])
    message["From"] = target.get("from") or "hpcdl"
    text = [notice["subject"], "", *notice["lines"]]
    if notice["gate"]["findings"]:
        text += ["", "`hpcdl check accept ID --because ... --by ...` accepts a finding."]
    message.set_content("\n".join([*text, "", notice["link"]]).rstrip() + "\n")
    if page is not None:
        data = read_regular(page, _MOST_BYTES, "page")
        message.add_attachment(data, maintype="text", subtype="html", filename=page.name)
    return message
