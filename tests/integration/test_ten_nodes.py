"""A cluster of ten nodes, in an hour: the page, word by word, on ten emulated nodes.

An account of its own, its directories, hpcdl's wheel in a virtual environment, accounting, the
profile of every login shell, a user who trains, and the first night. /etc and /home are copies for
the test. What the page has of GPUs is run by tests/integration/test_gpu_build.py: this stack is for
the CPUs that the nodes really have.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdl.cluster import NAMESPACES
from hpcdl.cluster.needs import choose_mode
from tests.homes import short_home
from tests.integration.conftest import clean_environment
from tests.shell_pages import Shell, steps

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/howto-cluster.md").read_text()
SITE = """\
schema: 1
name: ten
slurm: {version: "22.05.8", gpu_request: gpus-per-node, gpu_typed: true, mpi: pmix, pmix: "4.2",
        accounting: true}
paths: {prefix: /nowhere, work: /nowhere, datasets: /nowhere}
partitions:
  gpu:
    nodes: 10
    gpu: {model: P100-PCIe, gres_type: p100, per_node: 4}
    sockets: 2
    cores_per_socket: 8
    memory_gb: 120
    max_time: "24:00:00"
    environment: {OMPI_MCA_mpi_yield_when_idle: "1"}
"""
OVERLAY = """over={home}/over; mount -t tmpfs tmpfs $over
for at in etc home; do
  mkdir $over/$at $over/$at.work
  mount -t overlay overlay -o lowerdir=/$at,upperdir=$over/$at,workdir=$over/$at.work /$at
done
mkdir -p /etc/bash_completion.d; rm -rf /etc/slurm"""
FILLED_IN = """sed -i 's#prefix: .*#prefix: /apps/hpcdl/prefix#; s#work: .*#work: /work/hpcdl/$USER#
s#datasets: .*#datasets: /data/sets#; s/# variant: cpu .*/variant: cpu/' /apps/hpcdl/site.yaml
hpcdl site check --site /apps/hpcdl/site.yaml"""
TRAINS = r"""useradd --create-home --shell /bin/bash ada
runuser -l ada -c 'hpcdl data make digits ~/digits && module load tensorflow &&
hpcdl job submit --partition gpu --nodes 2 --gpus-per-node 2 --watch \
  -- --model mlp --data ~/digits --epochs 20 --target-accuracy 0.9'"""


@dataclass(frozen=True)
class Site:
    """The file server's root, and the account that owns the software."""

    home: Path
    root: Shell
    env: dict[str, str]

    def account(self):
        """A shell of `hpc`, in the same /etc."""
        within = ("nsenter", f"--mount=/proc/{self.root.pid}/ns/mnt", "runuser", "-u", "hpc", "--")
        return Shell({**self.env, "HOME": "/home/hpc"}, self.home, within)

    def take(self, shell, command, status=0):
        command = re.sub("/(apps/hpcdl|data/sets|work/hpcdl)", rf"{self.home}/\1", command)
        said, ended = shell(command)
        assert ended == status, f"$ {command}\nexits with status {ended}:\n{said}"
        return said


@pytest.fixture
def ten():
    if choose_mode("auto") != NAMESPACES:
        pytest.skip("nodes in namespaces need root and unshare")
    with short_home() as home:
        home.chmod(0o755)
        (home / "over").mkdir()
        (home / "ten.yaml").write_text(SITE)
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(home), str(ROOT)]
        subprocess.run(build, check=True, capture_output=True)
        own = Path(sys.executable).parent
        env = {
            **clean_environment(),
            "HOME": "/root",
            "HPCDL_HOME": str(home / "cluster-home"),
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        with Shell(env, home, ("unshare", "--mount")) as root:
            users = {key: value for key, value in env.items() if key != "HPCDL_HOME"}
            site = Site(home, root, users)
            site.take(root, OVERLAY.format(home=home))
            site.take(root, f"{own}/hpcdl cluster up --accounting --site {home}/ten.yaml")
            site.take(root, f'eval "$({own}/hpcdl cluster env --site {home}/ten.yaml)"')
            site.take(root, "cp -a $(dirname $SLURM_CONF) /etc/slurm; unset SLURM_CONF HPCDL_SITE")
            yield site
            root(f"rm -rf /tmp/units; {own}/hpcdl cluster down --purge --site {home}/ten.yaml")


@pytest.mark.long
@pytest.mark.stack
@pytest.mark.timeout(3600)
def test_the_page_leads_to_users_who_train_and_to_a_night(ten):
    account = None
    for step in steps(PAGE):
        section = re.findall(r"^## (\d)", PAGE[: PAGE.index(step.command)], re.M)[-1]
        if section in "15":
            ten.take(ten.root, step.command, step.status)
            continue
        if account is None:
            account = ten.account()
            ten.take(account, f"cd; cp {ten.home}/hpcdl-*.whl .")
        ten.take(account, step.command, step.status)
        if "site init" in step.command:
            ten.take(account, FILLED_IN)
    assert "it is done" in ten.take(ten.root, TRAINS)
    assert "User=hpc" in ten.take(ten.root, "cat /tmp/units/*.service")
