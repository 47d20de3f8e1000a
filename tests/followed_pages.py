"""What each page takes for granted, and its commands, taken as a reader takes them.

`python -m tests.followed_pages PAGE...` takes pages in the environment that it runs in, each with a
new home: what `make demo` leaves on a bare machine, or a wheel's.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcdl.system.resources import cache
from hpcdl.system.resources import home as data_home
from tests.homes import short_home
from tests.shell_pages import Shell, matches, steps

ROOT = Path(__file__).resolve().parents[1]
UP = 'export HPCDL_SITE=embedded; hpcdl cluster up > /dev/null; eval "$(hpcdl cluster env)"'
CPUS = "sed -i 's/# variant: cpu .*/variant: cpu/' site.yaml; echo 'private: true' >> site.yaml"
DIGITS = "hpcdl data make digits ~/digits"
SITE_DIGITS = "hpcdl data make digits ~/embedded/datasets/digits"
TRAINED = """hpcdl job submit --partition cpu --tasks 2 --job-dir train --watch \\
    -- --model mlp --steps 20"""
PROGRAMS = "printf 'import sys\nprint(sys.argv[1:])\n' | tee my_train.py > train.py"
NIGHTS = """python - > before.jsonl << 'END'
import datetime, json
for day in range(40):
    time = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=40 - day)
    names = {"check_name": "copies", "case_name": "copies", "partition": "p100", "metric": "rate",
             "unit": "GB/s", "better": "higher", "site": "embedded", "status": "PASS"}
    value = (100 if day < 30 else 80) + day % 3
    print(json.dumps({**names, "run": f"n{day}", "time": time.isoformat(), "value": value}))
