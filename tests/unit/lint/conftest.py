"""The stand-ins of sbatch and srun can be imported."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "standins"))

CONFIG = """\
ClusterName=none
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
SelectType=select/cons_tres
GresTypes=gpu
MessageTimeout=1
NodeName=localhost NodeAddr=127.0.0.1 CPUs=16
PartitionName=main Nodes=localhost
"""
"""A slurm.conf without a controller: what a client refuses by itself, it refuses."""
