"""Sites: those that come with hpcdl, changed; small ones as files; those of some GPUs only."""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from hpcdl import facts
from hpcdl.cluster import lifecycle, state
from hpcdl.cluster.teardown import silent
from hpcdl.results.gpus import Gpu
from hpcdl.site import find_site_file, load_site
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput
from hpcdl.workflows.embedded import request

CPU = "cpu: {nodes: 2, sockets: 1, cores_per_socket: 4, memory_gb: 16}"
P100 = (
    "p100: {nodes: 2, gpu: {model: P100-PCIe, gres_type: p100, per_node: 4}, sockets: 2, "
    "cores_per_socket: 8, memory_gb: 60}"
)
MIXED = Path(__file__).parents[1] / "golden" / "mixed.yaml"
"""Its partitions have nodes with several GPU models."""


def shipped(name="embedded", **paths):
    """A site that comes with hpcdl, or `mixed`; some of its paths elsewhere."""
    site = load_site(MIXED if name == "mixed" else find_site_file(name))
    return replace(site, paths=replace(site.paths, **paths))


def small_site(prefix, *, lmod=False):
    """The embedded site with its software below `prefix`.

    Without `lmod` it is a site where Lmod is elsewhere: quick, for nothing asks Lmod then.
    """
    elsewhere = {} if lmod else {"lmod_init": prefix / "lmod" / "init" / "bash"}
    return shipped(prefix=prefix, **elsewhere)


def mixed_site(prefix):
    """A private site whose partitions have nodes with several GPU models."""
    return replace(shipped("mixed", prefix=prefix), private=True)


def site_of_gpus(models, *stacks, driver=None, **changes):
    """A site whose partitions have these GPUs, None for none, and these stacks; one serves all."""
    plain = shipped("p100-v100-k80")
    serves = stacks[0].name if len(stacks) == 1 else None
    rows = facts.load("gpus")["gpus"]
    parts = {
        name: replace(
            plain.partitions["p100"],
            name=name,
            stack=serves,
            driver=driver,
            gpu=Gpu(model, name, 4, rows[model]["compute"], 16.0) if model else None,
        )
        for name, model in models.items()
    }
    return replace(
        plain,
        partitions=MappingProxyType(parts),
        default_partition=next(iter(parts)),
        stacks=MappingProxyType({stack.name: stack for stack in stacks}),
        **changes,
    )


def site_text(*partitions, work="/tmp/hpcdl-none", name="small", **more):
    """A site file: partitions as `NAME: {...}`, all its paths below one, further keys as text."""
    lines = [
        "schema: 1",
        f"name: {name}",
        'slurm: {version: "22.05.8"}',
        f"paths: {{prefix: {work}/prefix, work: {work}/work, datasets: {work}/data}}",
        *(f"{key}: {text}" for key, text in more.items()),
        "partitions:",
        *(f"  {partition}" for partition in partitions or (CPU,)),
    ]
    return "\n".join(lines) + "\n"


def site_file(folder, *partitions, **more):
    """The path of a new site file in a folder."""
    path = folder / f"{more.get('name', 'small')}.yaml"
    path.write_text(site_text(*partitions, **more))
    return path


def edited(text, *changes):
    """A text with pairs (old, new) replaced; each old one must be there."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, str(new))
    return text


def embedded_file(folder, *changes):
    """The embedded site's file in a folder, with texts in it replaced."""
    (folder / "site.yaml").write_text(edited(find_site_file("embedded").read_text(), *changes))
    return folder / "site.yaml"


def refused_site(file, text, *changes):
    """What a person reads about a site file that is refused: a text, and pairs (old, new)."""
    file.write_text(edited(text, *changes))
    with pytest.raises(BadInput) as caught:
        load_site(file)
    return caught.value.render()


def up(site, *, directory=None, say=silent, **wished):
    """Start the embedded cluster of a site, as `hpcdl cluster up` does."""
    return lifecycle.up(request(site, **wished), directory or state.state_directory(site.name), say)


def takes_every_job(monkeypatch):
    """A Slurm that has room for every job and refuses none."""
    limits = client.SubmitLimits(1001, 10_000, "MaxJobCount=10001")
    monkeypatch.setattr(client, "submit_limits", lambda: limits)
    monkeypatch.setattr(client, "would_run", lambda _: None)
