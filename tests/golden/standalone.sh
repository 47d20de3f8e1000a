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

# Variables of another job, inherited at submission, would change the steps.
hpcdl_clean() {
  local kept=() name; for name; do [[ -v $name ]] && kept+=("$name=${!name}"); done
  unset "${!SBATCH_@}" "${!SRUN_@}" SLURM_{CPU_BIND,CPUS_PER_GPU,EXACT,EXCLUSIVE,HINT,WHOLE,GRES} \
    SLURM_{GPU_BIND,GPUS,GPUS_PER_NODE,GPUS_PER_SOCKET,GPUS_PER_TASK,STEP_GRES,TRES_BIND,OVERLAP} \
    SLURM_{MEM_BIND,MEM_PER_CPU,MEM_PER_GPU,MEM_PER_NODE,TRES_PER_TASK,CORE_SPEC,OVERCOMMIT} \
    SLURM_{THREADS_PER_CORE,NTASKS_PER_GPU,NTASKS_PER_CORE,NTASKS_PER_SOCKET,DISTRIBUTION,HOSTFILE}
  export "${kept[@]}" SLURM_EXPORT_ENV=ALL
}

# The name of a directory with the job's number can be foreseen: no other user may own or rename it.
hpcdl_own() {
  local dir=$HPCDL_JOB_DIR up=${HPCDL_JOB_DIR%/*} others=(! -uid "$EUID" ! -uid 0)
  [[ $(find "$dir"{,/.} -prune "${others[@]}"; find "$up"{,/.} -prune \
    \( -type l "${others[@]}" -o ! -type l -perm -o=w \( "${others[@]}" -o ! -perm -1000 \) \)) ]] || return 0
  echo "hpcdl: another user can change $dir: give --job-dir a directory of your own" >&2; exit 3
}

# The end of the job. 75 means: checkpoint written, run me again.
hpcdl_leave() {
  trap '' TERM USR2
  if [[ ! $hpcdl_stopped ]] && (( $1 == 75 && ${SLURM_RESTART_COUNT:-0} < HPCDL_REQUEUES )); then
    trap - TERM
    [[ $hpcdl_asked ]] || { echo "hpcdl: nobody asked the program to stop: a pause"; sleep "$(( 10 << ${SLURM_RESTART_COUNT:-0} ))" & wait "$!"; }
    echo "hpcdl: requeue $(( ${SLURM_RESTART_COUNT:-0} + 1 )) of at most $HPCDL_REQUEUES"
    scontrol requeue "$HPCDL_JOB" && sleep 60
  fi
  [[ ! -d ${HPCDL_JOB_DIR-} ]] || echo "$1" >"$HPCDL_JOB_DIR/exit_code"
  exit "$1"
}

# hpcdl_meet PORTS: ranks meet on the first node, on a port that is free there.
hpcdl_meet() {
  export MASTER_ADDR=$SLURMD_NODENAME
  while MASTER_PORT=$(shuf --random-source=/dev/urandom -n 1 -i "$1")
    (: <"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null
  do :; done
  export MASTER_PORT
}

# Preflight: is this the allocation that was requested? The log gets a row per rank.
hpcdl_preflight() {
  command -v hpcdl >/dev/null || return 0
  hpcdl_look >preflight.jsonl || { sleep 5 & wait "$!"; hpcdl_look >preflight.jsonl; }
  hpcdl preflight judge "$@" preflight.jsonl || hpcdl_leave "$?"
}

# Ranks end together: the first that wrote its checkpoint (75) gives the others time for theirs.
hpcdl_together() {
  rm -rf .left; mkdir .left
  HPCDL_RANK="trap '${4-}' USR2; trap : TERM
\"\$@\"; code=\$? left=\$HPCDL_JOB_DIR/.left waited=0
true >\"\$left/rank-\$$3\"; [ \"\$code\" = 75 ] || exit \"\$code\"
mkdir \"\$left/first\" 2>/dev/null || { [ -d \"\$left/first\" ] && exit 0; exit 75; }
while set -- \"\$left\"/rank-* && [ \"\$#\" -lt $1 ] && [ \"\$waited\" -lt $2 ]; do
  sleep 1; waited=\$((waited + 1))
done
true >\"\$left/75\"; exit 75"
}

# The launcher is in the background, as a shell handles no signal while a foreground child runs.
hpcdl_follow() {
  local launcher=$1 again code
  trap 'again=1 hpcdl_asked=1; echo "hpcdl: the time limit is near: the ranks get USR2" | tee .usr2; kill -USR2 "$launcher" 2>/dev/null' USR2
  trap 'again=1 hpcdl_stopped=1; kill -TERM "$launcher" 2>/dev/null' TERM
  while again=; wait "$1"; code=$?; [[ $again ]]; do :; done
  [[ ! -e .left/75 ]] || code=75
  hpcdl_leave "$code"
}

set -o pipefail
hpcdl_asked='' hpcdl_stopped=''
trap 'hpcdl_asked=1; hpcdl_leave 75' USR2
trap 'hpcdl_leave 5' TERM
HPCDL_JOB=$SLURM_JOB_ID
export HPCDL_REQUEUES=5
hpcdl_clean SLURM_GPUS_PER_NODE SLURM_TRES_PER_TASK
export SLURM_PMIX_FENCE=ring

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
export NCCL_SOCKET_IFNAME=ib0
export OMPI_MCA_btl_tcp_if_include=ib0
export OMPI_MCA_oob_tcp_if_include=ib0
hpcdl_meet 12000-32767

hpcdl_look() { srun --mpi=none --cpus-per-task=16 --distribution=block:block --kill-on-bad-exit=1 \
  hpcdl preflight probe "--scratch=/local/$SLURM_JOB_ID" --transport=. & wait "$!"; }
hpcdl_preflight --world=16 --tasks-per-node=8 --cpus-per-task=16 --gpus-per-node=8 --release=tensorflow-1 --fabric=infiniband --nvlink "--scratch=/local/$SLURM_JOB_ID"

hpcdl_together 16 90 SLURM_PROCID
# The CPUs of a rank are said again, so that no inherited variable decides them.
srun --mpi=pmix --cpus-per-task=16 --distribution=block:block --kill-on-bad-exit=1 \
  sh -c "$HPCDL_RANK" rank python train.py --lr 0.1 &
hpcdl_follow "$!"
