"""Agreements and waivers: what a person must accept before a release is published.

The facts say which packages need which agreement and which have a known vulnerability. A site's own
answers lie in PREFIX/records.json: who accepted what and when, why a vulnerability cannot be
reached here, who answers for that and until when. A missing or expired answer stops a publish.
What kind of answer a waiver is, decides what the bill of materials says: only a reason why the
release is not affected makes it so, an accepted risk stays exploitable.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site import Site
from hpcdl.stack.release import Release
from hpcdl.system.errors import BadInput, CheckFailed
from hpcdl.system.files import shared_lock, write_json
from hpcdl.system.text import did_you_mean, utc_now

_SHORTEST_REASON = 20
_LONGEST_DAYS = 2 * 366
DEFAULT_KIND = "accepted-risk"


@dataclass(frozen=True)
class LicenceAcceptance:
    """An agreement that a person accepted; `at` is a date and time in UTC."""

    agreement: str
    by: str
    at: str


@dataclass(frozen=True)
class Waiver:
    """A site's answer to a vulnerability, its owner, and its last day.

    `kind` is a key of `waiver_kinds` in the facts; records without one accept the risk.
    """

    weakness: str
    because: str
    owner: str
    until: str
    kind: str = DEFAULT_KIND

    @property
    def analysis(self) -> Mapping[str, str]:
        """The VEX analysis: `state`, and `justification` or `response`."""
        kinds: Mapping[str, Mapping[str, str]] = facts.load("records")["waiver_kinds"]
        return kinds[self.kind]

    def expired(self, today: datetime.date) -> bool:
        """Return whether its last day has passed."""
        return datetime.date.fromisoformat(self.until) < today


@dataclass(frozen=True)
class Records:
    """A site's own answers."""

    acceptances: tuple[LicenceAcceptance, ...] = ()
    waivers: tuple[Waiver, ...] = ()


def read_records(site: Site) -> Records:
    """The site's answers; none where there is no file, CheckFailed where it is damaged."""
    path = _path(site)
    if not path.exists():
        return Records()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        records = Records(
            tuple(LicenceAcceptance(**entry) for entry in data["acceptances"]),
            tuple(Waiver(**entry) for entry in data["waivers"]),
        )
        for waiver in records.waivers:
            datetime.date.fromisoformat(waiver.until)  # the file may have been edited
            waiver.analysis  # noqa: B018 - so with its kind
        return records
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise CheckFailed(
            f"{path} is damaged: {str(fault)[:200]}",
            hint="restore it from a backup; it says who accepted which agreement",
        ) from fault


def require_answers(site: Site, release: Release) -> None:
    """CheckFailed where an agreement is not accepted, or a vulnerability has no valid waiver."""
    missing = list(open_questions(release, read_records(site), today()))
    if missing:
        raise CheckFailed(
            f"{release.id} is not published: {len(missing)} "
            f"{'answer is' if len(missing) == 1 else 'answers are'} missing",
            details=missing,
        )


def open_questions(release: Release, records: Records, day: datetime.date) -> Iterator[str]:
    """Yield the open agreements and vulnerabilities, each with the command that answers it."""
    table = facts.load("records")
    accepted = {acceptance.agreement for acceptance in records.acceptances}
    for name, row in table["agreements"].items():
        if name not in accepted and _holds(release, row["packages"]):
            yield (
                f"{row['title']} ({row['url']}) is not accepted: `hpcdl stack accept-eula "
                f"{name} --by NAME`"
            )
    for name, row in table["weaknesses"].items():
        waiver = waiver_of(name, records)
        if concerns(release, row) and (waiver is None or waiver.expired(day)):
            state = f"its waiver expired on {waiver.until}" if waiver else "there is no waiver"
            yield (
                f"{name} ({row['what']}): {state}; `hpcdl stack waive {name} "
                "--because ... --owner ... --until YEAR-MONTH-DAY`"
            )


