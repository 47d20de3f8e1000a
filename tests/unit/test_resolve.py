"""`hpcdl stack resolve`: the newest working set per GPU, as the table of what fits which GPU."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from hpcdl import facts
from hpcdl.site import SpackSettings, StackRequest, load_site
from hpcdl.site.model import External
from hpcdl.stack.resolve import Resolver, why_not
from hpcdl.stack.resolve_facts import known
from hpcdl.stack.resolve_solution import Setting, as_data, as_text, solve
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import folder
from tests.make.sites import site_of_gpus

SITES = folder("templates") / "sites"


def resolve(site, partition=None, backend=None):
    return Resolver(site).resolve(partition, backend)


GPUS = facts.load("gpus")["gpus"]


def resolve_one(site, partition, backend=None):
    """The resolution of the stack that a partition gets, or of one backend there."""
    return resolve(site, partition, backend)[0]


@pytest.fixture(autouse=True)
def every_python(monkeypatch):
    """A machine with every Python, whichever runs the tests."""
    found = ("3.13", "3.12", "3.11", "3.10")
    monkeypatch.setattr("hpcdl.stack.resolve.pythons", lambda: found)


def one_gpu(model, driver=None, *, pins=None, pmix=None, gcc=()):
    """A site with one partition `x`, and a stack per backend."""
    stacks = [StackRequest(way, way, (), pins or {}) for way in ("wheels", "spack")]
    site = site_of_gpus({"x": model}, *stacks, driver=driver)
    has = [*(("gcc", version) for version in gcc), *([("pmix", pmix)] if pmix else [])]
    return dataclasses.replace(
        site,
        slurm=dataclasses.replace(site.slurm, pmix=pmix),
        spack=SpackSettings(externals=tuple(External(*one, Path("/usr")) for one in has)),
    )


def versions(model, backend, **more):
    return resolve_one(one_gpu(model, **more), "x", backend).versions


@pytest.mark.parametrize(
    ("backend", "models", "expected"),
    [
        ("spack", "K20 K80", "2.14.1 11.8.0 8.7.0.84 2.21.5"),
        ("spack", "P40 P100-PCIe P100-SXM2 V100-SXM2", "2.20.0 12.6.3 9.10.2.21 2.29.7"),
        ("spack", "T4 A100-SXM4-80GB H100-SXM5 H200-SXM", "2.20.0 12.6.3 9.21.0.82 2.29.7"),
        ("wheels", "K80", "2.14.1 11.8.0 8.7.0.84"),
        ("wheels", "P40 P100-PCIe V100-PCIe", "2.21.0 12.9.1 9.10.2.21"),
        ("wheels", "A100-SXM4-40GB H200-SXM", "2.21.0 12.9.1 9.28.0.42"),
    ],
)
def test_what_each_gpu_gets(backend, models, expected):
    """TensorFlow, CUDA, cuDNN, and by Spack NCCL."""
    names = ("tensorflow", "cuda", "cudnn", "nccl")[: len(expected.split())]
    for model in models.split():
        found = versions(model, backend)
        assert [found[name] for name in names] == expected.split(), model


@pytest.mark.parametrize(
    ("model", "backend", "more", "expected"),
    [
        # Python ends where Horovod's launcher does, unless that is left out as by our wheels.
        ("H100-SXM5", "spack", {}, {"python": "3.11"}),
        (None, "wheels", {}, {"python": "3.13", "tensorflow": "2.21.0"}),
        # Without a driver in the site file, the newest that works is named.
        ("K80", "spack", {}, {"driver": "470"}),
        ("P100-PCIe", "spack", {}, {"driver": "580"}),
        # Open MPI 5 needs a newer PMIx than an old Slurm has.
        ("P100-PCIe", "spack", {"pmix": "3.2"}, {"openmpi": "4.1.8"}),
        ("P100-PCIe", "spack", {"pmix": "4.2"}, {"openmpi": "5.0.10"}),
        # The compilers of the site are the candidates.
        ("H100-SXM5", "spack", {"gcc": ("12.2.0", "11.3.0")}, {"gcc": "12.2.0"}),
        ("K80", "spack", {"gcc": ("12.2.0", "11.3.0")}, {"gcc": "11.3.0"}),
        ("K80", "spack", {"gcc": ("12.5.0", "11.3.0")}, {"gcc": "11.3.0"}),
        # A pin is kept, and the rest follows it.
        (
            "P100-PCIe",
            "spack",
            {"pins": {"tensorflow": "2.18"}},
            {"tensorflow": "2.18.1", "bazel": "6.5.0"},
        ),
    ],
)
def test_what_the_machine_has_and_the_site_pins_decides(model, backend, more, expected):
    found = versions(model, backend, **more)
    assert all(found[name].startswith(version) for name, version in expected.items())


def test_a_cpu_partition_has_no_cuda_and_the_newest_wheels_have_run_there():
    resolution = resolve_one(one_gpu(None), "x", "wheels")
    assert not {"cuda", "cudnn", "nccl", "driver"} & set(resolution.versions)
    assert resolution.proof == "run"


@pytest.mark.parametrize("compute", ["3.0", "3.2", "10.0", "10.3", "11.0", "12.1"])
def test_a_gpu_that_no_toolkit_of_spack_s_tensorflow_compiles_for_gets_nothing(compute):
    """Spack's TensorFlow takes CUDA up to 12.6: a site may describe a GPU beyond both ends."""
    assert solve(Setting("spack", compute))[0] == ()


