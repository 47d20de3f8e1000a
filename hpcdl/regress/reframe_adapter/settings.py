"""ReFrame settings from the site file.

One system, the site; its partitions with their way of asking for GPUs, processor, devices,
features and extras. Environments: `hpcdl` for checks that bring the whole script of a user's job;
for checks that a team writes in ReFrame's own way `tensorflow`, where ReFrame itself loads the
published release, `gnu` and `gnu-mpi` with the compilers of the machine (`+openmp`, `+mpi`), and
`cuda` where the site says where CUDA is (`+cuda`). Everything is absolute, so that the file works
anywhere.
"""

from __future__ import annotations

import pprint
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl import __version__
from hpcdl.jobs.layout import selection
from hpcdl.jobs.script import gpu_request
from hpcdl.jobs.spec import Module
from hpcdl.site import Partition, Site
from hpcdl.slurm.execution import CLUSTER, ExecutionProfile
from hpcdl.system.resources import folder, templates
from hpcdl.system.text import bash_word

if TYPE_CHECKING:
    import jinja2

Modules = Mapping[str, Module]
"""What jobs load, by partition: different stacks may serve them."""


def reframe_name(text: str) -> str:
    """A name as ReFrame takes it: letters, digits, `_` and `-`, no digit first."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    return name if re.match(r"[A-Za-z_]", name) else f"_{name}"


def render_settings(
    site: Site,
    modules: Modules,
    *,
    partitions: Sequence[str] = (),
    prefix: Path | None = None,
    execution: ExecutionProfile = CLUSTER,
) -> str:
    """The text of a ReFrame settings file.

    `prefix` is where ReFrame keeps its files, WORK/checks/reframe by default; `execution` says how
    many jobs run at a time. Raises BadInput: an unknown partition.
    """
    chosen = site.by_groups(partitions)
    place = prefix or site.paths.work / "checks" / "reframe"
    return _template().render(
        site=site,
        version=__version__,
        system=reframe_name(site.name),
        checks=str(folder("reframe_checks")),
        prefix=str(place),
        database=str(place / "results.db"),
        max_jobs=execution.max_jobs,
        partitions=[partition_settings(site, one, modules[one.label], execution) for one in chosen],
        environments=environments(site, modules, [part.label for part in chosen]),
    )


def environments(site: Site, modules: Modules, partitions: Sequence[str]) -> list[dict[str, Any]]:
    """The environments that depend on the site; `tensorflow` once per module that there is.

    What ReFrame knows of each, why it is there, and the partitions that it is for, all by default.
    """
    users: dict[Module, list[str]] = {}
    for name in partitions:
        users.setdefault(modules[name], []).append(name)
    rows: list[dict[str, Any]] = [
        {
            "name": "tensorflow",
            "comment": "the published release, loaded by ReFrame",
            "prepare_cmds": _prepare(site, module),
            "features": ["tensorflow", "python"],
            "partitions": names if len(users) > 1 else (),
        }
        for module, names in users.items()
    ]
    home = next((one.cuda_home for one in site.stacks.values() if one.cuda_home), None)
    gpus = [one.label for one in site.by_groups(partitions) if one.gpu]
    if home and gpus:
        cuda = {
            "name": "cuda",
            "comment": "the site's CUDA",
            "prepare_cmds": [f"export PATH={bash_word(str(home / 'bin'))}:$PATH"],
            "features": ["cuda", "openmp"],
            "nvcc": str(home / "bin" / "nvcc"),
            "partitions": gpus,
        }
        rows.append(cuda)
    return rows


def _prepare(site: Site, module: Module) -> list[str]:
    found = [f"source {bash_word(str(site.paths.lmod_init))}", "module --force purge"]
    if module.folder is not None:
        found.append(f"module use {bash_word(str(module.folder))}")
    return [*found, *(f"module load {bash_word(name)} || exit 20" for name in module.names)]


def partition_settings(
    site: Site, partition: Partition, module: Module, execution: ExecutionProfile
) -> dict[str, Any]:
    """One partition in ReFrame's terms."""
    gpu = partition.gpu
    device = (
        {"type": "gpu", "model": gpu.model, "arch": gpu.compute, "num_devices": gpu.per_node}
        if gpu
        else None
    )
    each = f"{gpu.per_node} x {gpu.model}" if gpu else f"{partition.cores} cores"
    features = (*partition.features, "gpu" if gpu else "cpu", site.container)
    return {
        "name": reframe_name(partition.label),
        "descr": f"{partition.nodes} nodes, {each} each",
        "access": _access(site, partition),
        "resources": _resources(site, partition),
        "processor": {
            "arch": partition.target,
            "num_cpus": partition.cpus,
            "num_cpus_per_core": partition.threads_per_core,
            "num_sockets": partition.sockets,
            "num_cpus_per_socket": partition.cpus // partition.sockets,
        },
        "devices": [device] if device else [],
        "features": [*dict.fromkeys(map(reframe_name, filter(None, features)))],
        # Pyxis is a plugin of srun, which ReFrame knows nothing of.
        "containers": [{"type": "Apptainer"}] if site.container == "apptainer" else [],
        "extras": {
            "hpcdl_site": str(site.source.absolute()),
            "hpcdl_partition": partition.label,
            "hpcdl_modules": list(module.names),
            "hpcdl_module_directory": str(module.folder) if module.folder else "",
            "hpcdl_release": module.release or "",
            "reference_set": partition.reference_set,
            "hpcdl_execution": execution.name,
            "nodes": partition.nodes,
            "gpu": 1 if gpu else 0,
            "gpus_per_node": partition.gpus_per_node,
            "memory_gb": partition.memory_gb,
        },
    }


def _access(site: Site, partition: Partition) -> list[str]:
    account, qos = partition.account or site.slurm.account, partition.qos or site.slurm.qos
    options = [f"--partition={partition.name}"]
    options += [one.replace('"', "") for one in selection(partition, 1)]
    options += [f"--account={account}"] if account else []
    return options + ([f"--qos={qos}"] if qos else [])


def _resources(site: Site, partition: Partition) -> list[dict[str, Any]]:
    """`_rfm_gpu` is what ReFrame fills from a check's `num_gpus_per_node`."""
    memory = {"name": "memory", "options": ["--mem={size}"]}
    if partition.gpu is None:
        return [memory]
    option = gpu_request(site, partition, 1).removesuffix("1") + "{num_gpus_per_node}"
    return [{"name": "_rfm_gpu", "options": [option]}, memory]


def _template() -> jinja2.Template:
    environment = templates("reframe")
    environment.filters["py"] = _literal
    environment.filters["targets"] = lambda names, system: (
        [f"{system}:{reframe_name(one)}" for one in names] or [system]
    )
    environment.filters["for_partition"] = lambda environments, partition: [
        *dict.fromkeys(
            one["name"]
            for one in environments
            if partition in map(reframe_name, one.get("partitions") or (partition,))
        )
    ]
    return environment.get_template("settings.py.j2")


def _literal(value: Any, indent: int = 0) -> str:
    """A Python literal, broken over lines at `indent` where it is long."""
    plain = list(value) if isinstance(value, tuple) else value
    text = pprint.pformat(plain, width=max(40, 100 - indent), sort_dicts=False)
    return textwrap.indent(text, " " * indent).strip()