def concerns(release: Release, row: Mapping[str, Any]) -> bool:
    """Return whether a release has the packages of a row of known vulnerabilities."""
    return _holds(release, row["packages"], row["versions"])


def waiver_of(weakness: str, records: Records) -> Waiver | None:
    """The site's own waiver, the newest first; else the one that comes with hpcdl."""
    own = [waiver for waiver in records.waivers if waiver.weakness == weakness]
    if own:
        return own[-1]
    row = facts.load("records")["weaknesses"].get(weakness, {}).get("waiver")
    if row is None:
        return None
    because = " ".join(row["because"].split())
    return Waiver(weakness, because, row["owner"], row["until"], row["kind"])


def _holds(release: Release, patterns: list[str], versions: list[str] | None = None) -> bool:
    """Return whether a release has a package of these names (and versions)."""
    inside = {entry["name"]: entry["version"] for entry in release.lock} | dict(release.versions)
    return any(
        fnmatchcase(name, pattern)
        and (versions is None or any(fnmatchcase(version, one) for one in versions))
        for name, version in inside.items()
        for pattern in patterns
    )


def accept(site: Site, agreement: str, by: str, *, dry_run: bool = False) -> LicenceAcceptance:
    """Note that `by` accepted an agreement, now."""
    known = facts.load("records")["agreements"]
    if agreement not in known:
        raise BadInput(f"there is no agreement '{agreement}'", hint=did_you_mean(agreement, known))
    _require_text("--by", by, 1)
    made = LicenceAcceptance(agreement, by, utc_now())
    if not dry_run:
        _add(site, "acceptances", asdict(made))
    return made


def waive(
    site: Site, waiver: Waiver, *, known_here: Collection[str] = (), dry_run: bool = False
) -> None:
    """Record what the site says of a vulnerability.

    `known_here` are names of vulnerabilities beside those of the facts.

    Raises:
        BadInput: no such vulnerability or kind, no reason, no owner, or no day within two years.
    """
    known = {*facts.load("records")["weaknesses"], *known_here}
    if waiver.weakness not in known:
        raise BadInput(
            f"unknown vulnerability '{waiver.weakness}'",
            hint=did_you_mean(waiver.weakness, known) or "`hpcdl stack sbom` lists them",
        )
    kinds = facts.load("records")["waiver_kinds"]
    if waiver.kind not in kinds:
        raise BadInput(
            f"there is no kind of waiver '{waiver.kind}'",
            details=[f"{name}: {row['what']}" for name, row in kinds.items()],
            hint=did_you_mean(waiver.kind, kinds),
        )
    _require_text("--because", waiver.because, _SHORTEST_REASON)
    _require_text("--owner", waiver.owner, 1)
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", waiver.until):
        raise BadInput(f"--until is '{waiver.until}', not a day", hint="write YEAR-MONTH-DAY")
    try:
        days = (datetime.date.fromisoformat(waiver.until) - today()).days
    except ValueError as fault:
        raise BadInput(f"--until is '{waiver.until}': {fault}") from fault
    if not 0 <= days <= _LONGEST_DAYS:
        raise BadInput(
            f"--until is {waiver.until}, {'already past' if days < 0 else 'too far away'}",
            hint="a waiver holds for two years at most; renew it then",
        )
    if not dry_run:
        _add(site, "waivers", asdict(waiver))


def _require_text(option: str, text: str, least: int) -> None:
    if len(text.strip()) < least or any(ord(character) < 32 for character in text):
        raise BadInput(f"{option} needs a line of at least {least} characters")


def _add(site: Site, kind: str, entry: Mapping[str, str]) -> None:
    with shared_lock(site.paths.prefix / ".records.lock"):
        data: dict[str, Any] = {"schema": 1, **asdict(read_records(site))}
        write_json(_path(site), {**data, kind: [*data[kind], entry]})


def today() -> datetime.date:
    """Today in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).date()


def _path(site: Site) -> Path:
    return site.paths.prefix / "records.json"
