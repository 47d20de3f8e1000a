"""Every rule finds its defect, in the releases where it holds, and nothing else.

A fixture is named for the defect it holds. `# <- rule ...` stands behind each faulty line, and
`# expect LINE rule ...` where no comment can stand. `rule<22.05` and `rule>=24.05` bound what
depends on an option's release, not the rule's. A fixture names all its findings: any other one
fails the test. The scripts in fixtures/right have none on any release.
"""

import re
from pathlib import Path

import pytest

from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.jobs.launch import with_version
from hpcdl.jobs.layout import cluster_of
from hpcdl.jobs.lint import check_signals, lint, shell
from hpcdl.jobs.lint.job import CHECKS
from hpcdl.slurm.rules import SlurmRelease, all_rules, known_releases, rule
from tests.make.sites import shipped

RIGHT = sorted((Path(__file__).parent / "fixtures" / "right").glob("*.sh"))
FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.sh"))
_EDGES = (
    "20.11.0 20.11.2 20.11.3 21.08.0 21.08.1 21.08.5 21.08.6 23.11.3 23.11.4 24.05.1 24.05.2 "
    "24.11.0 24.11.1 25.05.0 25.05.1 25.05.2 25.05.3 25.05.4"
)
RELEASES = (*known_releases(), *_EDGES.split())
WAIVERS = {one.id for one in all_rules() if one.id.startswith("waiver-")}
_MARK = re.compile(r"([a-z][a-z0-9-]+)(?:(<|>=)([0-9.]+))?$")


def expected(text, version):
    """The findings that a fixture's marks promise on a release."""
    found = set()
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"# expect (\d+) (.*)", line):
            number, marks = int(match.group(1)), match.group(2)
        else:
            marks = line.partition("# <- ")[2]
        for mark in marks.split():
            rule_id, sign, edge = _MARK.match(mark).groups()
            release, first = (
                SlurmRelease.parse(version),
                edge and edge + ".0" * (edge.count(".") == 1),
            )
            inside = not edge or (release < SlurmRelease.parse(first)) == (sign == "<")
            if inside and rule(rule_id).holds(release):
                found.add((number, rule_id))
    return found


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_a_right_script_has_no_finding_on_any_release(path):
    for version in known_releases():
        assert lint(path.read_text(), name=path.name, version=version) == (), version


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_a_defect_is_found_where_its_rule_holds_and_nothing_else_is(path):
    text = path.read_text()
    for version in RELEASES:
        said = lint(text, name=path.name, version=version)
        found = {(line, one.rule.id) for one in said for line in (one.line, *one.also)}
        assert found == expected(text, version), version


def test_every_rule_that_a_script_can_show_has_a_fixture_named_for_it():
    built = {"dos-line-ends", "nul-character", "partition-limit", "ntasks-per-gpu-pends"}
    built |= {"sbatch-refuses"}  # test_lint_cluster.py, as are the names of a cluster:
    built |= {f"{one}-unknown" for one in ("partition", "account", "qos", "gres", "feature")}
    wanted = {one.id for one in all_rules() if one.lint} - built - WAIVERS
    assert wanted <= {path.stem for path in FIXTURES}


def test_every_rule_belongs_to_a_check_and_every_check_to_rules():
    lint("#!/bin/bash\n", name="x", version="26.05")  # it brings all checks
    checked = {rule_id for ids, _ in CHECKS for rule_id in ids}
    assert checked == {one.id for one in all_rules() if one.lint} - WAIVERS - {"sbatch-refuses"}


MODULE = Module(("tensorflow/2.20.0",), Path("/apps/hpcdl/releases/r1/modules"), "r1")
PLACES = [
    ("pi", "k80"),
    ("pi", "cpu"),
    ("p100-v100-k80", "p100"),
    ("p100-v100-k80", "v100"),
    ("a100-h100", "h100"),
    ("embedded", "v100"),
]
ASKED = [
    {},
    {"nodes": 1},
    {"nodes": 2},
    {"nodes": 2, "program": ("python", "a b", "$x", ";", "\n")},
]


@pytest.mark.parametrize("version", known_releases())
def test_a_generated_script_is_clean(version):
    for name, partition in PLACES:
        site = with_version(shipped(name), version)
        for asked in ASKED:
            text = render_script(site, JobSpec(partition, **asked), MODULE).text
            found = lint(text, name="x", version=version, cluster=cluster_of(site))
            assert [(one.line, one.rule.id) for one in found] == [], (name, partition, asked)


def test_without_the_parser_nothing_is_concluded_from_what_a_script_does_not_run(monkeypatch):
    """Whose traps lie in the release's file, and what no one has read, is not known."""
    for module in (check_signals, shell):
        monkeypatch.setattr(module, "parser", lambda: None)
    text = render_script(shipped("embedded"), JobSpec("v100", nodes=2), MODULE).text
    asked = "#!/bin/bash\n#SBATCH -n4 --gpus-per-task=1\n"
    for script in (text, asked + "srun --gres-flags=allow-task-sharing a.out\n"):
        assert lint(script, name="x", version="22.05") == ()
