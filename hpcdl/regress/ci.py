"""Pipelines rendered from the site: GitLab CI, GitHub Actions, Slurm's scrontab, systemd timers.

All four do the same, as far as each can: refresh the build cache, check a merge request, and run
`check night` every night and every week, whose status is that of the checks and the gate. What is
run is worked out here; the templates (templates/ci) only lay it out. A shell, YAML, GitHub, systemd
and a crontab each quote in a way of their own: a word that would need it is refused.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.regress.answer import Finding, GateAnswer, gate_text
from hpcdl.regress.gate import answer_now
from hpcdl.regress.identity import Series
from hpcdl.regress.notify import read_addressees, tell
from hpcdl.regress.run_directory import last_page, reports_directory
from hpcdl.site import Partition, Site
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import explain_os_errors, make_directory, write_atomic
from hpcdl.system.resources import templates
from hpcdl.system.run import module_argv
from hpcdl.system.trust import require_own

KINDS = ("gitlab", "github", "scrontab", "systemd")
IN_REPOSITORY = ("gitlab", "github")
"""Kinds whose file lies in a repository, beside the site file."""
_AT = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_PLAIN = re.compile(r"[\w./:=@,+-]+", re.ASCII)
_HOURS = 8
_WEEKLY_AFTER, _CACHE_BEFORE = 6, 4
"""Hours from the nightly checks to the weekly ones, and from the build cache to them."""
_LARGEST_CHECK_NODES = 4
# What a merge request changes is not what the cluster runs: it is no night of the history.
_NO_HISTORY = 'HPCDL_HISTORY="$(mktemp -d)/history" '
_RUNS = {
    "nightly": ("--tag", "nightly"),
    "nodes": ("--tag", "node", "--distribute"),
    "weekly": ("--tag", "weekly"),
}
"""What is run when, as options of `hpcdl check run`."""


@dataclass(frozen=True)
class Request:
    """How the pipeline is to be.

    `site_file` and `command` are written into it as they are; `at` is the nightly checks' time
    of day; `user` who systemd runs as. `runs` is how often each check runs, `notify` the file of
    whom the gate tells.
    """

    site_file: str
    command: str = "hpcdl"
    at: str = "02:00"
    user: str = ""
    notify: str = ""
    runs: int = 1


def this_command() -> str:
    """The hpcdl that runs now, as another program can call it."""
    program = Path(sys.argv[0])
    if program.name == "hpcdl" and program.is_file():
        return str(program.absolute())
    beside = Path(sys.executable).with_name("hpcdl")  # `python -m hpcdl` of an environment
    return str(beside) if beside.is_file() else shutil.which("hpcdl") or "hpcdl"


def site_file(kind: str, site: Site, given: str | None) -> str:
    """The site file as the pipeline names it: relative in a repository, absolute elsewhere."""
    if kind in IN_REPOSITORY and given and not Path(given).is_absolute() and Path(given).is_file():
        return given
    return str(site.source.absolute())


def render(kind: str, site: Site, request: Request) -> dict[str, str]:
    """The pipeline's files by name.

    `kind` is one of `KINDS`. Raises BadInput: a time that is none, a word that would need quotes.
    """
    values = _values(site, request)
    for word in (*filter(None, map(str, vars(request).values())), site.name, values["reports"]):
        if not _PLAIN.fullmatch(word):
            hint = "name it by letters, digits and . / : = @ , + - _ alone"
            raise BadInput(f"{word!r} cannot be written to a pipeline", hint=hint)
    if kind == "systemd":
        return _systemd(values)
    if kind == "scrontab":
        return {kind: _scrontab(site, values)}
    name = {"gitlab": ".gitlab-ci.yml", "github": "hpcdl.yml"}[kind]
    return {name: _fill(f"{kind}.yml.j2", **values)}


def unit_user(given: str, site: Site) -> str:
    """The user who runs systemd's units: the one given, else the current user, but not root.

    Raises BadInput: there is no such user; root was not named; the site file has paths that would
    be another user's, who must render the units.
    """
    me = pwd.getpwuid(os.getuid()).pw_name
    if not given and os.getuid() == 0:
        hint = "name who runs the checks: --user NAME (--user root only if you mean it)"
        raise BadInput("the units would run as root", hint=hint)
    user = given or me
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise BadInput(f"there is no user '{user}' on this machine", hint="--user NAME") from None
    text = site.source.read_text(encoding="utf-8", errors="replace")
    if uid != os.getuid() and re.search(r"^[^#\n]*(~/|\$\{?(HOME|USER|HPCDL_HOME))", text, re.M):
        raise BadInput(
            f"{site.source} has paths that depend on the user (~, $HOME, $USER)",
            hint=f"render the units as {user}: sudo -u {user} hpcdl check ci systemd",
        )
    return user


def explained(site: Site, request: Request) -> str:
    """What a pipeline will do tonight, in a line, and in the next one every week."""
    (hour, minute), again = _time(request), site.remeasure
    weekly = f"{(hour + _WEEKLY_AFTER) % 24:02d}:{minute:02d}"
    budget = f"at most {again.runs} more, for {again.minutes:g} minutes" if again.runs else "none"
    who = f" as {request.user}" if request.user else ""
    tells = f", which tells whom {request.notify} names" if request.notify else ""
    return (
        f"every night at {request.at}{who}: checks with the tags nightly and node, runs: "
        f"{request.runs}, again where suspicious: {budget}; then report and gate{tells}\n"
        f"on sunday at {weekly}{who}: checks with the tag weekly"
    )


def write(files: Mapping[str, str], output: Path) -> list[Path]:
    """Write a pipeline: one file to `output`, several into it as a directory; their paths."""
    single = len(files) == 1 and not output.is_dir()
    places = {output if single else output / name: text for name, text in files.items()}
    for path, text in places.items():
        write_atomic(path, text)
    return [*places]


def _scrontab(site: Site, values: dict[str, Any]) -> str:
    partition = controller(site)
    return _fill(
        "scrontab.j2",
        **values,
        partition=partition,
        minutes=min(_HOURS * 60, partition.max_minutes),
        nodes_short=partition.nodes <= _LARGEST_CHECK_NODES,
        account=partition.account or site.slurm.account,
        qos=partition.qos or site.slurm.qos,
    )


def controller(site: Site) -> Partition:
    """Where the job that submits the others runs: it keeps CPUs that a check may want.

    Where there are no more nodes than the largest check takes, that check could wait for it.
    """

    def fitness(partition: Partition) -> tuple[bool, bool, bool, int]:
        is_default = partition.name == site.default_partition
        spare = partition.nodes > _LARGEST_CHECK_NODES
        return spare, partition.gpu is None, is_default, partition.nodes

    return max(site.partitions.values(), key=fitness)


def _systemd(values: dict[str, Any]) -> dict[str, str]:
    units = (("cache", "build cache"), ("nightly", "nightly checks"), ("weekly", "weekly checks"))
    return {
        f"hpcdl-{name}.{kind}": _fill(
            f"systemd.{kind}.j2",
            **values,
            name=name,
            summary=summary,
            when=values[name],
            commands=values["lines"][name],
        )
        for name, summary in units
        if values["lines"][name]
        for kind in ("service", "timer")
    }


def _values(site: Site, request: Request) -> dict[str, Any]:
    """Everything the templates may use. Raises BadInput: a time that is none."""
    hour, minute = _time(request)
    command, reports = [request.command], str(reports_directory(site))
    where = ["--site", request.site_file]
    builds = [[*command, "stack", "build", "--name", name, *where] for name in sorted(site.stacks)]
    notify = ["--notify", request.notify] if request.notify else []
    often = ["--runs", str(request.runs)] if request.runs > 1 else []
    night = " ".join([*command, "check", "night", *often, *notify, *where])
    return {
        **vars(request),
        "site": site.name,
        "hours": _HOURS,
        "nightly": _clock(hour, minute),
        "weekly": _clock(hour + _WEEKLY_AFTER, minute, weekly=True),
        "cache": _clock(hour - _CACHE_BEFORE, minute),
        "lines": {
            "cache": [" ".join(build) for build in builds],
            "nightly": [night],
            "weekly": [f"{night} --weekly"],
        },
        "smoke": _NO_HISTORY + " ".join([*command, "check", "run", "--tag", "smoke", *where]),
        "gate": " ".join([*command, "check", "gate", *where]),
        "report": {
            name: " ".join([*command, "check", "report", f"{reports}/{name}.json", *where])
            for name in _RUNS
        },
        "reports": reports,
    }


def run_night(site: Site, *, weekly: bool, runs: int = 1, notify: Path | None = None) -> bool:
    """Run the checks of a night and of every node, or those of a week, write pages, ask the gate.

    Return whether every step was done, all checks passed and the gate is open. A step that fails,
    such as on a full disk, keeps no other from being tried. `notify`: a file of those who hear of
    what changed, of a night without an answer, too.
    """
    people = read_addressees(notify) if notify else None
    command, where = [*module_argv(sys.executable, "hpcdl"), "check"], ["--site", str(site.source)]
    reports, failures = reports_directory(site), list[str]()

    @contextmanager
    def step(what: str) -> Iterator[None]:
        try:
            with explain_os_errors(reports):
                yield
        except HpcdlError as fault:
            failures.append(what)
            print(f"{what}: {fault.render()}", file=sys.stderr)

    def ran(what: str, argv: Sequence[str]) -> bytes:
        done = subprocess.run([*command, *argv, *where], stdout=subprocess.PIPE, check=False)
        failures.extend([what] * bool(done.returncode))
        return done.stdout

    with step("no pages"):
        make_directory(reports)
    if os.path.lexists(reports):
        require_own(reports)  # in a group's work directory a planted one leads to any file
    for name in ("weekly",) if weekly else ("nightly", "nodes"):
        written = {suffix: reports / f"{name}.{suffix}" for suffix in ("json", "xml", "html")}
        with step(f"pages of the last {name} run"):  # last night's is not tonight's
            for path in written.values():
                path.unlink(missing_ok=True)
        verdicts = ran(name, ["run", *_RUNS[name], "--runs", str(runs), "--json"])
        with step(f"no page of the {name} run"):
            make_directory(reports)
            require_own(reports)
            write_atomic(written["json"], verdicts)
            for kind, suffix in (("junit", "xml"), ("html", "html")):
                output = ["--format", kind, "--output", str(written[suffix])]
                ran(f"{kind} of {name}", ["report", str(written["json"]), *output])
    answer = GateAnswer(0, (Finding(Series("", "", "", ""), "ERROR", "no answer of the gate"),), 1)
    with step("no answer of the gate"):
        answer = answer_now(site)
        print(gate_text(answer))
    if people is not None:
        for line in tell(site.name, answer, people, last_page(site)):
            print(f"not notified: {line}", file=sys.stderr)
    return not failures and answer.open


def _time(request: Request) -> tuple[int, int]:
    """The hour and minute of the nightly checks."""
    found = _AT.fullmatch(request.at)
    if found is None:
        raise BadInput(f"'{request.at}' is no time of day", hint="write it like 02:30")
    return int(found[1]), int(found[2])


def _clock(hour: int, minute: int, *, weekly: bool = False) -> dict[str, str]:
    """A time in five fields of a crontab, where Sunday is 0, and as systemd.time(7) has it."""
    cron = f"{minute} {hour % 24} * * {'0' if weekly else '*'}"
    return {"cron": cron, "calendar": f"{'Sun ' * weekly}*-*-* {hour % 24:02d}:{minute:02d}:00"}


def _fill(template: str, **values: object) -> str:
    """A template, filled in; a YAML scalar is quoted as JSON is."""
    environment = templates("ci", trim_blocks=True, lstrip_blocks=True)
    environment.filters["yaml"] = json.dumps
    return environment.get_template(template).render(**values)
