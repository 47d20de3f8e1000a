"""Runs checks in a directory of their own and turns what ReFrame reports into verdicts.

What is suspicious is measured again, the same night, within the site's budget (`nodes`).

Of a check in ReFrame's own way it reports its own name (`bw_0`), and of the job little. The
parameters are in the name that it displays, what became of the job is in the run's events, and the
release is that of the partition, where the environment loads it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcdl.regress.identity import LOWER, TIMES
from hpcdl.regress.job_state import JUDGED, exit_fault
from hpcdl.regress.nodes import Key, joined, key_of, name_slow_nodes, place_for, suspicious
from hpcdl.regress.references import (
    MIN_RUNS,
    OWN_DEMAND,
    WIDEST,
    Edits,
    Reference,
    ReferenceKey,
    edits_of,
    fingerprint,
    from_runs,
    load_references,
)
from hpcdl.regress.reframe_adapter import process
from hpcdl.regress.reframe_adapter.process import CheckRequest, Progress, Session
from hpcdl.regress.reframe_adapter.settings import Modules, reframe_name, render_settings
from hpcdl.regress.run_directory import RunDirectory, new_run, read_events, sweep
from hpcdl.regress.training import ALL, ranks_on
from hpcdl.regress.verdict import WHOLE_RUN, Verdict, judge, waive
from hpcdl.results.faults import FaultKind, JobFault, Status
from hpcdl.results.records import VERDICTS
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.slurm.execution import ExecutionProfile, current
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.system.errors import BadInput, CheckFailed, HpcdlError, Stopped
from hpcdl.system.files import last_text, write_atomic
from hpcdl.system.text import did_you_mean
from hpcdl.system.trust import require_known_owners

_GENERATED = {"repeat_no", "part", "nid"}
"""ReFrame's own parameters: of --repeat and --distribute."""


Doubts = Callable[[Sequence[Verdict]], set[Key]]
"""The cases of which the history says that tonight's values may be a drop."""


@dataclass(frozen=True)
class CheckOutcome:
    """The result of a run of checks.

    `machine` is the fingerprint of the machine of a single-node emulation, None on a real cluster;
    `settings` are options that the run set itself, which makes it no night like the others; `ended`
    is in seconds since 1970; `notes` are ReFrame's messages beside its results.
    """

    directory: RunDirectory
    verdicts: tuple[Verdict, ...]
    seconds: float
    machine: str | None = None
    settings: tuple[str, ...] = ()
    site: str = ""
    ended: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether there are verdicts and every one passes or is waived."""
        return bool(self.verdicts) and all(verdict.ok for verdict in self.verdicts)


def run_checks(
    site: Site,
    modules: Modules,
    request: CheckRequest,
    progress: Progress | None = None,
    doubts: Doubts | None = None,
) -> CheckOutcome:
    """Run checks, measure again what is suspicious, and judge them.

    `modules` are of the release that the checks must use; `progress` is called about ten times a
    second while ReFrame runs; `doubts` is what the history says of tonight's values. Raises
    MissingPrerequisite: no ReFrame, or Slurm is away. Raises BadInput: an unknown partition, a
    setting that cannot be passed on, bad references. Raises Stopped: a signal ended it; its jobs
    were cancelled.
    """
    process.require_reframe()
    _check_request(site, request)
    client.version()
    sweep(site)
    start = time.monotonic()
    with new_run(site) as run:
        execution = current()
        machine = fingerprint() if execution.machine_references else None
        night = _Night(site, modules, request, execution, machine, progress)
        session = night.session(run, request)
        _refuse_mistyped(run, request, session)
        verdicts = _verdicts(night, run, session)
        if not request.measuring:
            verdicts = joined(verdicts)
        verdicts, notes = _measured_again(night, run, verdicts, doubts)
        outcome = CheckOutcome(
            run,
            tuple(waive(verdicts, request.waived)),
            time.monotonic() - start,
            machine,
            request.changed,
            site.name,
            time.time(),
            (*session.notes, *notes),
        )
        VERDICTS.write(run.verdicts, as_data(outcome))
    return outcome


@dataclass(frozen=True)
class _Night:
    """What all sessions of ReFrame in one run have in common."""

    site: Site
    modules: Modules
    request: CheckRequest
    execution: ExecutionProfile
    machine: str | None
    progress: Progress | None

    def session(
        self,
        run: RunDirectory,
        request: CheckRequest,
        until: float | None = None,
        places: Mapping[str, Sequence[str]] | None = None,
    ) -> Session:
        """Run ReFrame in a directory, to its end or until a time."""
        write_atomic(
            run.settings,
            render_settings(
                self.site,
                self.modules,
                partitions=request.partitions,
                prefix=run.path,
                execution=self.execution,
            ),
        )
        more = process.own_settings(self.site)
        argv = process.to_argv(run, request, more, serial=self.execution.serial)
        return process.execute(run, argv, self.progress, until=until, places=places)

    def again(
        self, run: RunDirectory, count: int, chosen: Sequence[Verdict], until: float
    ) -> list[Verdict]:
        """Run the cases of some verdicts once more, each partition's in a session of its own."""
        verdicts: list[Verdict] = []
        placed = any("exclude" in word or "nodelist" in word for word in self.request.passed)
        events = read_events(run.events)
        for label in dict.fromkeys(verdict.partition for verdict in chosen):
            here = [verdict for verdict in chosen if verdict.partition == label]
            places = {
                event.name: place_for(self.site, verdict, count)
                for verdict in here
                if not placed and (event := events.get(int(verdict.job.get("id") or 0)))
            }
            request = replace(
                self.request,
                partitions=(label,),
                hashes=tuple(dict.fromkeys(verdict.hashcode for verdict in here)),
            )
            directory = run.again(len([*run.path.glob("again-*")]) + 1)
            session = self.session(directory, request, until, places)
            wanted = {key_of(verdict) for verdict in here}
            verdicts += [one for one in self.judged(directory, session) if key_of(one) in wanted]
        return verdicts

    def judged(self, run: RunDirectory, session: Session) -> list[Verdict]:
        """The verdicts on the cases of a session."""
        site, labels = self.site, [part.label for part in self.site.by_groups()]
        evidence = Plain(
            jobs={str(job): event.record for job, event in read_events(run.events).items()},
            partitions={reframe_name(label): label for label in labels},
            releases={
                (label, "tensorflow"): self.modules[label].release or ""
                for label in labels
                if label in self.modules
            },
        )
        cases = (with_evidence(case, evidence) for case in session.cases)
        return [_counted(site, judge(case, self.machine)) for case in cases]


