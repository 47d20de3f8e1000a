"""What people are told of the gate: what is new, what is over, what still holds. Pure.

Names and reasons may be anybody's: each service gets them as text that it neither formats nor
takes for a mention of somebody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdl.regress.answer import Finding, GateAnswer
from hpcdl.system.inert import in_a_line, inert_values

_MOST = 20
"""Findings that a message lists; more are counted."""
Told = Mapping[str, str]
"""What was told last: the name of each finding by its id."""


@dataclass(frozen=True)
class Notice:
    """The gate's answer, beside what was told last; `link` leads to the page, '' for none."""

    site: str
    answer: GateAnswer
    new: tuple[Finding, ...]
    over: tuple[str, ...]
    link: str = ""

    @property
    def subject(self) -> str:
        """One line: the site and the gate's answer."""
        return in_a_line(f"{self.site}: {self.answer.headline}")

    @property
    def changed(self) -> bool:
        """Whether there is anything that was not told last."""
        return bool(self.new or self.over)

    @property
    def told(self) -> dict[str, str]:
        """What is told with this notice."""
        return {one.id: one.name for one in self.answer.findings}


def notice_of(site: str, answer: GateAnswer, before: Told, link: str = "") -> Notice:
    """A notice of what has changed since the last one."""
    new = tuple(one for one in answer.findings if one.id not in before)
    still = {one.id for one in answer.findings}
    over = tuple(name for known, name in before.items() if known not in still)
    return Notice(site, answer, new, over, link)


def lines_of(notice: Notice) -> list[str]:
    """The notice as lines of plain text, each inert."""
    still = [one for one in notice.answer.findings if one not in notice.new]
    found = [f"new: {_line(one)}" for one in notice.new]
    found += [f"over: {name}" for name in notice.over]
    found += [f"still: {_line(one)}" for one in still]
    found += [f"not sure yet: {one.name}: {one.description}" for one in notice.answer.warnings]
    more = [f"and {len(found) - _MOST} more"] if len(found) > _MOST else []
    return [in_a_line(line) for line in (*found[:_MOST], *more)]


def _line(one: Finding) -> str:
    return f"{one.kind}, {one.name}: {one.description} (id {one.id})"


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
        "type": "AdaptiveCard", "version": "1.4", "body": body,
        **({"actions": actions} if notice.link else {}),
    }  # fmt: skip
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def as_webhook(notice: Notice) -> dict[str, Any]:
    """Any other program: the gate's answer as `check gate --json` has it, and what changed."""
    told = {"site": notice.site, "link": notice.link, "new": [one.id for one in notice.new],
            "over": list(notice.over), "gate": notice.answer.as_data()}  # fmt: skip
    inert: dict[str, Any] = inert_values(told)
    return inert


BODIES: Mapping[str, Callable[[Notice], dict[str, Any]]] = {
    "slack": as_slack, "mattermost": as_mattermost, "teams": as_teams, "webhook": as_webhook
}  # fmt: skip
"""What each kind of service takes, as JSON."""


def _escaped(text: str) -> str:
    """Slack's three special characters; and no end of a block of code."""
    marks: Sequence[tuple[str, str]] = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("`", "'"))
    for mark, plain in marks:
        text = text.replace(mark, plain)
    return text
