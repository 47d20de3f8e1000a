"""The processes of a parameter server cluster: each rank starts its own, and killed ones again."""

import json
import os
import socket
import subprocess
import sys
import time

import tensorflow as tf

from hpcdl.train.options import parse

Cluster = dict[str, list[str]]
RESTARTS = 20  # of all members of a rank; a port that is taken would go on for ever


def alone() -> dict[str, Cluster]:
    """Return what TF_CONFIG says of one worker, on a port that nobody has."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        return {"cluster": {"worker": [f"localhost:{taken.getsockname()[1]}"]}}


def start(cluster: Cluster, kind: str, index: int) -> subprocess.Popen[bytes]:
    """Start a member of the cluster as a process."""
    config = {"cluster": cluster, "task": {"type": kind, "index": index}}
    more = {"TF_CONFIG": json.dumps(config), "TF_NUM_INTEROP_THREADS": "8"}
    more |= {} if kind == "worker" else {"CUDA_VISIBLE_DEVICES": "-1"}
    argv = [sys.executable, *sys.argv]
    return subprocess.Popen(argv, env=os.environ | more)


def lead(workers: list[str], rank: int) -> int:
    """Run this rank's members until the chief has ended, and start killed ones again."""
    host, _, port = workers[0].rpartition(":")
    cluster = {"chief": [f"{host}:{int(port) + 500}"], "ps": [f"{host}:{int(port) + 501}"]}
    cluster["worker"] = workers
    mine = [("worker", rank), *([("ps", 0), ("chief", 0)] if rank == 0 else [])]
    members = {one: start(cluster, *one) for one in mine}
    folder = parse(sys.argv[1:]).folder
    folder.mkdir(parents=True, exist_ok=True)
    start_of_job = (os.environ.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"))
    done = folder / f".parameter-server-{'-'.join(start_of_job)}"
    if "SLURM_JOB_ID" not in os.environ:
        done.unlink(missing_ok=True)
    restarts = 0
    try:
        while not done.exists():
            if restarts > RESTARTS:
                print("a member ends each time it is started: see its lines above", file=sys.stderr)
                return 1
            for (kind, index), process in members.items():
                if kind == "chief" and process.poll() in {0, 1}:
                    done.write_text(str(process.returncode))
                elif process.poll() is not None:
                    print(f"{kind} {index} has ended: started again", file=sys.stderr)
                    members[kind, index] = start(cluster, kind, index)
                    restarts += 1
            time.sleep(0.2)
        return int(done.read_text() or 0)
    finally:
        for process in members.values():
            process.kill()
            process.wait()


def serve(cluster: Cluster, kind: str, index: int) -> None:
    """Be a worker or a server until the leading rank ends this process."""
    server = tf.distribute.Server(cluster, kind, index, protocol="grpc")
    server.join()
