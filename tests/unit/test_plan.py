"""`hpcdl stack plan`: what would change is told before anything does."""

import json
import shutil
from dataclasses import replace
from unittest.mock import Mock

import pytest

from hpcdl.regress.references import edits_of
from hpcdl.site import StackRequest
from hpcdl.stack.publish import publish, rollback
from hpcdl.stack.release import read_release
from hpcdl.system.errors import CheckFailed, MissingPrerequisite
from hpcdl.system.run import run
from hpcdl.workflows import site_plan
from hpcdl.workflows.releases import Use
from hpcdl.workflows.site_plan import StackTarget, as_text, targets
from tests.make.releases import make_current, make_release, passing, silent
from tests.make.results import reference
from tests.make.sites import shipped, small_site
from tests.unit import slurm_output as said


@pytest.fixture(autouse=True)
def _space(monkeypatch):
    """Whatever is left on the disk of whoever runs the tests."""
    monkeypatch.setattr("hpcdl.stack.build.require_space", lambda *_, **__: None)


@pytest.fixture
def site(tmp_path):
    """`old` is published, `new` is built."""
    site = small_site(tmp_path)
    make_current(site, "old", version="2.19.1")
    make_release(site, "new", version="2.21.0")
    return site


def planned(site, monkeypatch, release, *found, **more):
    """The plan where the stack is to be this release and these jobs are in the queue."""
    names = tuple(site.partitions)
    target = StackTarget("tensorflow", "wheels", names, release, built=True, **more)
    monkeypatch.setattr(site_plan, "targets", lambda *_: (target,))
    monkeypatch.setattr(site_plan, "uses", lambda _: found)
    return site_plan.plan(site)


def with_parts(site, stacks, **partitions):
    """The site with these partitions and stacks alone; the first is the default."""
    named = {stack.name: stack for stack in stacks}
    return replace(
        site, partitions=partitions, default_partition=next(iter(partitions)), stacks=named
    )


def job(number, partition):
    return said.job(id=number, name="train", partition=partition)


def test_what_is_published_already_is_no_change(site, monkeypatch):
    plan = planned(site, monkeypatch, read_release(site, "old"))
    assert not plan["changes"]
    assert "nothing would change" in as_text(plan)


def test_another_release_is_reported_with_versions_and_modules(site, monkeypatch):
    plan = planned(site, monkeypatch, read_release(site, "new"))
    assert plan["changes"]
    assert plan["modules"]["added"] == ["tensorflow/2.21.0-cpu"]
    change = {"component": "tensorflow", "before": "2.19.1", "after": "2.21.0"}
    assert plan["stacks"][0]["versions"][0] == change
    assert "a plain load on p100, v100, k80, cpu: tensorflow/2.19.1-cpu -> " in as_text(plan)
    assert plan["stacks"][0]["before"]["id"] == "old"


def test_another_build_of_one_version_is_reported_too(site, monkeypatch):
    again = make_release(site, "again", version="2.19.1", hpcdl="0.1.0+11111111")
    plan = planned(site, monkeypatch, again)
    assert plan["modules"]["moved"] == ["tensorflow/2.19.1-cpu"]
    assert [change["component"] for change in plan["stacks"][0]["versions"]] == ["hpcdl"]


def test_jobs_that_name_their_release_are_unaffected_and_others_are_named(site, monkeypatch):
    found = (
        Use(job(7, "p100"), ("old",), ("tensorflow/2.19.1-cpu",)),
        Use(job(8, "p100"), (), ("tensorflow",)),
        Use(job(9, "p100"), (), ("tensorflow/2.19.1-cpu",)),
        Use(job(10, "p100"), (), known=False),
    )
    plan = planned(site, monkeypatch, read_release(site, "new"), *found)
    jobs = [plan["jobs"][kind] for kind in ("pinned", "affected", "unknown")]
    assert [[row["job"] for row in rows] for rows in jobs] == [[7], [8], [10]]
    assert "8 (train, p100, pending) loads by name" in as_text(plan)


def test_references_of_the_old_release_become_stale(site, monkeypatch):
    row = reference(release="old")
    other = replace(row, metric="latency", release=None)
    edits_of(site, [row, other]).write()
    plan = planned(site, monkeypatch, read_release(site, "new"))
    (stale,) = plan["references"]
    assert (stale["partition"], stale["count"], stale["measured_with"]) == ("p100", 1, "old")
    assert planned(site, monkeypatch, read_release(site, "old"))["references"] == []


