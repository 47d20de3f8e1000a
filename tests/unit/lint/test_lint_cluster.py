"""What a script names that the cluster has not, and what its plug-ins add."""

from pathlib import Path

import pytest

from hpcdl.jobs.limits import cluster_of
from hpcdl.jobs.lint import lint
from hpcdl.site import load_site
from hpcdl.slurm.fits import Cluster

MATRIX = Path(__file__).parents[2] / "matrix" / "site.yaml"
NAMES = {
    "partitions": "p100 cpu",
    "accounts": "physics",
    "qos": "normal long",
    "gres": "gpu nvme",
    "gpu_types": "p100",
    "features": "skylake ib-fdr",
}
PI = Cluster(where="'pi'", **{key: frozenset(names.split()) for key, names in NAMES.items()})


def found(directive, cluster=PI, version="26.05"):
    text = f"#!/bin/bash\n#SBATCH {directive}\npython train.py\n"
    rows = lint(text, name="x", version=version, cluster=cluster)
    return {one.rule.id: one.detail for one in rows}


@pytest.mark.parametrize(
    ("directive", "rule"),
    [
        ("--partition=p10", "partition-unknown"),
        ("-p cpu,gpu", "partition-unknown"),
        ("--account=phsyics", "account-unknown"),
        ("--qos=short", "qos-unknown"),
        ("--gres=gpu:v100:2", "gres-unknown"),
        ("--gpus-per-node=v100:2", "gres-unknown"),
        ("--gres=gpus:2", "gres-unknown"),
        ("--constraint=broadwell", "feature-unknown"),
        ('--constraint="[skylake*2|haswell*2]"', "feature-unknown"),
    ],
)
def test_a_name_that_the_cluster_has_not_is_an_error(directive, rule):
    assert set(found(directive)) == {rule}
    assert found(directive, Cluster()) == {}


@pytest.mark.parametrize(
    "directive",
    [
        "-p p100,cpu",
        "--account=physics",
        "--qos=long",
        "--gres=gpu:p100:2,nvme:1",
        "--gpus=2",
        '--constraint="(skylake&ib-fdr)|skylake*2"',
    ],
)
def test_names_that_it_has_are_right(directive):
    assert found(directive) == {}


def test_the_nearest_name_is_suggested_else_some_are_shown():
    assert found("-p p10")["partition-unknown"] == "'p10'; did you mean 'p100'?"
    assert found("-p zzz")["partition-unknown"] == "'zzz'; 'pi' has cpu, p100"


def test_a_site_file_says_partitions_and_gpu_types():
    cluster = cluster_of(load_site(MATRIX))
    assert (cluster.partitions, cluster.gpu_types) == ({"p100", "cpu"}, {"p100"})
    assert (cluster.accounts, cluster.qos, cluster.gres, cluster.features) == (None,) * 4


@pytest.mark.parametrize("asked", ["--ntasks=1 --gpus-per-task=1", "--gpus=2"])
def test_select_linear_refuses_gpus_per_task_or_job_where_the_site_says_so(asked):
    linear = Cluster(settings={"SelectType": "select/linear"})
    assert "linear-per-task-gres" in found(asked, linear)
    for other in (found(asked, linear, "23.11"), found(asked, Cluster())):
        assert "linear-per-task-gres" not in other


def test_options_of_plug_ins_are_known_from_the_command_line_or_the_site(tmp_path, hpcdl):
    script, site = tmp_path / "job.sh", tmp_path / "site.yaml"
    script.write_text("#!/bin/bash\n#SBATCH --ntasks=1 --image=docker:x\npython a.py\n")
    site.write_text(MATRIX.read_text().replace("accounting: false", "plugin_options: [image]"))
    run = ["job", "lint", "--slurm-version", "26.05", "--advice", str(script)]
    assert "option-foreign" in hpcdl(*run).out
    for known in (["--plugin-options", "image,module"], ["--site", str(site)]):
        assert "no findings" in hpcdl(*run, *known).out
    assert "did you mean '--imag'?" in hpcdl(*run, "--plugin-options", "imag", code=1).out


STEPS = """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=2 --cpus-per-task=4 --requeue --signal=R:TERM@300 --time=60
srun --cpu-bind=cores --cpus-per-gpu=2 python a.py
srun --cpu-bind=cores python train.py
"""


@pytest.mark.parametrize(
    ("key", "value", "gone", "instead"),
    [
        (
            "TaskPlugin",
            "task/affinity,task/cgroup",
            "cpus-per-task-default",
            {"cpus-per-task-lost", "cpus-per-gpu-ignored"},
        ),
        ("KillOnBadExit", "1", "kill-on-bad-exit", set()),
        ("JobFileAppend", "1", "requeue-truncates", set()),
    ],
)
def test_what_depends_on_slurm_conf_is_advice_until_it_is_known(key, value, gone, instead):
    def rules(cluster):
        return {one.rule.id for one in lint(STEPS, name="x", version="22.05", cluster=cluster)}

    unknown, known = rules(None), rules(Cluster(settings={key: value}))
    assert gone in unknown
    assert not instead & unknown
    assert known == unknown - {gone} | instead
