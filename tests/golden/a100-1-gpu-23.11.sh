#!/bin/bash
# train: 1 node x 1 GPU on a100 of a100-h100, Slurm 23.11.
# Written by hpcdl; `hpcdl job explain` gives the reason of every line.
#SBATCH --job-name=train
#SBATCH --partition=a100
#SBATCH --account=ai
#SBATCH --qos=normal
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=a100:1
#SBATCH --mem=125000
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

# What every job does: signals, requeues, the end of its ranks.
# shellcheck source=/dev/null
source /apps/hpcdl/releases/tensorflow-1/stack/share/hpcdl/job-1.sh
[[ $HPCDL_JOB == "$SLURM_JOB_ID" ]] || { echo "hpcdl: the functions of this release are gone or not whole" >&2; exit 20; }
export HPCDL_REQUEUES=5
hpcdl_clean SLURM_GPUS_PER_NODE SLURM_TRES_PER_TASK

# The job's own directory: log, progress, result and checkpoints.
export HPCDL_JOB_DIR=/work/me/jobs/train-"$SLURM_CLUSTER_NAME-$SLURM_JOB_ID"
(umask o-w; mkdir -p "$HPCDL_JOB_DIR") && hpcdl_own && cd "$HPCDL_JOB_DIR" || exit 3
rm -rf .left .usr2

# Modules are loaded here, not inherited: the login node may have another release or partition.
# shellcheck source=/dev/null
source /usr/share/lmod/lmod/init/bash || hpcdl_leave 20
module --force purge
module use /apps/hpcdl/releases/tensorflow-1/modules
module load tensorflow/2.20.0 || hpcdl_leave 20

export CUDA_DEVICE_ORDER=PCI_BUS_ID

hpcdl_look() { srun --mpi=none --cpus-per-task=16 --kill-on-bad-exit=1 \
  hpcdl preflight probe "--scratch=/local/$SLURM_JOB_ID" & wait "$!"; }
hpcdl_preflight --world=1 --tasks-per-node=1 --cpus-per-task=16 --gpus-per-node=1 --release=tensorflow-1 "--scratch=/local/$SLURM_JOB_ID"

export HPCDL_RESULT=result.json
# The CPUs of a rank are said again, so that no inherited variable decides them.
srun --mpi=pmix --cpus-per-task=16 --kill-on-bad-exit=1 \
  hpcdl train &
hpcdl_follow "$!"
