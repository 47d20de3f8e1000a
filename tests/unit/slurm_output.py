"""What `scontrol` and `srun` of several releases print on one small cluster."""

from hpcdl.slurm.parse import JobRecord

RELEASES = ("20.11", "22.05", "24.11")

_NODE = {
    "20.11": (
        "NodeName={name} Arch=x86_64 CoresPerSocket=14  CPUAlloc=0 CPUTot=56 CPULoad=0.01 "
        "AvailableFeatures={features} ActiveFeatures={features} Gres={gres} "
        "NodeAddr={name} NodeHostName={name} Version=20.11.9 OS=Linux 5.10.0 #1 SMP Debian  "
        "RealMemory=250000 AllocMem=0 FreeMem=240000 Sockets=2 Boards=1 State={state} "
        "ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={partitions}  "
        "BootTime=2024-11-01T08:00:00 SlurmdStartTime=2024-11-01T08:05:00 "
        "CfgTRES=cpu=56,mem=250000M,billing=56,gres/gpu=4 AllocTRES= CapWatts=n/a "
        "CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s{reason} Comment=(null)"
    ),
    "22.05": (
        "NodeName={name} Arch=x86_64 CoresPerSocket=14  CPUAlloc=0 CPUEfctv=56 CPUTot=56 "
        "CPULoad=0.01 AvailableFeatures={features} ActiveFeatures={features} Gres={gres} "
        "NodeAddr={name} NodeHostName={name} Version=22.05.8 OS=Linux 6.1.0 #1 SMP Debian  "
        "RealMemory=250000 AllocMem=0 FreeMem=N/A Sockets=2 Boards=1 State={state} "
        "ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={partitions}  "
        "BootTime=None SlurmdStartTime=2024-11-01T08:05:00 LastBusyTime=Unknown "
        "CfgTRES=cpu=56,mem=250000M,billing=56 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 "
        "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s{reason}"
    ),
    "24.11": (
        "NodeName={name} Arch=x86_64 CoresPerSocket=14  CPUAlloc=0 CPUEfctv=56 CPUTot=56 "
        "CPULoad=0.01 AvailableFeatures={features} ActiveFeatures={features} Gres={gres} "
        "NodeAddr={name} NodeHostName={name} Version=24.11.5 OS=Linux 6.8.0-45-generic #45 SMP  "
        "RealMemory=250000 AllocMem=0 FreeMem=241200 Sockets=2 Boards=1 State={state} "
        "ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={partitions}  "
        "BootTime=2024-11-01T08:00:00 SlurmdStartTime=2024-11-01T08:05:00 "
        "LastBusyTime=2024-11-01T09:00:00 ResumeAfterTime=None "
        "CfgTRES=cpu=56,mem=250000M,billing=56,gres/gpu=4,gres/gpu:p100=4 AllocTRES= "
        "CurrentWatts=0 AveWatts=0{reason}"
    ),
}

_PARTITION = {
    "20.11": (
        "PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL "
        "Default={default} QoS=N/A DefaultTime=NONE DisableRootJobs=NO "
        "ExclusiveUser=NO GraceTime=0 "
        "Hidden=NO MaxNodes=UNLIMITED MaxTime={limit} MinNodes=0 LLN=NO "
        "MaxCPUsPerNode=UNLIMITED Nodes={nodes} PriorityJobFactor=1 PriorityTier=1 RootOnly=NO "
        "ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP "
        "TotalCPUs=112 TotalNodes={count} SelectTypeParameters=NONE JobDefaults=(null) "
        "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED"
    )
}
_PARTITION["22.05"] = _PARTITION["20.11"] + " TRES=cpu=112,mem=500000M,node=2,billing=112"
_PARTITION["24.11"] = _PARTITION["22.05"].replace(
    "ExclusiveUser=NO", "ExclusiveUser=NO ExclusiveTopo=NO"
)

MPI_LISTS = {
    "20.11": "srun: MPI types are...\nsrun: cray_shasta\nsrun: none\nsrun: pmi2\nsrun: pmix\n"
    "srun: pmix_v3\n",
    "22.05": "MPI plugin types are...\n\tnone\n\tpmi2\n\tcray_shasta\n\tpmix\n"
    "specific pmix plugin versions available: pmix_v3,pmix_v4\n",
    "24.11": "MPI plugin types are...\n\tnone\n\tpmi2\n\tcray_shasta\n\tpmix\n"
    "specific pmix plugin versions available: pmix_v5\n",
}

_JOB = {
    "id": 1,
    "name": "x",
    "state": "PENDING",
    "reason": "None",
    "exit_code": 0,
    "signal": 0,
    "partition": "",
    "nodes": "",
    "restarts": 0,
    "submitted": "",
    "started": "",
    "ended": "",
    "time_limit": "1:00:00",
    "script": "",
}


def job(**values):
    """A job as Slurm knows it, waiting and of no partition but for `values`."""
    return JobRecord(**{**_JOB, **values})


def nodes(release, *, gres="gpu:p100:4(S:0-1)"):
    """`scontrol show node -o`: two P100 nodes, one of them drained, and a CPU node."""
    form = _NODE[release]
    gpu = {"features": "p100,nvlink", "gres": gres, "partitions": "p100,all"}
    why = " Reason=bad DIMM, see #17 [root@2024-11-01T09:00:00]"
    cpu = {"features": "(null)", "gres": "(null)", "partitions": "cpu,all"}
    rows = (
        ("p100-01", "IDLE", "", gpu),
        ("p100-02", "IDLE+DRAIN", why, gpu),
        ("cpu-01", "MIXED", "", cpu),
    )
    return "\n".join(
        form.format(name=name, state=state, reason=reason, **more)
        for name, state, reason, more in rows
    )


def partitions(release):
    """`scontrol show partition -o`: p100, the default, and cpu."""
    form = _PARTITION[release]
    gpu = {"default": "YES", "limit": "2-00:00:00", "nodes": "p100-[01-02]", "count": 2}
    cpu = {"default": "NO", "limit": "UNLIMITED", "nodes": "cpu-01", "count": 1}
    return "\n".join([form.format(name="p100", **gpu), form.format(name="cpu", **cpu)])


def config(release):
    """A part of `scontrol show config`."""
    return (
        "Configuration data as of 2024-11-01T10:00:00\n"
        "AccountingStorageType   = accounting_storage/slurmdbd\n"
        "ClusterName             = pi\n"
        "MpiDefault              = none\n"
        "MpiParams               = (null)\n"
        f"SLURM_VERSION           = {release}.5\n"
        "SelectTypeParameters    = CR_CORE_MEMORY\n"
        "\nSlurmctld(primary) at head is UP\n"
    )
