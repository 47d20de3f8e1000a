#!/bin/bash
# train: 1 node x 8 GPUs on a100 of a100-h100, Slurm 23.11. Written by hpcdl.
#SBATCH --job-name=train
#SBATCH --partition=a100
#SBATCH --account=ai
#SBATCH --qos=normal
#SBATCH --nodes=1
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

# srun reads these as options; they are those of another job, or of the user's shell.
unset "${!SBATCH_@}" "${!SRUN_@}" SLURM_{CPU_BIND,CPUS_PER_GPU,EXACT,EXCLUSIVE,HINT,WHOLE,GRES,GPU_BIND,GPUS,GPUS_PER_SOCKET} \
  SLURM_{GPUS_PER_TASK,STEP_GRES,TRES_BIND,OVERLAP,MEM_BIND,MEM_PER_CPU,MEM_PER_GPU,MEM_PER_NODE,CORE_SPEC,OVERCOMMIT} \
  SLURM_{THREADS_PER_CORE,NTASKS_PER_GPU,NTASKS_PER_CORE,NTASKS_PER_SOCKET,DISTRIBUTION,HOSTFILE}
export SLURM_EXPORT_ENV=ALL

export HPCDL_JOB_DIR=/work/me/jobs/train-"$SLURM_CLUSTER_NAME-$SLURM_JOB_ID"
(umask o-w; mkdir -p "$HPCDL_JOB_DIR") && cd "$HPCDL_JOB_DIR" && rm -rf .left .usr2 || exit 3
[[ -O . && ! -L $HPCDL_JOB_DIR && ! $(find "${HPCDL_JOB_DIR%/*}"{,/.} -prune \( -type l -o -perm -o=w \) \
  \( ! -uid "$EUID" ! -uid 0 -o ! -type l ! -perm -1000 \)) ]] || { echo "hpcdl: another user can change $HPCDL_JOB_DIR: give --job-dir a directory of your own" >&2; exit 3; }

hpcdl_leave() {  # The end of the job. 75 from the program means: checkpoint written, run me again.
  trap '' TERM USR2
  if [[ $1 == 75 && ! $hpcdl_stopped ]] && (( ${SLURM_RESTART_COUNT:-0} < 5 )); then
    echo "hpcdl: requeue $(( ${SLURM_RESTART_COUNT:-0} + 1 )) of at most 5"
    trap - TERM; scontrol requeue "$SLURM_JOB_ID" && sleep 60
  fi
  echo "$1" >"$HPCDL_JOB_DIR/exit_code"
  exit "$1"
}
trap 'hpcdl_again=1; [[ $hpcdl_step ]] || hpcdl_leave 75
  echo "hpcdl: the time limit is near: the ranks get USR2" | tee "$HPCDL_JOB_DIR/.usr2"
  kill -USR2 "$hpcdl_step" 2>/dev/null' USR2
trap 'hpcdl_again=1 hpcdl_stopped=1; [[ $hpcdl_step ]] || hpcdl_leave 5
  kill -TERM "$hpcdl_step" 2>/dev/null' TERM

# Modules are loaded here, not inherited: the login node may have another release or partition.
# shellcheck source=/dev/null
source /usr/share/lmod/lmod/init/bash || hpcdl_leave 20
module --force purge
module use /apps/hpcdl/releases/tensorflow-1/modules
module load tensorflow/2.20.0 || hpcdl_leave 20

export CUDA_DEVICE_ORDER=PCI_BUS_ID

! command -v hpcdl >/dev/null || hpcdl preflight judge --world=8 --tasks-per-node=8 --cpus-per-task=16 --gpus-per-node=8 --release=tensorflow-1 "--scratch=/local/$SLURM_JOB_ID" \
  preflight.jsonl -- --mpi=none --cpus-per-task=16 --distribution=block:block --kill-on-bad-exit=1 & wait "$!" || hpcdl_leave "$?"

# Ranks end together: the first that wrote its checkpoint (75) gives the others time for theirs.
mkdir .left
HPCDL_RANK=$(cat <<'END'
trap '' USR2; trap : TERM
"$@"; code=$? left=$HPCDL_JOB_DIR/.left waited=0
true >"$left/rank-$SLURM_PROCID"; [ "$code" = 75 ] || exit "$code"
mkdir "$left/first" 2>/dev/null || { [ -d "$left/first" ] && exit 0; exit 75; }
while set -- "$left"/rank-* && [ "$#" -lt 8 ] && [ "$waited" -lt 90 ]; do
  sleep 1; waited=$((waited + 1))
done
true >"$left/75"; exit 75
END
)

srun --mpi=pmix --cpus-per-task=16 --distribution=block:block --kill-on-bad-exit=1 \
  sh -c "$HPCDL_RANK" rank hpcdl train & hpcdl_step=$!
while hpcdl_again=; wait "$hpcdl_step"; hpcdl_code=$?; [[ $hpcdl_again ]]; do :; done
[[ ! -e $HPCDL_JOB_DIR/.left/75 ]] || hpcdl_code=75
[[ $hpcdl_code != 0 || -s $HPCDL_JOB_DIR/result.json ]] ||
  { echo "hpcdl: srun exited with 0, but the ranks wrote no result: the step did not run" >&2; hpcdl_code=1; }
hpcdl_leave "$hpcdl_code"
