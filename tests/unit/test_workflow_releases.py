"""Which jobs use which release: read from their scripts."""

import dataclasses
from pathlib import Path

import pytest

from hpcdl.jobs.script import render_script
from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.site import Site
from hpcdl.slurm import parse
from hpcdl.workflows import releases
from hpcdl.workflows.releases import Use, pinned_by_jobs, read_script
from tests.small_release import make_release, small_site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = small_site(tmp_path / "prefix")
    make_release(site, "a")
    make_release(site, "b")
    return site


def job(number: int) -> parse.JobRecord:
    return parse.job(f"JobId={number} JobName=x UserId=ada(7) JobState=PENDING")


def test_a_rendered_script_names_its_release(site: Site) -> None:
    folder = site.paths.prefix / "releases" / "a" / "modules"
    module = Module(("tensorflow/2.21.0-cpu",), folder, "a")
    text = render_script(site, JobSpec("p100"), module).text
    assert read_script(site, text) == (("a",), ("tensorflow/2.21.0-cpu",))


@pytest.mark.parametrize(
    ("line", "loads"),
    [
        ("module load tensorflow", ("tensorflow",)),
        ("  module -q load gcc tensorflow/2.21.0-cpu  # mine", ("tensorflow/2.21.0-cpu",)),
        ("module purge; ml tensorflow && python x.py", ("tensorflow",)),
        ("ml load 'tensorflow'", ("tensorflow",)),
        ("module swap gcc tensorflow", ("tensorflow",)),
        ("# module load tensorflow", ()),
        ("echo module unload tensorflow", ()),
        ("module load tensorflow-gpu", ()),
    ],
)
def test_modules_loaded_by_name_are_found(site: Site, line: str, loads: tuple[str, ...]) -> None:
    assert read_script(site, f"#!/bin/bash\n{line}\n") == ((), loads)


def test_a_prefix_behind_a_link_is_the_same_prefix(site: Site, tmp_path: Path) -> None:
    (tmp_path / "apps").symlink_to(site.paths.prefix)
    linked = dataclasses.replace(site.paths, prefix=tmp_path / "apps")
    text = f"{site.paths.prefix}/releases/a/stack/bin/python train.py"
    assert read_script(dataclasses.replace(site, paths=linked), text) == (("a",), ())


def test_every_job_that_names_a_release_is_a_reason_to_keep_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (Use(job(7), ("a",)), Use(job(9), ("a",)), Use(job(11), (), ("tensorflow",)))
    monkeypatch.setattr(releases, "uses", lambda _: found)
    assert pinned_by_jobs(site) == {"a": "jobs 7, 9 will load it"}


def test_a_job_that_nobody_can_read_keeps_everything(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "uses", lambda _: (Use(job(7), (), known=False),))
    kept = pinned_by_jobs(site)
    assert set(kept) == {"a", "b"}
    assert "job 7 may use it" in kept["a"]
