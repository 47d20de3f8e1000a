"""What the cluster has that a script may name, and how it is set: from the site file, or its Slurm.

None says that nobody knows, and nothing is checked against it. A site file lists its partitions,
the GPUs in them and, where it is filled in, their features; accounts, QOS and other GRES are
Slurm's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.site.model import Site

Names = frozenset[str] | None


@dataclass(frozen=True)
class Cluster:
    """The names of a cluster's things, and its settings.

    `gpu_types` are types in Gres (`p100` of gpu:p100:4), `plugin_options` the long options, without
    dashes, that plug-ins (SPANK) add, `settings` what is known of slurm.conf: all, little or none.
    """

    where: str = ""
    partitions: Names = None
    accounts: Names = None
    qos: Names = None
    gres: Names = None
    gpu_types: Names = None
    features: Names = None
    plugin_options: Names = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def sets(self, key: str, word: str) -> bool:
        """Whether a setting is known and holds a word: ("TaskPlugin", "affinity")."""
        return word in self.settings.get(key, "").lower()


def of_site(site: Site) -> Cluster:
    """What a site file says."""
    groups = [group for part in site.partitions.values() for group in part.node_groups]
    gpus = [group.gpu for group in groups if group.gpu]
    typed = all(gpu.gres_type for gpu in gpus)
    features = {name for group in groups for name in group.features}
    complete = all(group.features for group in groups)
    return Cluster(
        where=f"'{site.name}'",
        partitions=frozenset(site.partitions),
        gpu_types=frozenset(gpu.gres_type or "" for gpu in gpus) if gpus and typed else None,
        features=frozenset(features) if complete else None,
        plugin_options=frozenset(site.slurm.plugin_options) or None,
        settings={
            "SelectType": f"select/{site.slurm.select or ''}",
            "TaskPlugin": ",".join(site.slurm.task_plugins),
        },
    )


def of_live() -> Cluster:
    """What the Slurm on PATH says.

    Raises:
        MissingPrerequisite: there is none, or it does not answer.
    """
    from hpcdl.slurm import client

    config, nodes = client.config(), client.nodes()
    gres = [one for node in nodes for one in node.gres.split(",") if one]
    gpu_types = {kind for node in nodes for kind, _ in node.gpus if kind}
    enforced = "associations" in config.get("AccountingStorageEnforce", "").lower()
    return Cluster(
        where=f"'{config['ClusterName'].split()[0]}'",
        partitions=frozenset(one.name for one in client.partitions()),
        accounts=_names(client.own_accounts()) if enforced else None,
        qos=_names(client.all_qos()) if enforced else None,
        gres=frozenset(one.partition(":")[0].partition("(")[0] for one in gres),
        gpu_types=frozenset(gpu_types) or None,
        features=frozenset(name for node in nodes for name in node.features),
        plugin_options=frozenset(client.plugin_options()),
        settings=config,
    )


def _names(found: Iterable[str]) -> Names:
    return frozenset(found) or None