def _measured_again(
    night: _Night, run: RunDirectory, verdicts: list[Verdict], doubts: Doubts | None
) -> tuple[list[Verdict], list[str]]:
    """The verdicts after what is suspicious was measured again, and what could not be."""
    request, budget = night.request, night.site.remeasure
    verdicts = name_slow_nodes(verdicts, night.execution)
    if request.measuring or request.settings:
        return verdicts, []
    until, notes = time.monotonic() + 60 * budget.minutes, list[str]()
    for count in range(1, budget.runs + 1):
        chosen = suspicious(verdicts, doubts(verdicts) if doubts else ())
        if not chosen:
            break
        if time.monotonic() > until:
            notes.append(
                f"not measured again, {budget.minutes:g} minutes are over: {_named(chosen)}"
            )
            break
        try:
            more = night.again(run, count, chosen, until)
        except HpcdlError as fault:
            if isinstance(fault, Stopped):
                raise
            notes.append(f"not measured again, {fault.message}: {_named(chosen)}")
            break
        there = {key_of(verdict) for verdict in more if verdict.status is not Status.ERROR}
        if missing := [verdict for verdict in chosen if key_of(verdict) not in there]:
            notes.append(f"run {count + 1} gave no result of {_named(missing)}")
        verdicts = name_slow_nodes(joined([*verdicts, *more]), night.execution)
        if not there:
            break
    return verdicts, notes


def _named(verdicts: Sequence[Verdict]) -> str:
    names = [f"{one.name} on {one.place}" for one in verdicts]
    return ", ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def as_data(outcome: CheckOutcome) -> dict[str, Any]:
    """An outcome as verdicts.json has it."""
    return VERDICTS.data(
        {
            "run": str(outcome.directory.path),
            "site": outcome.site,
            "ok": outcome.ok,
            "machine": outcome.machine,
            "settings": list(outcome.settings),
            "notes": list(outcome.notes),
            "seconds": round(outcome.seconds, 2),
            "time": outcome.ended,
            "verdicts": [verdict.as_data() for verdict in outcome.verdicts],
        }
    )


def _check_request(site: Site, request: CheckRequest) -> None:
    """Refuse what cannot be run, and references with faults."""
    load_references(site, request.partitions)
    for setting in request.settings:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*(=[^,\x00-\x1f]*)?", setting):
            raise BadInput(
                f"--set {setting!r} cannot be passed on",
                hint="write NAME=VALUE, an option of `hpcdl train`, without a comma",
            )
    process.refuse_ours(request.passed)
    for path in request.paths:
        if not path.exists():
            raise BadInput(f"there are no checks at {path}", hint="name a file or a directory")
    for path in request.paths:
        require_known_owners(path)
    process.own_settings(site)


