"""Which modules a job loads; what Lmod does not find is refused before anything is queued."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.jobs import JobSpec, Module
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.workflows.modules import check_available, module_for, modules_of_job
from tests.make.sites import shipped


@pytest.fixture
def site(tmp_path):
    found = shipped("embedded")
    return replace(found, paths=replace(found.paths, prefix=tmp_path / "prefix"))


def test_without_a_release_a_module_without_version_is_named_and_submitting_is_refused(site):
    assert module_for(site, "p100") == Module(("tensorflow",)), "nothing is pinned or resolved"
    with pytest.raises(MissingPrerequisite, match="no published release"):
        module_for(site, "p100", published=True)
    found = modules_of_job(site, JobSpec("p100", modules=()), published=True)
    assert found == {"p100": Module(())}


@pytest.mark.parametrize("name", ["", "-f", "a b", "a\nb"])
def test_an_argument_that_is_no_module_is_refused(site, name):
    with pytest.raises(BadInput):
        module_for(site, "p100", [name])


@pytest.mark.skipif(
    not Path("/usr/share/lmod/lmod/init/bash").exists(), reason="Lmod is not installed"
)
def test_a_module_that_lmod_does_not_find_is_named(site, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "1.0.lua").write_text('whatis("here")\n')
    check_available(site, Module(("there/1.0",), tmp_path))
    with pytest.raises(BadInput, match="there is no module missing/2, \\$\\(id\\)"):
        check_available(site, Module(("missing/2", "there/1.0", "$(id)"), tmp_path))