@pytest.mark.parametrize(
    ("model", "driver", "through"),
    [
        ("K80", None, ["cuda", "cuda"]),
        ("P100-PCIe", "470.256.02", ["driver", "cuda", "driver"]),  # a driver older than CUDA 12
    ],
)
def test_the_limit_of_tensorflow_is_the_chain_through_cuda_or_the_driver(model, driver, through):
    resolution = resolve_one(one_gpu(model, driver), "x", "spack")
    assert resolution.fits
    assert resolution.versions["tensorflow"] == "2.14.1"
    (limit,) = (c for c in resolution.choices if c.component == "tensorflow")
    assert limit.newer == "2.15.0"
    assert [rule.need.variable for rule in limit.chain] == through
    assert model != "K80" or "removed in CUDA 12.0" in limit.chain[0].why


def test_every_choice_has_a_limit_with_sources_or_is_the_newest_known():
    for choice in (c for model in GPUS for one in resolve(one_gpu(model)) for c in one.choices):
        if not choice.newer:
            assert choice.version == known().components[choice.component].known()[0]
        else:
            assert choice.chain
            assert all(r.source for r in choice.chain if r.origin != "choice")


@pytest.mark.parametrize(
    ("model", "more", "word"),
    [
        ("K80", {"driver": "535.104.05"}, "R470 is the last"),
        ("P100-PCIe", {"driver": "595.10"}, "R580 is the last"),
        ("V100-SXM2", {"driver": "590.48.01"}, "R580 is the last"),
        ("A100-SXM4-40GB", {"driver": "440.33.01"}, "Ampere"),
        ("K80", {"driver": "390.87"}, "CUDA 11.x runs from driver"),
        ("K80", {"gcc": ("12.2.0",)}, "gcc"),
    ],
)
def test_a_driver_or_compilers_that_do_not_fit_are_named_beside_the_rest(model, more, word):
    resolution = resolve_one(one_gpu(model, **more), "x", "spack")
    assert not resolution.fits
    rules = [rule for chain in resolution.problems for rule in chain]
    assert any(word in rule.why or word == rule.need.variable for rule in rules)
    assert resolution.versions["tensorflow"]


def test_wheels_for_cpus_of_another_family_bring_a_note_of_their_own():
    """Power9 and Grace nodes were promised the wheels of x86_64 without a word."""
    site = site_of_gpus({"zen": None, "grace": None}, StackRequest("tf", "wheels", (), {}))
    grace = dataclasses.replace(site.partitions["grace"], target="neoverse_v2")
    site = dataclasses.replace(site, partitions={**site.partitions, "grace": grace})
    words = "its target neoverse_v2 is no x86_64"
    assert words not in str(resolve_one(site, "zen", "wheels").notes)
    assert words in str(resolve_one(site, "grace", "wheels").notes)
    assert words not in str(resolve_one(site, "grace", "spack").notes)
    assert "zen, grace" not in as_text(resolve(site, backend="wheels"))


def test_an_older_driver_of_the_same_major_release_brings_the_note_on_ptx():
    notes = resolve_one(one_gpu("P100-PCIe", "535.183.06"), "x", "wheels").notes
    assert any("PTX of CUDA 12.9.1 is not translated" in note for note in notes)


def by_spack(pins):
    return resolve(one_gpu("K80", pins=pins), backend="spack")


def from_wheels(pins):
    return Resolver(one_gpu(None)).build(StackRequest("x", "wheels", (), pins), ("x",))