END
hpcdl check history import before.jsonl"""
FINDING = """ID=$(hpcdl check gate --json | python -c 'import json, sys
print(json.load(sys.stdin)["findings"][0]["id"])')"""
IMAGES = """python - << 'END'
import numpy
from pathlib import Path
from PIL import Image
Path("IMAGES").mkdir()
rows = ["Image Index,Finding Labels"]
for n in range(64):
    Image.fromarray(numpy.full((64, 64), n, "uint8")).save(f"IMAGES/{n}.png")
    rows.append(f"{n}.png,{['No Finding', 'Mass', 'Mass|Hernia'][n % 3]}")
Path("Data_Entry_2017.csv").write_text("\\n".join(rows) + "\\n")
END"""


@dataclass(frozen=True)
class Scene:
    """What a page takes for granted, and what of it is not run here, and why."""

    before: tuple[str, ...] = ()
    first: Mapping[str, str] = field(default_factory=dict)
    """What a reader does before the first command that begins so."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the page calls by a name that stands for the reader's own."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Commands that begin so are run by another test, or nowhere."""


SCENES = {
    "README.md": Scene(
        (PROGRAMS,),
        first={
            "hpcdl site init": UP,
            "hpcdl stack build": CPUS,
            "module load": UP,
            "hpcdl check references": f"module unload tensorflow; {SITE_DIGITS}",
        },
        left={"make ": "tests/matrix/test_demo.py"},
    ),
    "CONTRIBUTING.md": Scene(left={"make ": "whoever runs this"}),
    "docs/admins.md": Scene(
        (UP,),
        first={"hpcdl stack plan": f"{CPUS}; export HPCDL_SITE=$PWD/site.yaml"},
        names={"PREFIX": "~/hpcdl/prefix"},
        left={
            "hpcdl stack build --backend spack": "tests/integration/test_spack_build.py",
            "hpcdl stack rollback": "docs/tutorial-admin.md, which has a second release",
        },
    ),
    "docs/checks.md": Scene((UP,), names={"settings.py -r": "settings.py -n modules -r"}),
    "docs/cluster.md": Scene(
        left={
            "hpcdl cluster up --slurm": "tests/matrix",
            "hpcdl cluster down": "the tutorials; this page goes on with the cluster",
        }
    ),
    "docs/howto-cluster.md": Scene(left={"": "tests/integration/test_ten_nodes.py"}),
    "docs/howto-migrate.md": Scene(left={"hpcdl job submit": "EasyBuild's modules are not here"}),
    "docs/howto-sites.md": Scene(
        left={
            "export HTTPS_PROXY": "there is no proxy",
            "pip config": "there is no mirror",
            "HPCDL_CACHE": "tests/integration/test_stack_release.py",
            "tar ": "as above",
            "python3 -m venv": "tests/integration/test_launchers.py has a PyTorch of its own",
            "hpcdl job submit": "as above",
            "/apps/hpcdl": "there is no newer hpcdl",
            "hpcdl site check": "docs/admins.md",
            "hpcdl stack": "docs/admins.md",
        }
    ),
    "docs/install.md": Scene(
        left={
            "git clone": "tests/matrix/test_demo.py",
            "make ": "tests/matrix/test_demo.py",
            "python3 -m venv": "tests/integration/test_wheel.py",
            "/apps/hpcdl": "as above",
        }
    ),
    "docs/interactive.md": Scene(left={"": "tests/integration/test_interactive.py"}),
    "docs/lint.md": Scene((r"printf '#!/bin/bash\nsrun hostname\n' > job.sh",)),
    "docs/nightly.md": Scene(
        (UP, "hpcdl site init --output site.yaml"),
        first={"hpcdl check references": SITE_DIGITS, "hpcdl check accept": f"{NIGHTS}; {FINDING}"},
        names={"3f2a91c0": "$ID"},
    ),
    "docs/nights-operation.md": Scene(
        (UP, "hpcdl site init --output site.yaml", NIGHTS),
        names={"WORK/checks/runs/*": "before.jsonl"},
        left={"hpcdl check night": "tests/unit/test_ci.py"},
    ),
    "docs/predict.md": Scene((UP, DIGITS), first={"hpcdl predict --partition cpu": TRAINED}),
    "docs/evidence/studies.md": Scene(
        left={
            "uv ": "downloads 100 MB and compiles Horovod",
            "VIRTUAL_ENV=": "as uv",
            "hpcdl study run hkbu-frameworks": "tests/integration/test_study.py",
        }
    ),
    "docs/studies.md": Scene((UP,), left={"export PATH": "this environment"}),
    "docs/training.md": Scene(
        (UP, IMAGES),
        names={
            "digits DIR": "digits ~/digits",
            "p100 --gpus 4 -- --model mlp --data DIR": (
                "p100 --gpus 4 -- --model mlp --data ~/digits"
            ),
            "DIR": "~/images",
        },
    ),
    "docs/tutorial-admin.md": Scene(),
    "docs/tutorial-operations.md": Scene(first={"hpcdl check references": SITE_DIGITS}),
    "docs/tutorial-user.md": Scene(),
    "docs/users.md": Scene(
        (UP, PROGRAMS, DIGITS),
        names={
            "hpcdl job submit --site pi": "env -u SLURM_CONF -u HPCDL_CLUSTER_DIR "
            "hpcdl job submit --site pi"
        },
        left={"pip install some-package": "a package of PyPI's"},
    ),
}


def taken(shell, page, command, status=0):
    """What a command prints, once it has ended as it should."""
    said, ended = shell(command)
    assert ended == status, f"{page}: $ {command}\nexits with status {ended}:\n{said}"
    return said


def follow(shell, page, *, whole):
    """Take a page's steps; 4711 in it is the newest job, whatever its number is."""
    scene = SCENES[page]
    first, names = dict(scene.first), {"4711": "...", **scene.names}
    for command in scene.before:
        taken(shell, page, command)
    for step in steps((ROOT / page).read_text()):
        if (step.long and not whole) or step.command.startswith(tuple(scene.left)):
            continue
        for begin in [begin for begin in first if step.command.startswith(begin)]:
            taken(shell, page, first.pop(begin))
        command, expected = step.command, step.expected
        for name, real in names.items():
            command = command.replace(name, real)
            expected = expected and expected.replace(name, real)
        said = taken(shell, f"{page}:{step.line}", command, step.status)
        told = f"{page}:{step.line}: $ {command}\nprints\n{said}\nthe page says\n{expected}"
        assert matches(expected, said), told
        if job := re.search(r"^job (\d+) submitted", said, re.M):
            names["4711"] = job[1]


def newcomer(home, env, prefix):
    """A shell of somebody whose home is new, and whose cluster has the releases of a prefix."""
    own, place = home / "embedded" / "prefix", home / "empty"
    for directory in (own, place):
        directory.mkdir(parents=True)
    for name in ("releases", "etc"):
        (own / name).symlink_to(prefix / name)
    shutil.copy(prefix / "current", own, follow_symlinks=False)
    shutil.copy(prefix / "history.json", own)
    return Shell(
        {
            **env,
            "HOME": str(home),
            "HPCDL_HOME": str(home),
            "HPCDL_CACHE": str(cache()),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        place,
    )


def main(pages):
    """Take pages to their ends after `make demo`, and say how long each took."""
    prefix = data_home("embedded", "prefix")
    for page in pages:
        began = time.monotonic()
        with short_home() as home, newcomer(home, os.environ, prefix) as shell:
            follow(shell, page, whole=True)
            print(f"{page}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
