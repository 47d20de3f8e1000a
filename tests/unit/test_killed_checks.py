"""What a killed check run or a killed measurement left beside its files goes with the next one."""

from dataclasses import replace

import pytest

from hpcdl.regress.references import site_file, update_references
from hpcdl.regress.run_directory import new_run, runs_directory, sweep
from hpcdl.slurm import once
from tests.small_release import small_site


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(once, "by_token", lambda _: {})
    site = small_site(tmp_path / "prefix")
    return replace(site, paths=replace(site.paths, work=tmp_path / "work"))


def test_halves_of_files_of_killed_runs_go_and_those_of_a_living_run_stay(site):
    with new_run(site) as killed:
        (killed.path / ".settings.py.abcd1234").touch()
        (killed.path / ".verdicts.json.abcd1234").touch()
        (killed.path / "rfm.log").touch()
    with new_run(site) as living:
        (living.path / ".settings.py.abcd1234").touch()
        sweep(site)
        assert sorted(one.name for one in killed.path.iterdir()) == ["rfm.log"]
        assert (living.path / ".settings.py.abcd1234").exists()
    assert len(list(runs_directory(site).iterdir())) == 2


def test_half_a_file_of_references_goes_with_the_next_measurement(site):
    path = site_file(site, "embedded")
    path.parent.mkdir(parents=True)
    left = path.with_name(f".{path.name}.abcd1234")
    left.touch()
    update_references(site, "embedded", [])
    assert path.exists()
    assert not left.exists()
