"""The driver of a node, from the kernel module's own file."""

import pytest

from hpcdl.system.packages import nvidia_driver

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44\n"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n"
    "GCC version:  gcc version 12.2.0\n"
)


@pytest.mark.parametrize(
    ("text", "version"), [(CLOSED, "470.256.02"), (OPEN, "550.54.15"), ("else", None), (None, None)]
)
def test_the_version_is_read_where_there_is_a_driver(tmp_path, text, version):
    if text is not None:
        (tmp_path / "version").write_text(text)
    assert nvidia_driver(tmp_path / "version") == version
