"""The consequence of a rule is real: each script is judged by lint and run by every release.

A rule's consequence must show where its row in facts/slurm_rules.yaml says that it holds, and
nowhere else; lint must find the rule in the script just there.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from hpcdl.jobs.layout import cluster_of
from hpcdl.jobs.lint import lint
from hpcdl.site import load_site
from hpcdl.slurm.rules import Span, rule, span

# What Slurm has written down about the running step: its CPUs.
STEP_CPUS = "scontrol show step -o $SLURM_JOB_ID.$SLURM_STEP_ID | grep -o ' CPUs=[0-9]*'"
# A step of one task that says so; what does no work at all needs no CPUs, as lint sees it.
SHOW = f'sh -c "sleep 0; {STEP_CPUS.replace("$", chr(92) + "$")}"'
SHOW_COMMENT = "scontrol show job -o $SLURM_JOB_ID | grep -o ' Comment=[^ ]*'"
STAND_IN_AGENT = (
    "mkdir $SLURM_JOB_ID; cd $SLURM_JOB_ID; printf '#!/bin/sh\\necho agent\\n' > torchrun\n"
    "chmod +x torchrun; cd .."
)
GPUS_SEEN = "sh -c 'echo sees $CUDA_VISIBLE_DEVICES;'"


@dataclass(frozen=True)
class Case:
    """A script that breaks `rules`, and a pattern of what is said only where they hold.

    `not_said` is the opposite: where the rules hold this is missing. `lint` False: the script is
    right, and shows what the rule advises, or the rule is the generator's only. `span` is where an
    option is unknown, of which the rule itself knows nothing. `but` is a release where the rule
    warns of what was not seen there. On the nodes of the partition `alone` nothing else runs: how
    Slurm spreads tasks depends on the CPUs that other jobs have taken.
    """

    rules: str
    directives: str
    body: str
    said: str
    not_said: bool = False
    lint: bool = True
    partition: str = "p100"
    span: Span | None = None
    but: str = ""

    def holds(self, release):
        """Whether the consequence must show on a release."""
        if self.span is not None:
            return self.span.holds(release)
        return any(rule(one).holds(release) for one in self.rules.split())

    @property
    def script(self):
        lines = "".join(f"#SBATCH {one}\n" for one in self.directives.split("\n") if one)
        return f"#!/bin/bash\n#SBATCH --partition={self.partition} --time=5\n{lines}{self.body}\n"


def _case(row):
    """A row of rules.yaml, with the texts above in place of their names."""
    for name in re.findall(r"\{([A-Z_]+)\}", row["body"]):
        row["body"] = row["body"].replace(f"{{{name}}}", globals()[name])
    if "span" in row:
        row["span"] = span(dict(zip(("since", "until"), row["span"], strict=True)))
    assert all(map(rule, row["rules"].split()))  # here: `make test` reads this file, too
    return Case(**row)


ROWS = yaml.safe_load((Path(__file__).parent / "rules.yaml").read_text())
CASES = {name: _case(row) for name, row in ROWS.items()}
TEXTS = {
    "byte-order-mark": (b"\xef\xbb\xbf#!/bin/sh\n#SBATCH -n1\ntrue\n", "look like a batch script"),
    "shebang": (b"#SBATCH --ntasks=1\necho hello\n", "does not look like a batch script"),
    "dos-line-ends": (b"#!/bin/sh\r\ntrue\r\n", "DOS line breaks"),
    "nul-character": (b"#!/bin/sh\necho \0\n", "NULL character"),
}


@pytest.fixture(scope="session")
def outcomes(machines):
    return {
        (machine.name, name): machine.submit(case.script)
        for name, case in CASES.items()
        for machine in machines.values()
        if not isinstance(machine, str)
    }


@pytest.mark.parametrize("name", CASES)
def test_the_consequence_shows_where_the_rule_holds_and_nowhere_else(machine, outcomes, name):
    case, said = CASES[name], outcomes[machine.name, name].end(180).said
    shown = (re.search(case.said, said) is not None) != case.not_said
    expected = case.holds(machine.release) and machine.name != case.but
    assert shown == expected, said


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.lint])
def test_lint_finds_it_there(machine, name):
    case = CASES[name]
    version = machine.release
    cluster = cluster_of(load_site(machine.state.site_file))
    findings = lint(case.script, name="job.sh", version=version, cluster=cluster)
    found = {one.rule.id for one in findings}
    wanted = {one for one in case.rules.split() if rule(one).lint}
    there = {one for one in wanted if rule(one).holds(version)}
    if case.span is not None and not case.span.holds(version):
        there = set()
    assert found & wanted == there


@pytest.mark.parametrize("rule_id", TEXTS)
def test_text_that_sbatch_refuses(machine, rule_id):
    data, said = TEXTS[rule_id]
    assert said in machine.submit(data).refusal
    found = {one.rule.id for one in lint(data.decode(), name="job.sh", version=machine.release)}
    assert rule_id in found
