"""Which GPUs a shared object has code for, read from the object itself."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.stack.linked import DeviceCode, read_device_code, runs_on


@pytest.mark.parametrize(
    ("names", "compute", "verdict"),
    [
        (["sm_60"], "6.0", "machine"),
        (["sm_60"], "6.1", "machine"),
        (["sm_61"], "6.0", "no"),
        (["sm_60"], "7.0", "no"),
        (["compute_60"], "7.0", "ptx"),
        (["compute_70"], "6.0", "no"),
        (["sm_37", "compute_60"], "3.7", "machine"),
        (["sm_90"], "8.0", "no"),
        ([], "8.0", "no"),
    ],
)
def test_machine_code_runs_within_its_major_number_and_ptx_on_newer_ones(names, compute, verdict):
    codes = [DeviceCode(int(name.split("_")[1]), name.startswith("sm")) for name in names]
    assert runs_on(codes, compute) == verdict


def test_host_code_has_none():
    import _ctypes

    assert read_device_code(Path(_ctypes.__file__)) == ()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_after_an_elf_header_are_no_crash(tmp_path_factory, noise):
    path = tmp_path_factory.mktemp("noise") / "x.so"
    header = b"\x7fELF\x02\x01" + struct.pack("<10xHHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64, 0, 64, 0,
                                              0, 64, 3, 1)  # fmt: skip
    path.write_bytes(header + noise)
    read_device_code(path)
