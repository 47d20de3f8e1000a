"""What only a GPU can show: run where one is found, skipped with the reason elsewhere.

The release is one that was published before: HPCDL_SITE names the site, and its current release
must be for GPUs, as `hpcdl stack build` and `publish` make it.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdl.site import find_site_file, load_site
from hpcdl.stack.release import current_release
from hpcdl.stack.verify import in_module
from hpcdl.system.errors import HpcdlError

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

SUM = """
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
with tf.device("/GPU:0"):
    total = hvd.allreduce(tf.fill([1 << 20], 1.0 + hvd.rank()), op=hvd.Sum)
print("SEEN", hvd.size(), float(total[0]), total.device.rpartition("/")[2], len(gpus))
"""


@pytest.fixture(scope="module")
def gpus():
    if not Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is None:
        pytest.skip("there is no NVIDIA driver here")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    count = len(re.findall(r"^GPU \d+", listed.stdout, re.MULTILINE))
    if count == 0:
        pytest.skip("the NVIDIA driver sees no GPU")
    return count


@pytest.fixture(scope="module")
def published(gpus):
    try:
        site = load_site(find_site_file(None))
        release = current_release(site)
    except HpcdlError as fault:
        pytest.skip(f"no site here: {fault.message}")
    if release is None or "cuda" not in release.versions:
        pytest.skip(f"site '{site.name}' has published no release for GPUs")
    return site, release


def test_the_module_loads_without_a_word_about_the_driver(published):
    site, release = published
    told = in_module(site, release, ["python", "-c", "import tensorflow"])
    assert told.ok
    assert "does not fit this machine" not in told.stderr


def test_tensorflow_sees_every_gpu(published, gpus):
    site, release = published
    program = "import tensorflow as tf; print('SEEN', len(tf.config.list_physical_devices('GPU')))"
    assert f"SEEN {gpus}" in in_module(site, release, ["python", "-c", program]).stdout


def test_ranks_sum_on_their_gpus_over_nccl(published, gpus):
    """As many ranks as GPUs: NCCL refuses two on one."""
    site, release = published
    launch = ["mpirun", "--oversubscribe", "-np", str(gpus), "env", "NCCL_DEBUG=INFO"]
    told = in_module(site, release, [*launch, "python", "-c", SUM])
    lines = re.findall(r"SEEN (\d+) ([\d.]+) device:(GPU):0 (\d+)", told.stdout)
    assert lines == [(str(gpus), str(gpus * (gpus + 1) / 2), "GPU", str(gpus))] * gpus
    assert f"NCCL version {release.versions['nccl']}" in told.stdout