def _refuse_mistyped(run: RunDirectory, request: CheckRequest, session: Session) -> None:
    """Refuse what was typed where nothing at all is selected and no check has that tag or name.

    What selects nothing for another reason is a night that went wrong.
    """
    names = [name.partition("/")[0] for name in request.names]
    if session.exit_code or session.cases or session.left_out:
        return
    if not (request.paths or request.tags or names):
        return
    checks = process.described(run.settings, request.paths, "--skip-system-check")
    if request.paths and not checks:
        message = f"there is no check in {', '.join(map(str, request.paths))}"
        raise BadInput(message, hint="name a file or a directory of ReFrame checks")
    tags = sorted({tag for check in checks for tag in check["tags"]})
    classes = sorted({check["@class"] for check in checks})
    for what, typed, offered in (("tag", request.tags, tags), ("name", names, classes)):
        for word in typed:
            if offered and word not in offered:
                guess = did_you_mean(word, offered)
                there = "" if guess.startswith("use") else f" There are: {', '.join(offered)}"
                raise BadInput(f"no check has the {what} {word}", hint=guess + there)


def _verdicts(night: _Night, run: RunDirectory, session: Session) -> list[Verdict]:
    request, verdicts = night.request, night.judged(run, session)
    broken = [_problem(reason) for reason in session.left_out]
    if verdicts and session.exit_code != 0 and all(verdict.ok for verdict in verdicts):
        broken.append(_problem(f"ReFrame exited with status {session.exit_code}; see {run.log}"))
    if broken or verdicts:
        return [
            *verdicts,
            *broken,
            *_partitions_without(night.site, request, verdicts),
            *_names_without(request, verdicts),
        ]
    kind = FaultKind.SELECTION if request.names and not session.exit_code else FaultKind.RUN
    return [_problem(_why_nothing(run, request, session), kind=kind)]


def _problem(reason: str, partition: str = "", kind: FaultKind = FaultKind.RUN) -> Verdict:
    return Verdict(WHOLE_RUN, "", partition, Status.ERROR, reason, (JobFault(kind, reason),))


def _partitions_without(
    site: Site, request: CheckRequest, verdicts: Sequence[Verdict]
) -> list[Verdict]:
    """A partition that was asked for by name, or a group of its nodes, on which nothing ran."""
    seen = {verdict.partition for verdict in verdicts}
    asked = site.by_groups(request.partitions) if request.partitions else ()
    return [
        _problem("no check fits this partition", part.label)
        for part in asked
        if part.label not in seen
    ]


