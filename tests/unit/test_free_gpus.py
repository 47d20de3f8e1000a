"""Free and busy GPUs from what `scontrol show node -d -o` prints."""

import pytest

from hpcdl.site.free_gpus import gpu_rows, gpus_of_nodes


def line(name="g1", state="IDLE", gres="gpu:v100:4(S:0-1)", used="gpu:v100:0(IDX:N/A)", **more):
    fields = {"CPUAlloc": 0, "CPUEfctv": 62, "CPUTot": 64, "Partitions": "gpu,long", **more}
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=16  CPUAlloc={fields['CPUAlloc']} "
        f"CPUEfctv={fields['CPUEfctv']} CPUTot={fields['CPUTot']} CPULoad=0.01 "
        f"AvailableFeatures=v100 Gres={gres} GresDrain=N/A GresUsed={used} NodeAddr={name} "
        f"OS=Linux 5.14 #1 SMP @0 RealMemory=515000 State={state} ThreadsPerCore=1 "
        f"Partitions={fields['Partitions']} BootTime=2026-11-01T10:00:00 Reason=none [root@now]"
    )


def rows(*lines):
    return {(row.partition, row.kind): row for row in gpu_rows(gpus_of_nodes(lines))}


@pytest.mark.parametrize(
    ("node", "counts"),
    [
        (line(), "free 4, used 0, blocked 0, down 0"),
        (line(state="MIXED", used="gpu:v100:3(IDX:0-2)"), "free 1, used 3, blocked 0, down 0"),
        # Two of 64 CPUs are Slurm's own (CoreSpecCount): 62 in use are all there are.
        (line(state="MIXED", CPUAlloc=62), "free 0, used 0, blocked 4, down 0"),
        (line(state="MIXED+DRAIN", used="gpu:v100:1(IDX:0)"), "free 0, used 1, blocked 0, down 3"),
        (line(state="DOWN*"), "free 0, used 0, blocked 0, down 4"),
        (line(state="IDLE+MAINT+RESERVED"), "free 0, used 0, blocked 0, down 4"),
        (line(state="IDLE+PLANNED"), "free 4, used 0, blocked 0, down 0"),
        (line(state="IDLE+POWERING_DOWN"), "free 0, used 0, blocked 0, down 4"),
        # Slurm starts such a node for the next job.
        (line(state="IDLE+CLOUD+POWERED_DOWN"), "free 4, used 0, blocked 0, down 0"),
    ],
)
def test_a_gpu_is_free_where_a_job_can_have_it(node, counts):
    row = rows(node)["gpu", "v100"]
    found = f"free {row.free}, used {row.used}, blocked {row.blocked}, down {row.down}"
    assert found == counts


def test_every_partition_and_type_has_a_row_and_slices_have_no_model():
    mixed = line("g2", gres="gpu:tesla_p100:2,gpu:a100_1g.5gb:7", used="gpu:a100_1g.5gb:1(IDX:0)")
    found = rows(line(), line("g3"), mixed, line("c1", gres="(null)", used="N/A"))
    assert set(found) == {
        (partition, kind)
        for partition in ("gpu", "long")
        for kind in ("v100", "tesla_p100", "a100_1g.5gb")
    }
    assert (found["gpu", "v100"].free, found["gpu", "v100"].largest) == (8, 4)
    assert (found["gpu", "a100_1g.5gb"].free, found["gpu", "a100_1g.5gb"].model) == (6, "")
    assert found["gpu", "tesla_p100"].model.startswith("P100")
