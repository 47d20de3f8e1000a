"""`make demo` on a minimal Debian 13 (Python 3.13, gcc 14): its main path, as a newcomer types it.

Its timed checks are left to `make demo` itself: here other clusters run beside it.
"""

import re
from collections.abc import Iterator

import pytest

from hpcdl.system.errors import HpcdlError
from tests.matrix.debian import Debian, debian_13

MAIN_PATH = """
command -v make >/dev/null || { apt-get update -q; apt-get install -qy make; } >/dev/null 2>&1
cd /root/hpcdl
make VENV=/root/venv STEPS=4 demo
export PATH=/root/venv/bin:$PATH HPCDL_SITE=embedded
eval "$(hpcdl cluster env)"
hpcdl check run --partition p100 --tag smoke --name binding
make VENV=/root/venv down
cat /proc/[0-9]*/comm | grep -E 'slurm|munge|python' || echo nothing is left
"""
CONFUSING = re.compile(r".*(?:\bwarning|unbound|Traceback|No such|not found|make\[).*", re.I)


@pytest.fixture(scope="module")
def debian() -> Iterator[Debian]:
    try:
        made = debian_13()
    except HpcdlError as fault:
        pytest.skip(f"Debian 13: {fault.message}")
    yield made
    made.clear()


@pytest.mark.timeout(1500)
def test_the_demo_s_main_path_on_a_bare_debian_13(debian: Debian) -> None:
    done = debian(MAIN_PATH, seconds=1400)
    said = done.stdout
    assert done.returncode == 0, said
    assert "7 nodes ready in mode namespaces, Slurm 24.11." in said
    assert re.search(r"ok +p100: import: TensorFlow \S+, Horovod 0\.28\.1", said), said
    assert re.search(r"job \d+: it is done", said), said
    assert re.search(r"^binding/\S+ +p100 +PASS", said, re.M), said
    assert said.endswith("stopped\nnothing is left\n"), said
    assert not CONFUSING.findall(said)
