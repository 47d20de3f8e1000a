"""Which partition gets which release, and what stays visible."""

import dataclasses
from pathlib import Path

import pytest

from hpcdl.site import Site, StackRequest, load_site
from hpcdl.stack.dispatch import choose
from hpcdl.stack.gc import collect
from hpcdl.stack.publish import plan_publish, plan_rollback, publish, rollback
from hpcdl.stack.release import DISPATCH_FILE, release_for
from hpcdl.system.errors import BadInput
from hpcdl.workflows.modules import module_for
from tests.small_release import make_release, passing, silent, small_site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """p100 and v100 want the stack `tensorflow`, k80 wants `kepler`."""
    site = small_site(tmp_path)
    partitions = dict(site.partitions)
    partitions["k80"] = dataclasses.replace(partitions["k80"], stack="kepler")
    partitions["cpu"] = dataclasses.replace(partitions["cpu"], stack=None)
    stacks = dict(site.stacks) | {
        "kepler": StackRequest("kepler", "venv", ("k80",), {}, variant="cpu")
    }
    return dataclasses.replace(site, partitions=partitions, stacks=stacks)


def served(site: Site) -> dict[str, str]:
    found = {name: release_for(site, name) for name in site.partitions}
    return {name: release.id for name, release in found.items() if release}


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_a_partition_gets_the_newest_of_its_stack(site, order):
    make_release(site, "new", version="2.21.0")
    make_release(site, "old", version="2.14.1", stack="kepler", partitions=("k80",))
    for name in order:
        publish(site, name, passing, say=silent)
    assert served(site) == {"p100": "new", "v100": "new", "k80": "old", "cpu": "new"}
    table = (site.paths.prefix / "current/modules/tensorflow/.modulerc.lua").read_text()
    assert '["k80"] = "2.14.1-cpu"' in table


def test_a_release_that_serves_some_is_not_given_to_others(site):
    one = make_release(site, "all")
    other = make_release(site, "some", stack="other", partitions=("v100",))
    assert choose(site, [one, other]).partitions["cpu"].id == "all"


def test_of_one_stack_with_a_release_per_gpu_each_partition_gets_its_own(site):
    """Spack compiles a stack once for each kind of GPU."""
    for name in ("p100", "v100"):
        make_release(site, f"for-{name}", partitions=(name,))
        publish(site, f"for-{name}", passing, say=silent)
    assert {name: served(site)[name] for name in ("p100", "v100")} == {
        "p100": "for-p100",
        "v100": "for-v100",
    }


def test_earlier_versions_stay_visible_and_a_rollback_only_changes_the_default(site):
    for name, version in (("a", "2.20.0"), ("b", "2.21.0")):
        make_release(site, name, version=version)
        publish(site, name, passing, say=silent)
    rollback(site)
    modules = site.paths.prefix / "current/modules/tensorflow"
    assert {path.name for path in modules.glob("*.lua")} >= {"2.20.0-cpu.lua", "2.21.0-cpu.lua"}
    assert set(served(site).values()) == {"a"}


def test_a_version_s_name_goes_to_what_is_current(site):
    """Two builds of one version: the name means the one that was not rolled back."""
    for name in ("a", "b"):
        make_release(site, name)
        publish(site, name, passing, say=silent)
    file = site.paths.prefix / "current/modules/tensorflow/2.21.0-cpu.lua"
    assert '["id"] = "b"' in file.read_text()
    rollback(site)
    assert '["id"] = "a"' in file.read_text()


def test_each_release_s_own_modulepath_gives_itself(site):
    """A job that was submitted under an old release keeps it."""
    for name in ("a", "b"):
        release = make_release(site, name)
        publish(site, name, passing, say=silent)
        assert f'["id"] = "{name}"' in (release.modules / f"{release.module}.lua").read_text()
    first = site.paths.prefix / "releases/a/modules/tensorflow/2.21.0-cpu.lua"
    assert '["id"] = "a"' in first.read_text()


