"""What a script names that the cluster has not, and what its plug-ins add."""

from pathlib import Path

import pytest

from hpcdl.jobs.layout import cluster_of
from hpcdl.jobs.lint import lint
from hpcdl.site import load_site
from hpcdl.slurm.fits import Cluster, NodeKind, PartitionLimits

MATRIX = Path(__file__).parents[2] / "matrix" / "site.yaml"
P100 = NodeKind(2, 16, 61440, {"p100": 4}, frozenset({"skylake", "ib-fdr"}))
PI = Cluster(
    where="'pi'",
    partitions=frozenset({"p100", "cpu"}),
    limits={"p100": PartitionLimits("p100", (P100,), qos=frozenset({"normal", "long"}))},
    default="p100",
)


def found(directive, cluster=PI, version="26.05"):
    text = f"#!/bin/bash\n#SBATCH {directive}\npython train.py\n"
    rows = lint(text, name="x", version=version, cluster=cluster)
    return {one.rule.id: one.detail for one in rows}


@pytest.mark.parametrize(
    ("directive", "rule"),
    [
        ("--partition=p10", "partition-unknown"),
        ("-p cpu,gpu", "partition-unknown"),
        ("--qos=short", "partition-limit"),
        ("--gres=gpu:v100:2", "partition-limit"),
        ("--gpus-per-node=v100:2", "partition-limit"),
        ("--constraint=broadwell", "partition-limit"),
    ],
)
def test_a_name_that_the_cluster_has_not_is_an_error(directive, rule):
    assert set(found(directive)) == {rule}
    assert found(directive, Cluster()) == {}


@pytest.mark.parametrize(
    "directive",
    [
        "-p p100,cpu",
        "--qos=long",
        "--gres=gpu:p100:2",
        "--gpus=2",
        '--constraint="(skylake&ib-fdr)|skylake*2"',
    ],
)
def test_names_that_it_has_are_right(directive):
    assert found(directive) == {}


def test_the_nearest_name_is_suggested_else_some_are_shown():
    assert found("-p p10")["partition-unknown"] == "'p10'; did you mean 'p100'?"
    assert found("-p zzz")["partition-unknown"] == "'zzz'; 'pi' has cpu, p100"


def test_a_site_file_says_partitions_and_what_they_have():
    cluster = cluster_of(load_site(MATRIX))
    assert cluster.partitions == {"p100", "cpu", "alone"}
    assert "has no v100 GPUs" in found("-p p100 --gpus-per-node=v100:1", cluster)["partition-limit"]


def test_options_of_plug_ins_are_known_from_the_site(tmp_path, hpcdl):
    script, site = tmp_path / "job.sh", tmp_path / "site.yaml"
    script.write_text("#!/bin/bash\n#SBATCH --ntasks=1 --image=docker:x\npython a.py\n")
    run = ["job", "lint", "--slurm-version", "26.05", "--advice", str(script)]
    assert "option-foreign" in hpcdl(*run).out
    for named, code, said in (("image", 0, "no findings"), ("imag", 1, "did you mean '--imag'?")):
        options = f"plugin_options: [{named}]"
        site.write_text(MATRIX.read_text().replace("accounting: false", options))
        assert said in hpcdl(*run, "--site", str(site), code=code).out


STEPS = """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=2 --cpus-per-task=4 --requeue --signal=R:TERM@300 --time=60
srun --cpu-bind=cores python train.py
"""


@pytest.mark.parametrize(
    ("key", "value", "gone", "instead"),
    [
        ("TaskPlugin", "task/affinity", "cpus-per-task-default", {"cpus-per-task-lost"}),
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
