"""The linter against the real sbatch: what it refuses for its syntax has an error, the rest none.

Each text is asked about by `sbatch --test-only`. What it refuses for what the cluster has (too many
nodes, an unknown partition) is no matter of syntax, and is left out. Directives are mutated from
those of tests/unit/lint/values.yaml; public scripts are read from HPCDL_PUBLIC_SCRIPTS, a directory
of the files that tools/public_scripts.txt names, none of which is kept here.
"""

import os
import random
import re
from pathlib import Path

import pytest

from hpcdl.jobs.lint import lint
from hpcdl.jobs.lint.parse import BatchScript
from hpcdl.slurm.fits import Cluster
from hpcdl.slurm.rules import as_release
from tests.integration.conftest import Shell
from tests.unit.lint.test_values import TRIED, TRIED_BY_SLURMCTLD

pytestmark = pytest.mark.cluster
LIKE_LIVE = Cluster(plugin_options=frozenset())
_SYNTAX = re.compile("Invalid job array specification|Job dependency problem")
_NO_SYNTAX = re.compile("error opening file|can't be reached")
_FOREIGN_GRES = re.compile(r"SBATCH.*--gres[= ](?!gpu\b)")
_LARGE = re.compile(r"SBATCH.*(?:--array[= ]|-a ?).*\d{4}")
_READ = ("#SBATCH", "#BSUB", "#PBS")
_OF_THE_TEXT = ("shebang", "dos-line-ends", "nul-character", "byte-order-mark")
_PIECES = [*" ~$<>()'\"#=,:@%-_012359kKmGgXx.+*[]|&;!{}\\\t"]
_PIECES += ["${X}", "--", "(1)", "XXX", "$(x)", "-n"]
_USUAL = """\
--job-name=a -N 2|--nodes=1-2|--ntasks-per-node=4 --cpus-per-task=2|--mem-per-cpu=2G|-p v100
-t 2:00:00|--gres=gpu:v100:2|--gpus-per-node=2|--gpus=2 --gpus-per-task=1|--output=logs/%x-%j.out
-J "two words"|--mail-type=END,FAIL --mail-user=me@example.org|--exclusive|--hint=nomultithread
--requeue|-C v100|--dependency=singleton|--array=0-9%2|--export=ALL|--open-mode=append
--signal=B:USR2@60|--no-kill|--segment=2|--oom-kill-step=1|--tres-per-task=cpu=2"""


def seeds():
    """Directives to be mutated: usual ones, and options with values that sbatch was asked about."""
    found = ["#SBATCH " + one for line in _USUAL.splitlines() for one in line.split("|")]
    for option, answers in {**TRIED, **TRIED_BY_SLURMCTLD}.items():
        values = [*answers.get("accepted", ()), *answers.get("refused", ())]
        found += [f"#SBATCH --{option}={value}" for value in values[:12]]
    return found


def mutated(count, seed=5):
    """Scripts of one directive, each with up to three characters changed."""
    rng, known = random.Random(seed), seeds()
    for _ in range(count):
        body = rng.choice(known).removeprefix("#SBATCH")
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            place, kind = rng.randrange(len(body) + 1), rng.random()
            gone = 0 if kind < 0.45 else rng.choice((1, 1, 2))
            put = "" if 0.45 <= kind < 0.7 else rng.choice(_PIECES)
            body = body[:place] + put + body[place + gone :]
        yield f"#!/bin/bash\n#SBATCH{body}\ntrue\n"


def refused(slurm, path, text):
    """Whether sbatch refuses a script for its syntax; None where it is for something else."""
    done = slurm("sbatch", "--test-only", "-p", "p100", path, check=False)
    if done.returncode == 0:
        return False
    if _NO_SYNTAX.search(done.stderr):
        return None
    # These clusters have GPUs alone, not what a script's own one counts (dcu, gpumem).
    if "Invalid generic resource" in done.stderr and _FOREIGN_GRES.search(text):
        return None
    fault = re.search("allocation failure: (.*)", done.stderr)
    return not fault or (bool(_SYNTAX.search(fault[1])) and not _LARGE.search(text)) or None


def errors(text, release):
    """The errors of a script for which sbatch refuses it."""
    lines = text.split("\n")
    return [
        f"{one.line}: {one.message}"
        for one in lint(text, name="job.sh", version=release, cluster=LIKE_LIVE)
        if one.severity == "error" and re.match("refused|sbatch refuses", one.rule.consequence)
        if one.rule.id in _OF_THE_TEXT or lines[one.line - 1].startswith(_READ)
    ]


def disagreements(slurm, folder, texts):
    """Where lint and sbatch differ: (name, text of the directive, what lint says)."""
    release = slurm("sbatch", "--version").stdout.split()[-1]
    path, found, asked = folder / "job.sh", [], 0
    for name, text in texts:
        path.write_text(text, encoding="utf-8", newline="")
        no = refused(slurm, path, text)
        asked += no is not None
        if no is not None and no != bool(said := errors(text, release)):
            found.append((name, text.split("\n")[1][:100], said))
    return found, asked


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.long)])
def test_mutated_directives_have_an_error_where_sbatch_refuses_them(slurm, tmp_path, count):
    found, asked = disagreements(slurm, tmp_path, enumerate(mutated(count)))
    assert asked > count / 2
    assert len(found) <= count / 1000, found


def test_live_says_what_the_cluster_and_sbatch_refuse(slurm, tmp_path):
    script, sbatch = tmp_path / "job.sh", tmp_path / "bin" / "sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH -p p100 --gres=gpu:p100:9 --array=0-5000 -L nope:1\ntrue\n"
    )
    answer = slurm.hpcdl("job", "lint", "--live", script, check=False)
    assert answer.returncode == 1
    for said in ("'p100' has 4 p100 GPUs per node", "MaxArraySize", "sbatch --test-only refuses"):
        assert said in answer.stdout
    # One that hangs is waited for ten seconds, and that is said.
    sbatch.parent.mkdir()
    sbatch.write_text('#!/bin/sh\n[ "$1" = --test-only ] && sleep 60\nexec /usr/bin/sbatch "$@"\n')
    sbatch.chmod(0o755)
    path = {"PATH": f"{sbatch.parent}:{slurm.env['PATH']}"}
    hung = Shell({**slurm.env, **path}, tmp_path).hpcdl(
        "job", "lint", "--live", script, check=False
    )
    assert "sbatch has not answered yet; it gets 10 s" in hung.stderr
    assert "Slurm does not answer" in hung.stderr


def public_scripts():
    """Name and text of the public scripts; those that only write one are left out."""
    folder = os.environ.get("HPCDL_PUBLIC_SCRIPTS")
    if not folder:
        pytest.skip("HPCDL_PUBLIC_SCRIPTS names no directory")
    files = sorted(path for path in Path(folder).iterdir() if path.is_file())
    texts = [(path.name, path.read_text(encoding="utf-8", errors="replace")) for path in files]
    return [one for one in texts if BatchScript(one[1], one[0], as_release("26.05")).is_batch]


def test_public_scripts_have_an_error_where_sbatch_refuses_them(slurm, tmp_path):
    scripts = public_scripts()
    found, asked = disagreements(slurm, tmp_path, scripts)
    assert asked >= min(300, len(scripts) // 3)
    assert len(found) <= asked / 200, found
