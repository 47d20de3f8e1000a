#!/bin/bash
# train: 1 node x 8 GPUs on h100 of a100-h100, Slurm 20.11.
# Written by hpcdl; `hpcdl job explain` gives the reason of every line.
#SBATCH --job-name=train
#SBATCH --partition=h100
#SBATCH --account=ai
#SBATCH --qos=h100
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --gpus-per-node=h100:8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

# shellcheck disable=SC2016 # single quotes are intended: nothing is expanded here
set -o pipefail
# Variables of another job, inherited at submission, would change the step below.
unset "${!SBATCH_@}" "${!SRUN_@}"
unset SLURM_CPU_BIND SLURM_CPUS_PER_GPU SLURM_EXACT SLURM_HINT
unset SLURM_OVERCOMMIT SLURM_OVERLAP SLURM_THREADS_PER_CORE SLURM_WHOLE
unset SLURM_GPU_BIND SLURM_GPUS SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK
unset SLURM_GRES SLURM_NTASKS_PER_GPU SLURM_STEP_GRES
unset SLURM_MEM_BIND SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE
unset SLURM_CORE_SPEC SLURM_DISTRIBUTION SLURM_EXCLUSIVE SLURM_HOSTFILE
unset SLURM_NTASKS_PER_CORE SLURM_NTASKS_PER_SOCKET
export SLURM_EXPORT_ENV=ALL

# 75 means: checkpoint written, run me again.
asked='' stopped=''
leave() {
  trap - TERM
  trap '' USR2
  if [[ ! $stopped ]] && (( $1 == 75 && ${SLURM_RESTART_COUNT:-0} < 5 )); then
    if [[ ! $asked ]]; then
      pause=$(( 10 << ${SLURM_RESTART_COUNT:-0} ))
      echo "hpcdl: nobody asked the program to stop: requeued after $pause s"
      sleep "$pause" & wait "$!"
    fi
    echo "hpcdl: requeue $(( ${SLURM_RESTART_COUNT:-0} + 1 )) of at most 5"
    scontrol requeue "$SLURM_JOB_ID" && sleep 60
  fi
  [[ -d ${HPCDL_JOB_DIR-} ]] && echo "$1" >"$HPCDL_JOB_DIR/exit_code"
  exit "$1"
}
trap 'asked=1; leave 75' USR2
trap 'leave 5' TERM

# The job runs in its own directory: log, progress, result and checkpoints.
export HPCDL_JOB_DIR=/work/me/jobs/train-$SLURM_JOB_ID
mkdir -p "$HPCDL_JOB_DIR" && cd "$HPCDL_JOB_DIR" || exit 3
if [[ ${1-} ]]; then
  ln -sT "$SLURM_JOB_ID" ".job-$1" 2>/dev/null
  taken=$(readlink ".job-$1") || taken=$SLURM_JOB_ID
  [[ $taken == "$SLURM_JOB_ID" ]] || { echo "hpcdl: job $taken is this submission's (0: withdrawn)" >&2; exit 5; }
fi

# Modules are loaded here, not inherited: the login node may have another release or partition.
# shellcheck source=/dev/null
source /usr/share/lmod/lmod/init/bash || exit 20
module --force purge
module use /apps/hpcdl/releases/tensorflow-1/modules
module load tensorflow/2.20.0 || exit 20

# GPU numbers mean the same to Slurm and to CUDA.
export CUDA_DEVICE_ORDER=PCI_BUS_ID

# Preflight: is this the allocation that was requested? The log gets a row per rank.
if command -v hpcdl >/dev/null; then
  look() {
    srun --mpi=none --cpus-per-task=12 --exact --distribution=block:block --kill-on-bad-exit=1 \
      hpcdl preflight probe '--scratch=/local/$SLURM_JOB_ID' --transport=. >preflight.jsonl &
    wait "$!"
  }
  look || { sleep 5 & wait "$!"; look; }
  hpcdl preflight judge --world=8 --tasks-per-node=8 --cpus-per-task=12 --gpus-per-node=8 --release=tensorflow-1 --fabric=infiniband --nvlink '--scratch=/local/$SLURM_JOB_ID' preflight.jsonl || exit
fi

rm -f result.json
# A rank that exits with 75 wrote its checkpoint: the others get 90 s for theirs, since a rank's
# failure ends all. The first such rank waits for them and tells it; each leaves a mark.
rm -rf .left && mkdir .left
# shellcheck disable=SC2016 # each rank's own shell expands it
rank='trap : USR2 TERM
"$@"
code=$?
left=$HPCDL_JOB_DIR/.left waited=0
true >"$left/rank-$SLURM_PROCID"
[ "$code" = 75 ] || exit "$code"
mkdir "$left/first" 2>/dev/null || { [ -d "$left/first" ] && exit 0; exit 75; }
while [ "$waited" -lt 90 ]; do
  set -- "$left"/rank-*
  [ "$#" -lt 8 ] || break
  sleep 1; waited=$((waited + 1))
done
true >"$left/75"
exit 75'
# The CPUs of a rank are said again: newer releases do not all take them from the job.
srun --mpi=pmix --cpus-per-task=12 --exact --distribution=block:block --kill-on-bad-exit=1 \
  sh -c "$rank" rank hpcdl train &

# srun runs in the background, because a shell handles no signal while a foreground child runs.
# It forwards signals to the ranks; then this script waits again.
launcher=$!
trap 'again=1 asked=1; kill -USR2 "$launcher" 2>/dev/null' USR2
trap 'again=1 stopped=1; kill -TERM "$launcher" 2>/dev/null' TERM
while
  again=
  wait "$launcher"; code=$?
  [[ $again ]]
do :; done
[[ -e .left/75 ]] && code=75
if (( code == 0 )) && [[ ! -s result.json ]]; then
  echo "hpcdl: srun exited with 0, but the ranks wrote no result: the step did not run" >&2
  code=1
fi
leave "$code"
