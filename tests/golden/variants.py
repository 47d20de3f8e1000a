"""Scripts of other launchers, of containers, staging and arrays, on one release each."""

from dataclasses import replace
from pathlib import Path

from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.jobs.launch import with_version
from hpcdl.jobs.script import ArrayOf
from hpcdl.jobs.spec import TRAIN
from tests.golden.matrix import MODULE, bare, cells
from tests.make.sites import shipped

RELEASE = "24.05"
_BASE = JobSpec("a100", nodes=2, program=("python", "train.py", "--lr", "0.1"))
_STAGED = replace(_BASE, program=TRAIN, data="/data/imagenet", stage=True)
_TRUSTED = {"launcher": "multiworker", "trusted_network": True}
_IN_IMAGE = replace(_BASE, container="/images/tensorflow.sif")

# Name -> the job, and the container runtime, or the form of GPU requests, of the site.
VARIANTS = {
    "launcher-horovod": (_BASE, ""),
    "launcher-horovod-mpirun": (replace(_BASE, launcher="horovod-mpirun"), "apptainer"),
    "launcher-multiworker": (replace(_BASE, **_TRUSTED), "apptainer"),
    "launcher-single": (replace(_BASE, nodes=1, launcher="single"), "apptainer"),
    "launcher-mpi": (JobSpec("cpu", tasks=64, nodes=2, launcher="mpi", program=("./a.out",)), ""),
    "launcher-torch": (replace(_BASE, launcher="torch", chdir=Path("/home/me/run")), ""),
    "launcher-torchrun": (replace(_BASE, launcher="torchrun"), ""),
    "launcher-jax": (replace(_BASE, launcher="jax"), ""),
    "launcher-plain": (JobSpec("cpu", tasks=64, launcher="plain", program=("./a.out",)), ""),
    "container-apptainer": (_IN_IMAGE, "apptainer"),
    "container-charliecloud": (
        replace(_IN_IMAGE, container="/images/tensorflow", files=(Path("/home/me"),)),
        "charliecloud",
    ),
    "container-apptainer-mpirun": (replace(_IN_IMAGE, launcher="horovod-mpirun"), "apptainer"),
    "container-apptainer-multiworker": (replace(_IN_IMAGE, **_TRUSTED), "apptainer"),
    "container-pyxis": (replace(_IN_IMAGE, container="nvcr.io#nvidia/tensorflow:24.03"), "pyxis"),
    "container-apptainer-staged": (replace(_STAGED, container="/images/tf.sif"), "apptainer"),
    "container-pyxis-staged": (replace(_STAGED, container="/images/tf.sqsh"), "pyxis"),
    "data-staged": (_STAGED, "apptainer"),
    "array": (_BASE, "apptainer"),
    "no-preflight": (replace(_BASE, preflight=False), "apptainer"),
}
# Of a site whose partitions have several GPU models: how Slurm is told which one is meant.
_MIXED = JobSpec("typed", gpus=8, gpu_model="L40S", program=("python", "train.py"))
VARIANTS |= {
    "gpu-model-gpus-per-node": (_MIXED, ""),
    "gpu-model-gres": (_MIXED, "gres"),
    "gpu-model-constraint": (replace(_MIXED, partition="untyped", gpu_model="t4"), ""),
}


def script(name):
    """A variant's script, without what differs by release of hpcdl."""
    spec, runtime = VARIANTS[name]
    if spec.gpu_model:
        mixed = shipped("mixed")
        slurm = replace(mixed.slurm, gpu_request=runtime or mixed.slurm.gpu_request)
        return bare(render_script(replace(mixed, slurm=slurm), spec, MODULE).text)
    site = shipped("a100-h100", work=Path("/work/me"), datasets=Path("/data"))
    site = with_version(replace(site, container=runtime or None), RELEASE)
    module = Module(()) if spec.container else MODULE
    sweep = Path("/work/me/sweeps/lr")
    array = ArrayOf(8, sweep / "array-000.args", 4) if name == "array" else None
    return bare(render_script(site, spec, module, array).text)


def all_scripts():
    """Every script that is kept, by name."""
    return cells() | {name: script(name) for name in VARIANTS}
