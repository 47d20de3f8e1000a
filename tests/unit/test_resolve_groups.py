"""One build from wheels serves the GPUs that one TensorFlow can; Pythons are the machine's."""

import dataclasses
import sys
from types import MappingProxyType

import pytest

from hpcdl import facts
from hpcdl.site import StackRequest
from hpcdl.stack.recipe import recipe_of
from hpcdl.stack.resolve import Resolver, computes_of, pythons, that_start
from hpcdl.stack.resolve_solution import as_text
from hpcdl.system.errors import BadInput, MissingPrerequisite
from tests.make.sites import site_of_gpus


def resolve(site, partition=None):
    return Resolver(site).resolve(partition)


def groups(site, stack):
    return Resolver(site).groups(stack)


GPUS = facts.load("gpus")["gpus"]
HERE = ("3.11", "3.13")
TRIED, ONLY = "tried as a whole: Compiled with NCCL, loaded", "resolved only: no build of these"


@pytest.fixture(autouse=True)
def two_pythons(monkeypatch):
    """hpcdl runs with 3.11; 3.13 is on PATH."""
    monkeypatch.setattr("hpcdl.stack.resolve.pythons", lambda: HERE)
    monkeypatch.setattr("hpcdl.stack.resolve.that_start", tuple)


def site_of(stack, **models):
    return site_of_gpus(models, stack)


def wheels(**more):
    return dataclasses.replace(StackRequest("tensorflow", "wheels", (), {}), **more)


def test_generations_share_a_build_where_one_tensorflow_serves_them():
    site = site_of(wheels(), k80="K80", p100="P100-PCIe", cpu=None, v100="V100-SXM2", k20="K20")
    found = groups(site, site.stacks["tensorflow"])
    assert found == (("cpu",), ("k80", "k20"), ("p100", "v100"))
    computes = [computes_of(site, site.stacks["tensorflow"], one) for one in found]
    assert computes == [(), ("3.5", "3.7"), ("6.0", "7.0")]


def test_a_newer_gpu_beside_an_old_one_gets_what_both_can_use_and_is_told_why():
    alone = site_of(wheels(), a100="A100-SXM4-40GB")
    shared = site_of(wheels(), p100="P100-PCIe", a100="A100-SXM4-40GB")
    assert resolve(alone, "a100")[0].versions["cudnn"] == "9.28.0.42"
    assert resolve(shared, "a100")[0].versions["cudnn"] == "9.10.2.21"
    a100, p100 = (dict(resolve(shared, name)[0].versions) for name in ("a100", "p100"))
    assert (a100.pop("driver"), p100.pop("driver")) == ("610", "580.65.06")
    assert a100 == p100
    said = " ".join(as_text([resolve(shared, "a100")[0]]).split())
    assert "sm_60, which the same build serves, needs cuDNN <= 9.10" in said


@pytest.mark.parametrize(
    ("models", "proof", "said"),
    [
        ({"p100": "P100-PCIe", "v100": "V100-SXM2"}, "compiled", TRIED),
        ({"v100": "V100-SXM2"}, "compiled", TRIED),
        ({"k80": "K80"}, "compiled", TRIED),
        ({"k80": "K80", "k20": "K20"}, "published", ONLY),
        ({"cpu": None}, "run", "tried as a whole"),
        ({"p100": "P100-PCIe", "a100": "A100-SXM4-40GB"}, "published", ONLY),
        ({"a100": "A100-SXM4-40GB"}, "published", ONLY),
        ({"h100": "H100-SXM5"}, "published", ONLY),
    ],
)
def test_what_was_built_as_a_whole_is_told_from_what_is_resolved_only(models, proof, said):
    """A build for fewer GPUs is a part of what was tried, one for more is not."""
    site = site_of(wheels(), **models)
    for name in models:
        found = resolve(site, name)[0]
        assert found.proof == proof
        assert said in as_text([found])
        recipe = recipe_of(site, site.stacks["tensorflow"], tuple(models))
        assert (recipe.proof, "resolved only" in recipe.source) == (proof, said == ONLY)


def test_variant_cpu_is_one_build_without_cuda_and_says_that_gpus_stay_idle():
    site = site_of(wheels(variant="cpu"), p100="P100-PCIe", k80="K80", cpu=None)
    assert groups(site, site.stacks["tensorflow"]) == (("p100", "k80", "cpu"),)
    found = resolve(site, "k80")[0]
    assert "cuda" not in found.versions
    assert found.versions["tensorflow"] == "2.21.0"
    assert any("the K80 stays idle" in note for note in found.notes)


