#!/bin/bash
# train: 2 nodes x 32 ranks on cpu of a100-h100, Slurm 24.05.
# Written by hpcdl; `hpcdl job explain` gives the reason of every line.
#SBATCH --job-name=train
#SBATCH --partition=cpu
#SBATCH --account=ai
#SBATCH --qos=normal
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=32
#SBATCH --cpus-per-task=4
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

# What every job does: signals, requeues, the end of its ranks.
# shellcheck source=/dev/null disable=SC2016,SC2034,SC2154,SC2317
source /apps/hpcdl/releases/tensorflow-1/stack/share/hpcdl/job-1.sh || exit 20
hpcdl_requeues=5
clean SLURM_TRES_PER_TASK
begin /work/me/jobs/train-"$SLURM_CLUSTER_NAME-$SLURM_JOB_ID" "$@"

# Modules are loaded here, not inherited: the login node may have another release or partition.
# shellcheck source=/dev/null
source /usr/share/lmod/lmod/init/bash || exit 20
module --force purge
module use /apps/hpcdl/releases/tensorflow-1/modules
module load tensorflow/2.20.0 || exit 20
export NCCL_SOCKET_IFNAME=ib0
export OMPI_MCA_btl_tcp_if_include=ib0
export OMPI_MCA_oob_tcp_if_include=ib0

# OpenMP: the threads of a rank stay on its own cores.
export OMP_NUM_THREADS=4
export OMP_PLACES=cores
meet 12000-32767

# Preflight: is this the allocation that was requested? The log gets a row per rank.
look() {
  srun --mpi=none --cpus-per-task=4 --kill-on-bad-exit=1 \
    hpcdl preflight probe '--scratch=/local/$SLURM_JOB_ID' &
  wait "$!"
}
preflight --world=64 --tasks-per-node=32 --cpus-per-task=4 --gpus-per-node=0 --release=tensorflow-1 '--scratch=/local/$SLURM_JOB_ID'

together 64 90 SLURM_PROCID
# The CPUs of a rank are said again, so that no inherited variable decides them.
srun --mpi=pmix --cpus-per-task=4 --kill-on-bad-exit=1 \
  sh -c "$rank" rank ./a.out &
follow "$!"
