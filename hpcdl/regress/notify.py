"""Notifies people of the gate's answer: by mail, or by a command that gets it as JSON.

An addressee is sent what is new, what is over and what still holds. Names and reasons may be
anybody's: they are made inert before they leave. A notice that fails is one line on stderr, and is
sent again the next time; it changes no answer of the gate. Passwords and addresses that are secret
are the command's own business (examples/notify_*.py): none is in the file of addressees.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.regress.answer import Finding, GateAnswer
from hpcdl.regress.causes import POOLED, causes_of
from hpcdl.system.document import read_document
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
_MOST = 20
"""Lines of a notice; more are counted."""

Target = Mapping[str, Any]
"""An addressee: its `kind`, and what that kind needs (facts/check_formats.yaml)."""


def read_addressees(path: Path) -> Mapping[str, Any]:
    """Return `targets`, `when` to notify them (`change` or `always`) and the page's `link`.

    Raises BadInput: the file has faults. MissingPrerequisite: others may have written it.
    """
    document = read_document(
        path, if_empty="docs/nights-operation.md shows one", require=require_known_owner
    )
    values: Mapping[str, Any] = check(document, facts.load("check_formats")["addressees"])
    for index, target in enumerate((values or {}).get("targets") or ()):
        for kind, key in (("mail", "to"), ("command", "run")):
            if target and target.get("kind") == kind and not target.get(key):
                document.fault(f"a {kind} needs `{key}`", document.find(("targets", index)))
    document.raise_faults()
    return values


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
    before = _read(record)

    def send(target: Target) -> str:
        key = hashlib.sha256(json.dumps(target, sort_keys=True).encode()).hexdigest()[:16]
        notice = notice_of(site, answer, before.get(key, {}), addressees.get("link") or "")
        if addressees["when"] == "change" and not notice["new"] and not notice["over"]:
            return ""
        try:
            _send(target, notice, page)
        except Exception as fault:  # whatever a library thinks of: the night goes on
            # A command's arguments may be secret.
            name = f"mail to {', '.join(target['to'])}" if "to" in target else target["run"][0]
            return in_a_line(f"{name}: {_reason(fault)}")
        before[key] = {one.id: one.name for one in notified_findings(answer)}
        return ""

    with ThreadPoolExecutor(len(addressees["targets"]) or 1) as pool:
        lines = [line for line in pool.map(send, addressees["targets"]) if line]
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


def _send(target: Target, notice: Mapping[str, Any], page: Path | None) -> None:
    """Start the program of a target; it gets the notice on its standard input."""
    argv, data = target.get("run"), json.dumps(notice).encode()
    if target["kind"] == "mail":
        argv, data = _sendmail(), bytes(_mail(target, notice, page))
    # No pipe to read: what the program started might hold it open for ever.
    subprocess.run(
        argv or (),
        input=data,
        timeout=SECONDS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )


def _reason(fault: Exception) -> str:
    if isinstance(fault, subprocess.TimeoutExpired):
        return f"no answer within {SECONDS:.0f} s"
    if isinstance(fault, subprocess.CalledProcessError):
        return f"it ended with {fault.returncode}"
    return str(getattr(fault, "message", None) or getattr(fault, "strerror", None) or fault)


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
