#!/bin/bash
# train: 4 nodes x 8 GPUs on a100 of a100-h100, Slurm 20.11.
# Written by hpcdl; `hpcdl job explain` gives the reason of every line.
#SBATCH --job-name=train
#SBATCH --partition=a100
#SBATCH --account=ai
#SBATCH --qos=normal
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=a100:8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

# What every job does: signals, requeues, the end of its ranks.
# shellcheck source=/dev/null disable=SC2016,SC2034,SC2154,SC2317
source /apps/hpcdl/releases/tensorflow-1/stack/share/hpcdl/job-1.sh
[[ $hpcdl_job == "$SLURM_JOB_ID" ]] || { echo "hpcdl: the functions of this release are gone or not whole" >&2; exit 20; }
hpcdl_requeues=5
clean SLURM_GPUS_PER_NODE
export SLURM_PMIX_FENCE=ring
begin /work/me/jobs/train-"$SLURM_CLUSTER_NAME-$SLURM_JOB_ID" "$@"

# Modules are loaded here, not inherited: the login node may have another release or partition.
# shellcheck source=/dev/null
source /usr/share/lmod/lmod/init/bash || leave 20
module --force purge
module use /apps/hpcdl/releases/tensorflow-1/modules
module load tensorflow/2.20.0 || leave 20

export CUDA_DEVICE_ORDER=PCI_BUS_ID
export NCCL_SOCKET_IFNAME=ib0
export OMPI_MCA_btl_tcp_if_include=ib0
export OMPI_MCA_oob_tcp_if_include=ib0

# Preflight: is this the allocation that was requested? The log gets a row per rank.
look() {
  srun --mpi=none --cpus-per-task=16 --exact --distribution=block:block --kill-on-bad-exit=1 \
    hpcdl preflight probe '--scratch=/local/$SLURM_JOB_ID' --transport=. &
  wait "$!"
}
preflight --world=32 --tasks-per-node=8 --cpus-per-task=16 --gpus-per-node=8 --release=tensorflow-1 --fabric=infiniband --nvlink '--scratch=/local/$SLURM_JOB_ID'

expect result.json
together 32 90 SLURM_PROCID
# The CPUs of a rank are said again: newer releases do not all take them from the job.
srun --mpi=pmix --cpus-per-task=16 --exact --distribution=block:block --kill-on-bad-exit=1 \
  sh -c "$rank" rank hpcdl train &
follow "$!"
