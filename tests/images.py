"""An image of a few programs for container runtimes: a directory with Debian's static busybox."""

import shutil

import pytest

_DIRECTORIES = ("bin", "dev", "etc", "proc", "sys", "tmp", "var/tmp", "home", "root", "run")
_PROGRAMS = ("sh", "cat", "basename", "dirname", "head", "ls", "echo")


def busybox_image(root):
    """Make it; a skip where there is no busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed (apt-get install busybox-static)")
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True)
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (root / "etc" / name).touch()
    shutil.copy(busybox, root / "bin/busybox")
    for name in _PROGRAMS:
        (root / "bin" / name).symlink_to("busybox")
    return root