def _names_without(request: CheckRequest, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """A check that was asked for by name and did not run: ReFrame is content with any other."""

    def means(name: str, verdict: Verdict) -> bool:
        check, _, case = name.partition("/")
        named = re.match(rf"{re.escape(check)}\b", verdict.check) is not None
        return named and (not case or verdict.case in {"", case})

    return [
        _problem(f"no check was selected by name {name}", kind=FaultKind.SELECTION)
        for name in request.names
        if not any(means(name, verdict) for verdict in verdicts)
    ]


def _counted(site: Site, verdict: Verdict) -> Verdict:
    """A case that takes all GPUs of a node, with their number; one that never started lacks it."""
    known = {part.label: part for part in site.by_groups()}
    if "xall" not in verdict.case or verdict.partition not in known:
        return verdict
    count = ranks_on(known[verdict.partition], ALL)
    return replace(verdict, case=verdict.case.replace("xall", f"x{count}"))


def _why_nothing(run: RunDirectory, request: CheckRequest, session: Session) -> str:
    if session.exit_code:
        last = [line for line in last_text(run.log).splitlines() if line.strip()][-3:]
        return f"ReFrame exited with status {session.exit_code}: {' / '.join(last)[-400:]}"
    wanted = [*(f"tag {tag}" for tag in request.tags), *(f"name {n}" for n in request.names)]
    return "no check was selected" + (f" by {', '.join(wanted)}" if wanted else "")


@dataclass(frozen=True)
class Plain:
    """What a run knows about plain checks.

    `jobs` is what became of each job, by id; `partitions` are the site's names by ReFrame's;
    `releases` is what is loaded, by partition and environment.
    """

    jobs: Mapping[str, Mapping[str, Any]]
    partitions: Mapping[str, str]
    releases: Mapping[tuple[str, str], str]


def with_evidence(case: Mapping[str, Any], plain: Plain) -> Mapping[str, Any]:
    """A case of the report; one of a plain check with the evidence of its name and its job."""
    job = plain.jobs.get(str(case.get("jobid") or ""), {})
    own = case.get("evidence") or {}
    check, parameters, added = _names(str(case.get("display_name") or case.get("name") or ""))
    if own.get("check"):
        # One that was given up never came to the point where it notes its job.
        more: dict[str, object] = {} if own.get("job") or not job else {"job": job}
        more |= {"case": f"{own['case']},{added}"} if added and own.get("case") else {}
        return {**case, "evidence": {**own, **more}} if more else case
    partition = str(case.get("partition") or "")
    label = plain.partitions.get(partition, partition)
    environment = str(case.get("environ") or "")
    code, judged = job.get("exit_code"), job.get("state") in JUDGED
    evidence = {
        "check": check,
        "case": ",".join(part for part in (parameters, added) if part),
        "partition": label,
        # That of hpcdl's own checks is no part of a name.
        "environment": "" if environment == "hpcdl" else environment,
        "release": plain.releases.get((label, environment)),
        "job": dict(job) or _job_of(case),
        "faults": [exit_fault(int(code)).as_data()] if code and judged else [],
    }
    return {**case, "evidence": evidence}


def _job_of(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a job that only ReFrame watched, from its report."""
    nodes = case.get("job_nodelist")
    named = ",".join(map(str, nodes)) if isinstance(nodes, list) else ""
    return {"id": case.get("jobid"), "nodes": named}


def _names(displayed: str) -> tuple[str, str, str]:
    """A check's name, its parameters as `size=1,mode=read`, and those that -P gave it.

    Those by which ReFrame repeats a check or distributes it are left out.
    """
    check, *rest = displayed.split(" %")
    named = [text.partition("~")[0].strip() for text in rest]
    own = [text for text in named if text.partition("=")[0].isidentifier()]
    given = [
        text[1:] for text in named if text[:1] == "." and text[1:].partition("=")[0].isidentifier()
    ]
    added = [text for text in given if text.partition("=")[0] not in _GENERATED]
    return check.partition("~")[0].strip(), ",".join(own), ",".join(added)


# ---- a site's own references, by runs for them ----


def measure(
    site: Site, modules: Modules, request: CheckRequest, progress: Progress | None = None
) -> tuple[Sequence[Reference], Edits]:
    """Run the checks `request.repeat` times; the references that follow, and what was written.

    Raises BadInput: fewer runs than a reference needs. Raises CheckFailed: a run went wrong;
    nothing is written.
    """
    if request.repeat < MIN_RUNS:
        raise BadInput(
            f"--runs {request.repeat} is too few for a reference", hint=f"give at least {MIN_RUNS}"
        )
    outcome = run_checks(site, modules, replace(request, measuring=True), progress)
    well = {Status.NO_REFERENCE, Status.PASS}  # at most it lacks references
    faulty = [verdict for verdict in outcome.verdicts if verdict.status not in well]
    if faulty:
        raise CheckFailed(
            "no reference was written, because not every run went well",
            details=[f"{v.name} on {v.partition or '-'}: {v.reason}" for v in faulty],
            hint=f"see {outcome.directory.path}",
        )
    rows = derive(site, modules, outcome)
    if not rows:
        raise CheckFailed(
            "no reference was written, because nothing that ran has a number to be judged",
            hint="`hpcdl check run` says of each check what it holds",
        )
    edits = edits_of(site, rows)
    edits.write()
    return rows, edits


def derive(site: Site, modules: Modules, outcome: CheckOutcome) -> tuple[Reference, ...]:
    """A reference for every metric of every case, from all of its runs.

    Raises MissingPrerequisite: too few of them are good.
    """
    groups: dict[ReferenceKey, list[Reference]] = {}
    for row in _rows_of(site, outcome):
        groups.setdefault(row.key, []).append(row)
    return tuple(
        from_runs(
            replace(
                rows[0],
                nodes=tuple(sorted({node for row in rows for node in row.nodes})),
                release=modules[key[2]].release,
            ),
            [row.value for row in rows],
        )
        for key, rows in groups.items()
    )


def _rows_of(site: Site, outcome: CheckOutcome) -> Iterator[Reference]:
    """Yield each metric of a run's verdicts as a reference, from this run alone."""
    for verdict in outcome.verdicts:
        for metric in verdict.metrics:
            if not metric.wanted or metric.value is None or metric.source == OWN_DEMAND:
                continue
            better = metric.better or (LOWER if metric.unit in TIMES else "")
            yield Reference(
                check=verdict.check,
                case=verdict.case,
                partition=verdict.partition,
                metric=metric.name,
                value=float(metric.value),
                unit=metric.unit,
                source=f"measured on '{site.name}' by hpcdl check references measure",
                proof="run",
                date=time.strftime("%Y-%m-%d"),
                driver=verdict.driver,
                machine=outcome.machine,
                nodes=tuple(expand_hostlist(str(verdict.job.get("nodes") or ""))),
                upper=WIDEST if better == LOWER else None,
            )
