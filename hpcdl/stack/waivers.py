"""Agreements and waivers: what a person must answer before a release is published.

The facts say which packages need which agreement and which have a known vulnerability. Who accepted
an agreement is noted in PREFIX/records.json. A site's own waivers are in PREFIX/waivers.yaml, which
its security team writes: why a vulnerability does not matter here, who answers for that, until
when. A missing or expired answer stops a publish, and so does a faulty file. What kind of answer a
waiver is decides what the bill of materials says: only a reason why the release is not affected
makes it so, an accepted risk stays exploitable.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase

from hpcdl import facts
from hpcdl.site import Site
from hpcdl.stack.release import Release
from hpcdl.system.declare import build, option, read_file
from hpcdl.system.document import read_document
from hpcdl.system.errors import BadInput, CheckFailed
from hpcdl.system.files import shared_lock, write_json
from hpcdl.system.text import did_you_mean, utc_now

WAIVERS_FILE = "waivers.yaml"
DEFAULT_KIND = "accepted-risk"
_LONGEST = datetime.timedelta(days=2 * 366)


def today() -> datetime.date:
    """Today in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).date()


def _day(text: str) -> datetime.date:
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError as fault:
        raise BadInput(f"is '{text}', not a day", hint="write YEAR-MONTH-DAY") from fault
    if day > today() + _LONGEST:
        raise BadInput(f"is {text}, too far away", hint="a waiver holds for two years at most")
    return day


def _kind(text: str) -> str:
    kinds = facts.load("records")["waiver_kinds"]
    if text not in kinds:
        known = ", ".join(kinds)
        raise BadInput(f"is '{text}', not one of {known}", hint=did_you_mean(text, kinds))
    return text


@dataclass(frozen=True)
class Waiver:
    """A site's answer to a vulnerability.

    `kind` is a key of `waiver_kinds` in the facts.
    """

    because: str = option(
        "the reason",
        type="string",
        pattern=r"^[^\x00-\x1f]{20,1000}$",
        patternErrorMessage="give a reason, in a line of at least 20 characters",
    )
    owner: str = option(
        "who answers for it", type="string", pattern=r"[^\x00-\x1f]*\S[^\x00-\x1f]*"
    )
    until: datetime.date = option("the last day", type="string", read=_day, write=str)
    kind: str = option("what kind of answer", DEFAULT_KIND, type="string", read=_kind, write=str)

    @property
    def analysis(self) -> Mapping[str, str]:
        """The VEX analysis: `state`, and `justification` or `response`."""
        kinds: Mapping[str, Mapping[str, str]] = facts.load("records")["waiver_kinds"]
        return kinds[self.kind]

    @property
    def expired(self) -> bool:
        """Return whether its last day has passed."""
        return self.until < today()


@dataclass(frozen=True)
class _Waivers:
    """The file of a site's waivers."""

    waivers: Mapping[str, Waiver] = option(
        "waivers by vulnerability", type="object", additionalProperties=Waiver
    )


def read_waivers(site: Site) -> dict[str, Waiver]:
    """The waivers by vulnerability: the site's own, else those that come with hpcdl.

    Raises:
        BadInput: the site's file has faults; each with its line.
    """
    rows = facts.load("records")["weaknesses"]
    shipped = {name: row["waiver"] for name, row in rows.items() if "waiver" in row}
    waivers = {
        name: Waiver(
            " ".join(row["because"].split()), row["owner"], _day(row["until"]), row["kind"]
        )
        for name, row in shipped.items()
    }
    path = site.paths.prefix / WAIVERS_FILE
    if path.exists():
        waivers |= build(_Waivers, read_file(_Waivers, read_document(path), version=1)).waivers
    return waivers


def accepted(site: Site) -> dict[str, Mapping[str, str]]:
    """Who accepted which agreement, by agreement; CheckFailed where the file is damaged."""
    path = site.paths.prefix / "records.json"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["acceptances"]
        return {row["agreement"]: row for row in rows}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise CheckFailed(
            f"{path} is damaged: {str(fault)[:200]}",
            hint="restore it from a backup; it says who accepted which agreement",
        ) from fault


def accept(site: Site, agreement: str, by: str, *, dry_run: bool = False) -> Mapping[str, str]:
    """Note that `by` accepted an agreement, now."""
    known = facts.load("records")["agreements"]
    if agreement not in known:
        raise BadInput(f"there is no agreement '{agreement}'", hint=did_you_mean(agreement, known))
    if not by.strip() or any(ord(character) < 32 for character in by):
        raise BadInput("--by needs a name, in a line")
    made = {"agreement": agreement, "by": by, "at": utc_now()}
    if not dry_run:
        with shared_lock(site.paths.prefix / ".records.lock"):
            rows = [*accepted(site).values(), made]
            write_json(site.paths.prefix / "records.json", {"schema": 1, "acceptances": rows})
    return made


def require_answers(site: Site, release: Release) -> None:
    """CheckFailed where an agreement is not accepted, or a vulnerability has no valid waiver."""
    missing = list(open_questions(site, release))
    if missing:
        raise CheckFailed(
            f"{release.id} is not published: {len(missing)} "
            f"{'answer is' if len(missing) == 1 else 'answers are'} missing",
            details=missing,
        )


def open_questions(site: Site, release: Release) -> Iterator[str]:
    """Yield the open agreements and vulnerabilities, each with what answers it."""
    table, answered, waivers = facts.load("records"), accepted(site), read_waivers(site)
    for name, row in table["agreements"].items():
        if name not in answered and holds(release, row["packages"]):
            yield (
                f"{row['title']} ({row['url']}) is not accepted: `hpcdl stack accept-eula "
                f"{name} --by NAME`"
            )
    for name, row in table["weaknesses"].items():
        waiver = waivers.get(name)
        if holds(release, row["packages"], row["versions"]) and (not waiver or waiver.expired):
            state = f"its waiver expired on {waiver.until}" if waiver else "there is no waiver"
            yield f"{name} ({row['what']}): {state}; {site.paths.prefix / WAIVERS_FILE} takes one"


def holds(release: Release, patterns: list[str], versions: list[str] | None = None) -> bool:
    """Return whether a release has a package of these names (and versions)."""
    inside = {entry["name"]: entry["version"] for entry in release.lock} | dict(release.versions)
    return any(
        fnmatchcase(name, pattern)
        and (versions is None or any(fnmatchcase(version, one) for one in versions))
        for name, version in inside.items()
        for pattern in patterns
    )


def waiver_data(waiver: Waiver) -> dict[str, str]:
    """A waiver for machines."""
    return {key: str(value) for key, value in asdict(waiver).items()}