def test_the_running_python_is_kept_unless_another_brings_a_newer_tensorflow(monkeypatch):
    site = site_of(wheels(), p100="P100-PCIe", k80="K80")
    for here, expected in ((HERE, "3.11 3.11"), (("3.13", "3.11"), "3.13 3.11")):
        monkeypatch.setattr("hpcdl.stack.resolve.pythons", lambda here=here: here)
        found = [resolve(site, name)[0].versions["python"] for name in ("p100", "k80")]
        assert found == expected.split()
    monkeypatch.setattr("hpcdl.stack.resolve.pythons", lambda: ("3.13",))
    found = resolve(site, "k80")[0]
    assert not found.fits
    assert "the Pythons of this machine" in as_text([found])


def test_a_python_that_does_not_start_or_is_too_old_for_hpcdl_is_none(tmp_path, monkeypatch):
    """pyenv has `python3.10` on PATH, which fails unless that version is chosen."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    broken = "3.11" if own == "3.10" else "3.10"
    for version, script in (("3.9", "exit 0"), (broken, "exit 127"), ("3.99", "exit 0")):
        (tmp_path / f"python{version}").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / f"python{version}").chmod(0o755)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pythons() == (own, "3.99", broken)
    assert that_start(pythons()) == (own, "3.99")
    site = site_of(wheels(pins={"python": broken}), p100="P100-PCIe")
    with pytest.raises(BadInput, match=f"python {broken}"):
        resolve(site, "p100")[0]


def test_a_stack_without_horovod_has_none_and_is_not_held_back_by_it():
    site = site_of(wheels(horovod=False), p100="P100-PCIe")
    found = Resolver(site).build(site.stacks["tensorflow"], ("p100",))
    assert found.fits
    assert "horovod" not in found.versions
    assert any("tf.distribute" in note for note in found.notes)


def test_a_partition_of_another_stack_is_not_served():
    site = site_of(wheels(), p100="P100-PCIe", v100="V100-SXM2")
    other = StackRequest("old", "wheels", ("v100",), {"tensorflow": "2.18"})
    parts = {**site.partitions, "v100": dataclasses.replace(site.partitions["v100"], stack="old")}
    site = dataclasses.replace(site, stacks={**site.stacks, "old": other}, partitions=parts)
    assert Resolver(site).members(site.stacks["tensorflow"]) == ("p100",)
    assert Resolver(site).members(other) == ("v100",)


def test_a_partition_is_told_of_its_own_driver_and_not_of_another_one_in_the_build():
    site = site_of(wheels(), p100="P100-PCIe", h100="H100-SXM5")
    old = dataclasses.replace(site.partitions["p100"], driver="535.104.05")
    site = dataclasses.replace(site, partitions={**site.partitions, "p100": old})
    assert groups(site, site.stacks["tensorflow"]) == (("p100", "h100"),)
    assert "driver 535.104.05 is older" in resolve(site, "p100")[0].notes[-1]
    assert not any("535.104.05" in note for note in resolve(site, "h100")[0].notes)


@pytest.mark.parametrize(
    ("v100", "a100", "refused"),
    [
        ("580.95.05", "590.48", ""),
        ("580.95.05", "390.00", "A100-SXM4-40GB needs driver >= 450"),
        ("590.48", "535.104", "V100-PCIe needs driver <= 580"),
        ("", "590.48", ""),
    ],
)
def test_each_gpu_of_a_mixed_partition_meets_the_driver_of_its_own_nodes(v100, a100, refused):
    """`resolve` of each model and the build say the same: no driver of others counts for a GPU."""
    site = site_of(wheels(), mixed="V100-PCIe", new="A100-SXM4-40GB")
    old, new = site.partitions.values()
    nodes = (
        dataclasses.replace(old, driver=v100 or None),
        dataclasses.replace(new, driver=a100, name="mixed"),
    )
    mixed = dataclasses.replace(old, groups=nodes)
    site = dataclasses.replace(site, partitions=MappingProxyType({"mixed": mixed}))
    found = resolve(site)
    assert [one.fits for one in found if one.wanted] == [not refused] * 2
    assert refused in " ".join(as_text(found).split())
    if refused:
        with pytest.raises(MissingPrerequisite) as caught:
            Resolver(site).build(site.stacks["tensorflow"], ("mixed",))
        assert refused.split(" needs ")[1] in " ".join(caught.value.details)
    else:
        assert Resolver(site).build(site.stacks["tensorflow"], ("mixed",)).fits