@pytest.mark.parametrize(
    ("ask", "pins", "words"),
    [
        (by_spack, {"tensorflow": "2.18"}, "do not fit partition 'x'"),
        (by_spack, {"tensorflow": "2.14", "cuda": "12.2"}, "cuda 12.2"),
        (
            from_wheels,
            {"tensorflow": "2.15", "keras": "3"},
            "needs Keras 2.15|wheels for Python 3.9",
        ),
        *(
            (ask, pins, words)
            for ask in (by_spack, from_wheels)
            for pins, words in [
                ({"tensorflow": "2.81"}, "which is not listed"),
                ({"tensorflo": "2.18"}, "no component of a stack"),
            ]
        ),
    ],
)
def test_contradictory_pins_and_unknown_versions_are_bad_input(ask, pins, words):
    with pytest.raises(BadInput) as caught:
        ask(pins)
    assert re.search(words, caught.value.render())
    assert caught.value.hint


def test_what_only_a_gpu_rules_out_does_not_matter_to_wheels_for_cpus():
    assert from_wheels({"tensorflow": "2.21", "cuda": "11.8"}).versions["tensorflow"] == "2.21.0"


@pytest.mark.parametrize(
    ("question", "said"),
    [("tensorflow@2.18", "K80 needs CUDA <= 11.8"), ("driver@535", "R470 is the last")],
)
def test_why_not_answers_with_the_chain(question, said):
    (answer,) = why_not(one_gpu("K80"), question, "x", "spack")
    assert not answer.fits
    assert said in as_text([answer])


def test_why_not_answers_with_the_set_that_results():
    (older,) = why_not(one_gpu("K80"), "tensorflow@2.14.0", "x", "spack")
    assert (older.fits, older.versions["tensorflow"]) == (True, "2.14.0")
    assert why_not(one_gpu("K80"), "driver@470", "x", "spack")[0].fits
    with pytest.raises(BadInput, match="no part of a stack"):
        why_not(one_gpu(None), "cudnn@9.3", "x", "wheels")


def test_every_fact_has_a_source_and_a_known_proof_level():
    for rule in known().rules:
        assert rule.source, rule
        assert rule.proof in facts.PROOFS, rule
    for component in known().components.values():
        assert component.source
        assert set(component.proof.values()) <= set(facts.PROOFS)


def test_every_source_a_facts_file_declares_is_in_its_list():
    for name in ("tensorflow", "cuda", "cudnn", "nccl", "horovod", "toolchain"):
        file = facts.load(name)
        rows = [*file["rules"], *file["components"].values(), *file.get("wheels", ())]
        assert {row["source"] for row in rows} <= set(file["sources"])


@pytest.mark.parametrize("name", ["pi", "p100-v100-k80", "a100-h100", "embedded"])
def test_the_shipped_sites_resolve_with_nothing_in_the_way(name, hpcdl):
    assert "sources" in hpcdl("stack", "resolve", "--site", name).out


def test_the_command_says_no_for_a_version_that_does_not_fit(hpcdl):
    words = ["--site", "pi", "--partition", "k80", "--why-not", "tensorflow@2.18", "--json"]
    (answer,) = json.loads(hpcdl("stack", "resolve", *words, code=1).out)["resolutions"]
    assert answer["problems"][0][0]["component"] == "cuda"


@pytest.mark.parametrize(
    ("model", "pins", "component", "proof"),
    [
        ("P100-PCIe", {}, "tensorflow", "solved"),
        ("P100-PCIe", {"cuda": "12.5"}, "cuda", "published"),
        (None, {}, "tensorflow", "solved"),
        (None, {"tensorflow": "2.19"}, "tensorflow", "published"),
    ],
)
def test_only_what_spack_has_solved_is_called_solved(model, pins, component, proof):
    choices = resolve_one(one_gpu(model, pins=pins), "x", "spack").choices
    assert [c.proof for c in choices if c.component == component] == [proof]


def test_doubtful_facts_are_shown_as_doubtful():
    older = one_gpu("P100-PCIe", pins={"tensorflow": "2.17"})
    assert "was tried, doubtful" in " ".join(as_text(resolve(older, backend="spack")).split())


def test_text_and_data_tell_the_same_versions():
    found = resolve(load_site(SITES / "pi.yaml"))
    text = as_text(found)
    for row in as_data(found)["resolutions"]:
        if row["wanted"]:
            assert all(version in text for version in row["versions"].values())