def three_published(site: Site) -> None:
    """Two of the stack `tensorflow`, then one of `kepler`."""
    make_release(site, "a", version="2.20.0")
    make_release(site, "b", version="2.21.0")
    make_release(site, "k", version="2.14.1", stack="kepler", partitions=("k80",))
    for name in "abk":
        publish(site, name, passing, say=silent)


def test_rolling_one_stack_back_leaves_the_others_their_release(site):
    three_published(site)
    moves = dict.fromkeys(("p100", "v100", "cpu"), ("b", "a"))
    assert plan_rollback(site, "a").moves == moves
    assert rollback(site, "a").moves == moves
    assert served(site) == {"p100": "a", "v100": "a", "k80": "k", "cpu": "a"}
    publish(site, "b", passing, say=silent)
    assert served(site) == {"p100": "b", "v100": "b", "k80": "k", "cpu": "b"}


def test_a_plain_rollback_undoes_the_last_publish_whatever_its_stack(site):
    three_published(site)
    assert rollback(site).moves == {"k80": ("k", "b")}
    assert set(served(site).values()) == {"b"}
    rollback(site)
    assert set(served(site).values()) == {"a"}


def test_a_publish_says_which_partitions_get_it(site):
    three_published(site)
    new = make_release(site, "new", version="2.15.1", stack="kepler", partitions=("k80",))
    assert plan_publish(site, new.id).moves == {"k80": ("k", "new")}
    assert publish(site, new.id, passing, say=silent).as_data()["partitions"] == {
        "k80": {"before": "k", "after": "new"}
    }


def test_in_a_partition_of_several_models_each_gets_the_newest_with_code_for_it(tmp_path):
    site = load_site(Path(__file__).parents[1] / "golden" / "mixed.yaml")
    paths = dataclasses.replace(site.paths, prefix=tmp_path)
    cpu = {name: dataclasses.replace(one, variant="cpu") for name, one in site.stacks.items()}
    site = dataclasses.replace(site, paths=paths, private=True, stacks=cpu)
    for name, gpus in (("ampere", ["A100", "A40"]), ("ada", ["L40S", "L4"])):
        make_release(site, name, stack="tf", partitions=("typed",), needs={"gpus": gpus},
                     module=f"tensorflow/{name}")  # fmt: skip
        publish(site, name, passing, say=silent)
    found = {model: release_for(site, "typed", model) for model in ("A100-PCIe-40GB", "L40S")}
    assert {model: one and one.id for model, one in found.items()} == {
        "A100-PCIe-40GB": "ampere", "L40S": "ada",
    }  # fmt: skip
    assert collect(site, dict, keep=1).kept["ampere"] == "serves typed"
    assert module_for(site, partition="typed", gpu_model="a100").release == "ampere"
    assert module_for(site, partition="typed", gpu_model="l40s").release == "ada"
    with pytest.raises(BadInput, match="no one release serves all GPU models of 'typed'") as told:
        module_for(site, partition="typed")
    assert "--gpu-model L40S" in told.value.hint
    make_release(site, "both", stack="tf", partitions=("typed",), needs={"gpus": ["A100", "L40S"]})
    publish(site, "both", passing, say=silent)
    assert module_for(site, partition="typed").release == "both"


def test_a_damaged_dispatch_file_still_serves_a_mixed_partition(tmp_path):
    site = load_site(Path(__file__).parents[1] / "golden" / "mixed.yaml")
    paths = dataclasses.replace(site.paths, prefix=tmp_path)
    site = dataclasses.replace(site, paths=paths, private=True)
    make_release(site, "one")
    publish(site, "one", passing, say=silent)
    file = tmp_path / "current" / "modules" / DISPATCH_FILE
    for models in ("[]", "{}", '{"typed": 3}', '{"typed": {"L40S": "gone"}}'):
        text = '{"default": "one", "partitions": {"typed": "one"}, "models": ' + models + "}"
        file.write_text(text)
        assert release_for(site, "typed", "L40S").id == "one"
