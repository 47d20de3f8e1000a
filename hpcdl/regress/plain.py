"""Checks in ReFrame's own way, with the identity and the evidence that hpcdl's have. Pure.

ReFrame reports its own name of a check (`bw_0`), and of the job little. The parameters are in the
name that it displays, what became of the job is in the run's events, and the release is that of
the partition, where the environment loads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcdl.regress.job_state import JUDGED, exit_fault

OWN_ENVIRONMENT = "hpcdl"
"""That of hpcdl's checks, which bring the script of a user's job: it is no part of a name."""


@dataclass(frozen=True)
class Plain:
    """What a run knows of plain checks.

    `jobs` is what became of each job, by id; `partitions` are the site's names by ReFrame's;
    `releases` is what is loaded, by partition and environment.
    """

    jobs: Mapping[str, Mapping[str, Any]]
    partitions: Mapping[str, str]
    releases: Mapping[tuple[str, str], str]


def with_evidence(case: Mapping[str, Any], known: Plain) -> Mapping[str, Any]:
    """A case of the report; one of a plain check with the evidence of its name and its job."""
    job = known.jobs.get(str(case.get("jobid") or ""), {})
    own = case.get("evidence") or {}
    if own.get("check"):
        # One that was given up never came to the point where it notes its job.
        return case if own.get("job") or not job else {**case, "evidence": {**own, "job": job}}
    check, parameters = _names(str(case.get("display_name") or case.get("name") or ""))
    partition = str(case.get("partition") or "")
    label = known.partitions.get(partition, partition)
    environment = str(case.get("environ") or "")
    code, judged = job.get("exit_code"), job.get("state") in JUDGED
    evidence = {
        "check": check,
        "case": parameters,
        "partition": label,
        "environment": "" if environment == OWN_ENVIRONMENT else environment,
        "release": known.releases.get((label, environment)),
        "job": dict(job) or {"id": case.get("jobid")},
        "faults": [exit_fault(int(code)).as_data()] if code and judged else [],
    }
    return {**case, "evidence": evidence}


def _names(displayed: str) -> tuple[str, str]:
    """A check's name, and its parameters as `size=1,mode=read`; ReFrame's own are left out."""
    check, *rest = displayed.split(" %")
    named = [text.partition("~")[0].strip() for text in rest]
    return check.partition("~")[0].strip(), ",".join(
        text for text in named if text.partition("=")[0].isidentifier()
    )
