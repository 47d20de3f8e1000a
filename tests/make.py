"""What tests build: one builder per kind of thing."""

from dataclasses import replace

import pytest

from hpcdl.cluster import lifecycle, state
from hpcdl.cluster.teardown import silent
from hpcdl.regress.history import Result
from hpcdl.regress.references import Reference
from hpcdl.site import load_site
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput
from hpcdl.workflows.embedded import request

CPU = "cpu: {nodes: 2, sockets: 1, cores_per_socket: 4, memory_gb: 16}"
P100 = (
    "p100: {nodes: 2, gpu: {model: P100-PCIe, gres_type: p100, per_node: 4}, sockets: 2, "
    "cores_per_socket: 8, memory_gb: 60}"
)


def takes_every_job(monkeypatch):
    """A Slurm that has room for every job and refuses none."""
    limits = client.SubmitLimits(1001, 10_000, "MaxJobCount=10001")
    monkeypatch.setattr(client, "submit_limits", lambda _: limits)
    monkeypatch.setattr(client, "would_run", lambda _: None)


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


def refused_site(file, text, *changes):
    """What a person reads about a site file that is refused: a text, and pairs (old, new)."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_site(file)
    return caught.value.render()


def up(site, *, directory=None, say=silent, **wished):
    """Start the embedded cluster of a site, as `hpcdl cluster up` does."""
    return lifecycle.up(request(site, **wished), directory or state.state_directory(site.name), say)


def reference(**changes):
    """A measured reference of a check."""
    plain = {"check": "throughput", "case": "resnet50", "partition": "p100", "metric": "rate"}
    plain |= {"value": 1000.0, "unit": "images/s", "lower": -0.2, "runs": 5, "spread": 0.01}
    plain |= {"source": "a test", "proof": "run", "date": "2026-01-01"}
    return Reference(**plain | changes)


METRIC = {"name": "images_per_second", "value": 90.5, "unit": "images/s", "wanted": True}
METRIC |= {"reference": 100.0, "low": 80.0, "high": None}


def verdict(status="PASS", reason="", **changes):
    """A verdict as verdicts.json has it."""
    plain = {"check": "throughput", "case": "mlp", "partition": "p100", "metrics": [METRIC]}
    plain |= {"status": status, "reason": reason, "waived": False, "ok": status == "PASS"}
    return {**plain, "seconds": 1.5, **changes}


def result(time="2026-06-01T00:00:00+00:00", value=1000.0, **changes):
    """A result of the history; `time` is one of ISO 8601, or a datetime."""
    at = time if isinstance(time, str) else time.isoformat(timespec="seconds")
    which = (f"r-{at}", at, "throughput", "resnet50", "p100", "rate")
    return replace(Result(*which, value, "images/s", "PASS"), **changes)


def plan_build(site, name=None, partition=None):
    """The one build of a stack, or of one of its partitions; what keeps it from one is raised."""
    from hpcdl.stack.build import plan_stack

    plans, blocked = plan_stack(site, name, partition=partition)
    for refused in blocked:
        raise refused.fault
    (plan,) = plans
    return plan
