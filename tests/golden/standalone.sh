#!/bin/bash
# train: 2 nodes x 8 GPUs on a100 of a100-h100, Slurm 24.05.
# Written by hpcdl; `hpcdl job explain` gives the reason of every line.
#SBATCH --job-name=train
#SBATCH --partition=a100
#SBATCH --account=ai
#SBATCH --qos=normal
#SBATCH --nodes=2
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
# shellcheck disable=SC2016,SC2317 # single quotes are intended
# clean NAME...: variables of another job, inherited at submission, would change the steps.
clean() {
  local kept=() name
  for name; do [[ -v $name ]] && kept+=("$name=${!name}"); done
  unset "${!SBATCH_@}" "${!SRUN_@}"
  unset SLURM_CPU_BIND SLURM_CPUS_PER_GPU SLURM_EXACT SLURM_HINT
  unset SLURM_OVERCOMMIT SLURM_OVERLAP SLURM_THREADS_PER_CORE SLURM_WHOLE
  unset SLURM_GPU_BIND SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK
  unset SLURM_GRES SLURM_NTASKS_PER_GPU SLURM_STEP_GRES SLURM_TRES_BIND SLURM_TRES_PER_TASK
  unset SLURM_MEM_BIND SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE
  unset SLURM_CORE_SPEC SLURM_DISTRIBUTION SLURM_EXCLUSIVE SLURM_HOSTFILE
  unset SLURM_NTASKS_PER_CORE SLURM_NTASKS_PER_SOCKET
  export "${kept[@]}" SLURM_EXPORT_ENV=ALL
}

