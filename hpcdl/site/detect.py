"""`hpcdl site init`: a commented site.yaml from a live Slurm.

What Slurm cannot tell (paths, network, scratch, driver) is written as a comment to fill in;
what it leaves open about a GPU is named, so that no guess is published.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcdl import facts
from hpcdl.site.gpu_models import model_of_type
from hpcdl.site.live import LiveCluster, LivePartition
from hpcdl.system.resources import folder
from hpcdl.system.text import nearest


@dataclass(frozen=True)
class Draft:
    """A site file and what a person must still look at."""

    text: str
    questions: tuple[str, ...]


def draft(cluster: LiveCluster) -> Draft:
    """The site file of a cluster. Pure but for reading the template."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("templates") / "sites"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - the output is YAML
    )
    models = {part.name: model_of_type(part.gpu_type) for part in cluster.partitions}
    typed = any(part.gpu_type for part in cluster.partitions)
    text = environment.get_template("site.yaml.j2").render(
        cluster=cluster, models=models, typed=typed, known=sorted(facts.load("gpus")["gpus"])
    )
    return Draft(text, tuple(_questions(cluster, models)))


def _questions(cluster: LiveCluster, models: dict[str, str | None]) -> list[str]:
    found = []
    for part in cluster.partitions:
        if part.gpus_per_node and models[part.name] is None:
            said = f"'{part.gpu_type}'" if part.gpu_type else "no type"
            close = nearest(part.gpu_type or "", facts.load("gpus")["gpus"])
            hint = f", {close}?" if close else ""
            found.append(f"partitions.{part.name}.gpu.model: Slurm says {said}{hint}")
        if part.odd_nodes:
            found.append(_odd(part))
    return found


def _odd(part: LivePartition) -> str:
    names = ", ".join(part.odd_nodes[:5]) + (" ..." if len(part.odd_nodes) > 5 else "")
    return f"partitions.{part.name}: nodes that differ from the others: {names}"