def test_a_new_partition_writes_the_modulefiles_anew(site, monkeypatch):
    parts = {**site.partitions, "new": site.partitions["cpu"]}
    plan = planned(replace(site, partitions=parts), monkeypatch, read_release(site, "old"))
    assert (plan["changes"], plan["modules"]["rewritten"]) == (True, True)


@pytest.mark.parametrize("file", ["releases/old/release.json", "current"])
def test_what_is_damaged_is_no_reason_to_break(site, monkeypatch, file):
    new = read_release(site, "new")
    if file == "current":
        (site.paths.prefix / file).unlink()
        (site.paths.prefix / file).symlink_to("releases/nowhere")
    else:
        (site.paths.prefix / file).write_text("{")
    plan = planned(site, monkeypatch, new)
    assert plan["changes"]
    assert "tensorflow/2.21.0-cpu" in as_text(plan)


def test_a_damaged_history_is_refused_as_a_publish_would_be(site, monkeypatch):
    (site.paths.prefix / "history.json").write_text("{")
    with pytest.raises(CheckFailed, match=r"history\.json is damaged"):
        planned(site, monkeypatch, read_release(site, "new"))


def test_a_partition_that_another_release_serves_changes_too(site, monkeypatch):
    """Only k80, not the first partition of the stack, has something else now."""
    make_release(site, "kepler", version="2.14.1", stack="kepler", partitions=("k80",))
    kepler = replace(site.partitions["k80"], stack="kepler")
    meant = replace(site.stacks["tensorflow"], name="kepler", partitions=("k80",))
    mixed = replace(
        site, partitions={**site.partitions, "k80": kepler}, stacks={**site.stacks, "kepler": meant}
    )
    publish(mixed, "kepler", passing, say=silent)
    plan = planned(site, monkeypatch, read_release(site, "old"))
    assert plan["stacks"][0]["publishes"]
    assert [d["partition"] for d in plan["modules"]["defaults"] if d["changes"]] == ["k80"]


def test_after_a_rollback_the_newer_one_is_wanted_again(site, monkeypatch):
    publish(site, "new", passing, say=silent)
    rollback(site)
    assert planned(site, monkeypatch, read_release(site, "new"))["changes"]


def test_a_stack_that_cannot_be_built_is_reported_and_nothing_changes(site, monkeypatch):
    plan = planned(site, monkeypatch, None, blocked="there is no mpicxx")
    assert (plan["changes"], plan["blocked"]) == (False, True)
    assert "there is no mpicxx" in as_text(plan)


def test_without_slurm_jobs_are_unknown(site, monkeypatch):
    planned(site, monkeypatch, None)
    away = Mock(side_effect=MissingPrerequisite("Slurm does not answer"))
    monkeypatch.setattr(site_plan, "uses", away)
    assert "jobs are unknown: Slurm does not answer" in as_text(site_plan.plan(site))


def test_a_stack_by_spack_is_a_build_per_generation():
    site = shipped("pi")
    pascal = replace(site.partitions["p100"], name="p100", stack="tensorflow-kepler")
    stack = replace(site.stacks["tensorflow-kepler"], partitions=("k80", "p100"))
    found = targets(with_parts(site, [stack], k80=site.partitions["k80"], p100=pascal))
    modules = {one.partitions: one.release.module for one in found}
    assert modules["k80",] == "tensorflow/2.14.1-cuda11.8-sm37"
    assert modules["p100",].endswith("-sm60")
    directories = {next(s for s in one.steps if s.startswith("write")) for one in found}
    assert len(directories) == 2, "each has a directory of its own"


def test_a_partition_that_no_stack_serves_is_a_note_and_no_change(site, monkeypatch):
    kepler = StackRequest("kepler", "wheels", ("k80",), {})
    site = with_parts(site, [kepler], cpu=replace(site.partitions["cpu"], stack=None))
    publish(site, "new", passing, say=silent)
    monkeypatch.setattr(site_plan, "uses", lambda _: ())
    (one,) = targets(site)
    assert (one.stack, one.release, one.partitions) == ("", None, ("cpu",))
    plan = site_plan.plan(site)
    assert (plan["changes"], plan["blocked"]) == (False, False)
    assert "no stack for cpu" in as_text(plan)
    assert plan["stacks"][0]["stack"] is None


def test_what_blocks_a_stack_is_told_to_the_end_the_driver_included():
    site = shipped("p100-v100-k80")
    stack = StackRequest("tensorflow", "wheels", (), {}, horovod=False)  # no compiler is needed
    parts = {
        name: replace(site.partitions[name], stack=stack.name, driver=driver)
        for name, driver in (("p100", None), ("k80", "440.33"))
    }
    found = site_plan.plan(with_parts(site, [stack], **parts))
    (why,) = [one["blocked"] for one in found["stacks"] if one["partitions"] == ["k80"]]
    assert "CUDA 11 needs driver >= 450.80.02" in why
    assert "hpcdl stack build --name tensorflow --partition p100" in as_text(found)