# ours DIRECTORY: the name of one with the job's number can be foreseen. It is no other user's, nor
# a link of his, and no stranger can rename it, as he can in a directory where everybody writes.
ours() {
  [[ $1 == *-"$SLURM_CLUSTER_NAME-$SLURM_JOB_ID" ]] || return 0
  local found above=${1%/*} others=(! -uid "$EUID" ! -uid 0)
  found=$(find "$1" "$1/." -prune "${others[@]}"; find "$above" "$above/." -prune \
    \( -type l "${others[@]}" -o ! -type l -perm -o=w \( "${others[@]}" -o ! -perm -1000 \) \))
  [[ ! $found ]] || { echo "hpcdl: another user can change ${found%%$'\n'*}: give --job-dir a directory of your own" >&2; return 1; }
}

# begin DIRECTORY [TOKEN]: the job runs in its own directory, with log, progress and result.
begin() {
  export HPCDL_JOB_DIR=$1
  (umask o-w; mkdir -p "$HPCDL_JOB_DIR") && ours "$HPCDL_JOB_DIR" && cd "$HPCDL_JOB_DIR" || exit 3
  if [[ ${2-} ]]; then
    local taken
    ln -sT "${hpcdl_job%_*}" ".job-$2" 2>/dev/null
    taken=$(readlink ".job-$2") || taken=${hpcdl_job%_*}
    [[ $taken == "${hpcdl_job%_*}" ]] || { echo "hpcdl: job $taken is this submission's (0: withdrawn)" >&2; exit 5; }
  fi
  rm -rf .left
}

# leave CODE: the end of the job. 75 means: checkpoint written, run me again.
leave() {
  # A cancelled job's steps may end before this shell is told: it must not end before it is done.
  trap '' TERM
  if [[ $hpcdl_staged ]]; then
    # shellcheck disable=SC2046 # numbers
    kill $(jobs -p) 2>/dev/null; wait
    unstage
  fi
  trap '' USR2
  if [[ ! $stopped ]] && (( $1 == 75 && ${SLURM_RESTART_COUNT:-0} < hpcdl_requeues )); then
    trap - TERM
    if [[ ! $asked ]]; then
      pause=$(( 10 << ${SLURM_RESTART_COUNT:-0} ))
      echo "hpcdl: nobody asked the program to stop: requeued after $pause s"
      sleep "$pause" & wait "$!"
    fi
    echo "hpcdl: requeue $(( ${SLURM_RESTART_COUNT:-0} + 1 )) of at most $hpcdl_requeues"
    scontrol requeue "$hpcdl_job" && sleep 60
  fi
  (( SECONDS < hpcdl_seconds )) && [[ -d ${HPCDL_JOB_DIR-} ]] && echo "$1" >"$HPCDL_JOB_DIR/exit_code"
  exit "$1"
}

# meet PORTS: where ranks meet: the first node, on a port that is free there.
meet() {
  export MASTER_ADDR=$SLURMD_NODENAME
  while MASTER_PORT=$(shuf --random-source=/dev/urandom -n 1 -i "$1")
    (: <"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null
  do :; done
  export MASTER_PORT
}

# preflight OPTION...: is this the allocation that was requested? The log gets a row per rank.
preflight() {
  command -v hpcdl >/dev/null || return 0
  look >preflight.jsonl || { sleep 5 & wait "$!"; look >preflight.jsonl; }
  hpcdl preflight judge "$@" preflight.jsonl || leave "$?"
}

# together RANKS SECONDS VARIABLE: a rank that exits with 75 wrote its checkpoint. The others get
# some seconds for theirs, since a rank's failure ends all: the first such rank waits for them and
# tells it; each leaves a mark, by its number in a variable.
together() {
  mkdir .left
  rank='trap : USR2 TERM
"$@"
code=$?
left=$HPCDL_JOB_DIR/.left waited=0
true >"$left/rank-$'$3'"
[ "$code" = 75 ] || exit "$code"
mkdir "$left/first" 2>/dev/null || { [ -d "$left/first" ] && exit 0; exit 75; }
while [ "$waited" -lt '$2' ]; do
  set -- "$left"/rank-*
  [ "$#" -lt '$1' ] || break
  sleep 1; waited=$((waited + 1))
done
true >"$left/75"
exit 75'
}

# follow PROCESS: the launcher runs in the background, because a shell handles no signal while a
# foreground child runs. It forwards signals to the ranks; then this script waits again.
follow() {
  launcher=$1
  cd "$HPCDL_JOB_DIR" || leave 3
  trap 'again=1 asked=1; kill -USR2 "$launcher" 2>/dev/null' USR2
  trap 'again=1 stopped=1; kill -TERM "$launcher" 2>/dev/null' TERM
  while
    again=
    wait "$launcher"; code=$?
    [[ $again ]]
  do :; done
  [[ -e .left/75 ]] && code=75
  if (( code == 0 )) && [[ $hpcdl_result && ! -s $hpcdl_result ]]; then
    echo "hpcdl: srun exited with 0, but the ranks wrote no result: the step did not run" >&2
    code=1
  fi
  leave "$code"
}

set -o pipefail
asked='' stopped='' hpcdl_staged='' hpcdl_result='' hpcdl_requeues=0 hpcdl_seconds=999999999
trap 'asked=1; leave 75' USR2
trap 'leave 5' TERM
hpcdl_job=$SLURM_JOB_ID
hpcdl_requeues=5
clean SLURM_GPUS_PER_NODE SLURM_TRES_PER_TASK
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
meet 12000-32767

# Preflight: is this the allocation that was requested? The log gets a row per rank.
look() {
  srun --mpi=none --cpus-per-task=16 --distribution=block:block --kill-on-bad-exit=1 \
    hpcdl preflight probe '--scratch=/local/$SLURM_JOB_ID' --transport=. &
  wait "$!"
}
preflight --world=16 --tasks-per-node=8 --cpus-per-task=16 --gpus-per-node=8 --release=tensorflow-1 --fabric=infiniband --nvlink '--scratch=/local/$SLURM_JOB_ID'

together 16 90 SLURM_PROCID
# The CPUs of a rank are said again, so that no inherited variable decides them.
srun --mpi=pmix --cpus-per-task=16 --distribution=block:block --kill-on-bad-exit=1 \
  sh -c "$rank" rank python train.py --lr 0.1 &
follow "$!"
