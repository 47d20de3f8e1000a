"""What makes Lmod quick and easy to switch on for a whole site.

Each set of modulefiles carries the list that Lmod's own `spider` makes of it, written for the
path that users have (PREFIX/current/modules), so one rename switches both. PREFIX/etc holds
the file that tells Lmod of the list, profiles for /etc/profile.d, and the site file that the
module's own hpcdl finds. Without Lmod's spider
there is no list, and Lmod reads the modulefiles themselves.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.modules import lua
from hpcdl.system.files import write_atomic
from hpcdl.system.run import run

CACHE = ".lmod"
SITE_FILE = "site.yaml"
"""In PREFIX/etc: the site as it was at the last publish."""


def users_path(site: Site) -> Path:
    """The MODULEPATH of people: it leads to whatever is published."""
    return site.paths.prefix / "current" / "modules"


def write_cache(site: Site, modules: Path) -> None:
    """Put Lmod's list of a set of modulefiles beside them, as users will see them.

    `modules` is the set's directory before it is in place.
    """
    spider = site.paths.lmod_init.parents[1] / "libexec" / "spider"
    if not spider.is_file():
        return
    # An environment of its own: the caller's Lmod must not colour the list.
    clean = ["env", "-i", "PATH=/usr/bin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8"]
    listed = run([*clean, spider, "-o", "spiderT", modules], check=False, timeout=60)
    if listed.ok and "spiderT" in listed.stdout:
        # Lmod trusts a list that is not older than its timestamp, for ever.
        write_atomic(modules / CACHE / "timestamp", f"{time.strftime('%Y-%m-%dT%H:%M:%S')}\n")
        text = listed.stdout.replace(str(modules), str(users_path(site)))
        write_atomic(modules / CACHE / "spiderT.lua", text)


def write_site_files(site: Site) -> None:
    """Write PREFIX/etc: a profile for all users, and the site file for the module's hpcdl."""
    folder = site.paths.prefix / "etc"
    cache = users_path(site) / CACHE
    described = {"dir": str(cache), "timestamp": str(cache / "timestamp")}
    shown = {"MODULEPATH": str(users_path(site)), "LMOD_RC": str(folder / "lmodrc.lua")}
    files = {
        "lmodrc.lua": f"scDescriptT = {lua([described])}\n",
        "profile.sh": profile_sh(shown),
        "profile.csh": profile_csh(shown),
        SITE_FILE: site.source.read_text(encoding="utf-8"),
    }
    for name, text in files.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomic(path, text)


_PROFILE = "# For /etc/profile.d: shows everybody the published modules.\n"


def profile_sh(shown: Mapping[str, str]) -> str:
    """For bash, zsh and other sh: puts each path behind its variable, once; safe with `set -u`."""
    lines = [
        f'case ":${{{name}:-}}:" in *:{quoted}:*) ;;\n'
        f'*) export {name}="${{{name}:+${name}:}}"{quoted} ;; esac\n'
        for name, path in shown.items()
        for quoted in (shlex.quote(path),)
    ]
    return "".join([_PROFILE, *lines])


def profile_csh(shown: Mapping[str, str]) -> str:
    """The same for csh and tcsh, where an unset variable is an error by itself."""
    lines = [
        f"if (! $?{name}) setenv {name} ''\n"
        f'if (":${{{name}}}:" !~ *:{quoted}:*) then\n'
        f'  if ("${name}" == "") then\n    setenv {name} {quoted}\n'
        f'  else\n    setenv {name} "${{{name}}}:"{quoted}\n  endif\nendif\n'
        for name, path in shown.items()
        for quoted in (shlex.quote(path),)
    ]
    return "".join([_PROFILE, *lines])