SEVERAL = """
schema: 1
name: several
slurm: {{version: "23.11.4"}}
paths: {{prefix: {prefix}, work: /work, datasets: /data}}
default_partition: cpu
partitions:
  cpu: {{nodes: 2, sockets: 2, cores_per_socket: 8, memory_gb: 120}}
  p100: {{nodes: 1, gpu: {{model: P100-PCIe, per_node: 4}}, sockets: 2, cores_per_socket: 8,
         memory_gb: 120, driver: "535.183.06"}}
  gh: {{nodes: 1, gpu: {{model: GH200, per_node: 1}}, sockets: 1, cores_per_socket: 72,
       memory_gb: 120, driver: "580.95.05"}}
stacks:
  own: {{backend: wheels, cuda_home: {prefix}/no-cuda{more}}}
"""


@pytest.mark.skipif(shutil.which("mpicxx") is None, reason="no MPI to build Horovod with")
def test_what_this_machine_cannot_build_is_named_and_the_rest_is_planned(tmp_path, hpcdl):
    """No nvcc for the P100, no wheels for aarch64: the CPUs get theirs."""
    file = tmp_path / "site.yaml"
    file.write_text(SEVERAL.format(prefix=tmp_path / "p", more=""))
    plan, build = ("stack", "plan", f"--site={file}"), ("stack", "build", f"--site={file}")
    text = hpcdl(*plan, code=10).out
    assert f"cannot be built here: stack 'own' has the cuda_home {tmp_path}/p/no-cuda" in text
    assert "release nothing -> own-2.21.0-cuda12.9-sm60-..." in text, "as it would be with nvcc"
    assert "a plain load on cpu: nothing -> tensorflow/2.21.0-cpu" in text
    assert "new: tensorflow/2.21.0-cpu\n  a plain" in text, "of no other build"
    assert text.endswith("stack build --name own --partition cpu\n  hpcdl stack publish ID\n")

    cpu, p100, gh = json.loads(hpcdl(*build, "--dry-run", "--json", code=6).out)["builds"]
    assert (cpu["partitions"], cpu["blocked"]) == (["cpu"], None)
    assert p100["partitions"] == ["p100"]
    assert "no-cuda/bin/nvcc" in p100["blocked"]
    assert gh["partitions"] == ["gh"]
    assert "aarch64" in gh["blocked"]
    assert not (tmp_path / "p").exists(), "looking makes nothing"

    file.write_text(SEVERAL.format(prefix=tmp_path / "p", more=", partitions: [p100]"))
    assert "something is in the way" in hpcdl(*plan, "--partition", "p100", code=10).out
    hpcdl(*build, "--dry-run", code=2)  # as the build itself


def test_a_driver_is_no_version_that_a_stack_brings():
    site = shipped("pi")
    parts = {name: replace(p, driver=None) for name, p in site.partitions.items()}
    for stack in site_plan.plan(replace(site, partitions=parts))["stacks"]:
        assert "driver" not in {one["component"] for one in stack["versions"]}


def test_an_mpi_that_fails_blocks_its_stack_only(site, monkeypatch):
    monkeypatch.setattr("hpcdl.stack.build.horovod.mpi_version", lambda: run(["false"]))
    assert "false failed with exit code 1" in targets(site)[0].blocked


def test_the_first_plan_shows_the_versions_for_gpus_and_for_cpus():
    """Nothing is there to compare with; the wheels' stack is two builds."""
    plans = site_plan.plan(shipped("pi"))["stacks"]
    found = {(one["stack"], *one["partitions"]): one for one in plans}
    kepler = found["tensorflow-kepler", "k20", "k80"]
    gpus, cpus = found["tensorflow", "p100"], found["tensorflow", "cpu", "fat"]
    versions = {one["component"]: one["after"] for one in kepler["versions"]}
    assert versions["cuda"] == "11.8.0"
    assert kepler["after"]["module"] == "tensorflow/2.14.1-cuda11.8-sm35-sm37"
    assert any("solve tensorflow-kepler with Spack" in step for step in kepler["steps"])
    if gpus["after"] and cpus["after"]:
        assert "cuda12.9-sm60" in gpus["after"]["module"]
        assert cpus["after"]["module"].endswith("-cpu")
        assert (gpus["notes"], cpus["notes"]) == ([], [])
