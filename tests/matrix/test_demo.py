"""`make demo` on minimal Debians, as a newcomer types it: its main path on Debian 13 (gcc 14).

Its timed checks are left to the long tests, which run all of it, and README and the tutorials after
it: here other clusters run beside it.
"""

import re
from functools import cache

import pytest

from hpcdl.system.errors import HpcdlError
from tests.matrix.debian import debian

MAKE = """
command -v make >/dev/null || { apt-get update -q; apt-get install -qy make; } >/dev/null 2>&1
"""
MAIN_PATH = """
cd /root/hpcdl
make VENV=/root/venv STEPS=4 demo
export PATH=/root/venv/bin:$PATH HPCDL_SITE=embedded
eval "$(hpcdl cluster env)"
hpcdl check run --partition p100 --tag smoke --name binding
make VENV=/root/venv down
"""
WHOLE = "cd /root/hpcdl; make VENV=/root/venv demo; make VENV=/root/venv down"
# Without root the nodes share the machine; a user's home is where a user's home is.
ADA = """
id ada >/dev/null 2>&1 || useradd --create-home --shell /bin/bash ada
rm -rf /home/ada/hpcdl /home/ada/.hpcdl; cp -r /root/hpcdl /home/ada/; chown -R ada /home/ada
export HPCDL_HOME=/home/ada/.hpcdl
"""
SUDO = """
command -v sudo >/dev/null || apt-get install -qy sudo >/dev/null 2>&1
echo 'ada ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ada
"""
BY_SUDO = f"{ADA}{SUDO}su ada -c 'cd ~/hpcdl; make demo; make down'"
# Somebody without rights is told what an administrator types.
REFUSED = """
rm -f /etc/sudoers.d/ada; apt-get remove -qy slurmctld >/dev/null 2>&1
su ada -c 'cd ~/hpcdl; make demo' > said 2>&1 && exit 1
sed -n 's/^help: as root: \\(apt-get install .*\\); then.*/\\1 -qy/p' said | sh > /dev/null
"""
FOLLOW = """
cd ~/hpcdl; make STEPS=3 demo; make down
.venv/bin/python -m tests.followed_pages README.md docs/tutorial-*.md
"""
FOLLOWED = {
    "root": FOLLOW,
    "sudo": f"{ADA}{SUDO}su ada -c '{FOLLOW}'",
    "without rights": f"{ADA}{REFUSED}su ada -c '{FOLLOW}'",
}
LEFT = """
cat /proc/[0-9]*/comm | grep -E 'slurm|munge|python' || echo nothing is left
"""
CONFUSING = re.compile(r".*(?:\bwarning|unbound|Traceback|No such|not found|make\[).*", re.I)


machine = cache(debian)


@pytest.fixture
def run():
    """Runs a script on a Debian and gives what it said; it has to end well, and with that line."""
    used = []

    def on(suite, script, last="stopped"):
        try:
            used.append(machine(suite))
        except HpcdlError as fault:
            pytest.skip(f"Debian {suite}: {fault.message}")
        done = used[0](MAKE + script + LEFT, seconds=2900)
        assert done.returncode == 0, done.stdout
        assert re.search(rf"^{last}\nnothing is left\n\Z", done.stdout, re.M), done.stdout
        assert not CONFUSING.findall(done.stdout), done.stdout
        return done.stdout

    yield on
    for one in used:
        one.clear()


@pytest.mark.timeout(1500)
def test_the_demo_s_main_path_on_a_bare_debian_13(run):
    said = run(13, MAIN_PATH)
    assert "7 nodes ready in mode namespaces, Slurm 24.11." in said
    assert re.search(r"ok +p100: import: TensorFlow \S+, Horovod 0\.28\.1", said), said
    assert re.search(r"job \d+: it is done", said), said
    assert re.search(r"^binding/\S+ +p100 +PASS", said, re.M), said


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("script", [WHOLE, BY_SUDO], ids=["root", "sudo"])
@pytest.mark.parametrize("suite", [12, 13])
def test_the_whole_demo(run, suite, script):
    said = run(suite, script)
    assert f"ready in mode {'loopback' if script == BY_SUDO else 'namespaces'}" in said
    assert re.search(r"job \d+: it is done", said), said
    assert re.search(r"^Done in \d+ s", said, re.M), said


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("script", FOLLOWED.values(), ids=FOLLOWED)
@pytest.mark.parametrize("suite", [12, 13])
def test_readme_and_tutorials(run, suite, script):
    said = run(suite, script, r"docs/tutorial-user\.md: \d+ s")
    assert "\nstopped\n" in said
    assert len(re.findall(r"^(?:README|docs/tutorial-\w+)\.md: \d+ s$", said, re.M)) == 4, said
