# shellcheck shell=bash disable=SC2016,SC2034
# What every job of hpcdl does. A script sources this file of its release, or has these functions
# in itself (`hpcdl job render --standalone`). Comments that begin with two blanks are reasons:
# `hpcdl job explain` prints them, and no script has them.

# clean NAME...: variables of another job, inherited at submission, would change the steps.
clean() {
  local kept=() name
  #  sbatch sets these itself for such a job
  for name; do [[ -v $name ]] && kept+=("$name=${!name}"); done
  #  options inherited from where the job was submitted would change the step  [nested-environment]
  unset "${!SBATCH_@}" "${!SRUN_@}"
  #  srun reads these, and this job does not set them: those of another job would hold here  [nested-environment]
  unset SLURM_CPU_BIND SLURM_CPUS_PER_GPU SLURM_EXACT SLURM_HINT
  unset SLURM_OVERCOMMIT SLURM_OVERLAP SLURM_THREADS_PER_CORE SLURM_WHOLE
  unset SLURM_GPU_BIND SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK
  unset SLURM_GRES SLURM_NTASKS_PER_GPU SLURM_STEP_GRES SLURM_TRES_BIND SLURM_TRES_PER_TASK
  unset SLURM_MEM_BIND SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE
  unset SLURM_CORE_SPEC SLURM_DISTRIBUTION SLURM_EXCLUSIVE SLURM_HOSTFILE
  unset SLURM_NTASKS_PER_CORE SLURM_NTASKS_PER_SOCKET
  #  ranks get this script's environment, even if the job was submitted with --export=NONE  [export-flows]
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
  #  the token of its submission: one job runs with it, however often it was queued
  if [[ ${2-} ]]; then
    local taken
    #  made once, by the first job; a requeued one finds its own id
    ln -sT "${hpcdl_job%_*}" ".job-$2" 2>/dev/null
    #  a full disk takes no link
    taken=$(readlink ".job-$2") || taken=${hpcdl_job%_*}
    [[ $taken == "${hpcdl_job%_*}" ]] || { echo "hpcdl: job $taken is this submission's (0: withdrawn)" >&2; exit 5; }
  fi
  #  marks of an earlier run
  rm -rf .left
}

# leave CODE: the end of the job. 75 means: checkpoint written, run me again.
leave() {
  # A cancelled job's steps may end before this shell is told: it must not end before it is done.
  trap '' TERM
  if [[ $hpcdl_staged ]]; then
    #  staging that still runs holds the nodes: the step that cleans them would wait for its end
    # shellcheck disable=SC2046 # numbers
    kill $(jobs -p) 2>/dev/null; wait
    #  what was staged goes away with the job
    unstage
  fi
  trap '' USR2
  #  not after scancel; only so many times that a broken job does not run for ever  [requeue-uncapped]
  if [[ ! $stopped ]] && (( $1 == 75 && ${SLURM_RESTART_COUNT:-0} < hpcdl_requeues )); then
    #  a program that asks for it unasked may do so at once each time
    trap - TERM
    if [[ ! $asked ]]; then
      pause=$(( 10 << ${SLURM_RESTART_COUNT:-0} ))
      echo "hpcdl: nobody asked the program to stop: requeued after $pause s"
      sleep "$pause" & wait "$!"
    fi
    echo "hpcdl: requeue $(( ${SLURM_RESTART_COUNT:-0} + 1 )) of at most $hpcdl_requeues"
    #  Slurm ends this script when it takes the job back
    scontrol requeue "$hpcdl_job" && sleep 60
  fi
  #  the exit code, for commands that ask after Slurm has forgotten the job
  (( SECONDS < hpcdl_seconds )) && [[ -d ${HPCDL_JOB_DIR-} ]] && echo "$1" >"$HPCDL_JOB_DIR/exit_code"
  #  the job ends with the program's own exit code  [wait-status]
  exit "$1"
}

# values FILE NAME...: values of --env, which stand in a file that only its owner reads, never in a
# script.
values() {
  #  a file of another user is not run; it is written at submission with mode 0600 and stays for requeues
  # shellcheck source=/dev/null
  if [[ -O $1 ]]; then source "$1"; fi
  for name in "${@:2}"; do
    #  a rendered script has no file of values: it takes them from where sbatch is run
    [[ -v $name ]] || { echo "hpcdl: $name has no value: export it before sbatch${1:+, or write it to $1}" >&2; leave 3; }
    export "${name?}"
  done
}

# meet PORTS: where ranks meet: the first node, on a port that is free there.
meet() {
  #  this script runs on the first node of the job
  export MASTER_ADDR=$SLURMD_NODENAME
  #  drawn anew in each run, below the ephemeral range
  while MASTER_PORT=$(shuf --random-source=/dev/urandom -n 1 -i "$1")
    #  somebody listens there: another one
    (: <"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null
  do :; done
  export MASTER_PORT
}

# preflight OPTION...: is this the allocation that was requested? The log gets a row per rank.
preflight() {
  #  the release brings hpcdl; a job of other modules runs without this check
  command -v hpcdl >/dev/null || return 0
  #  a node that has just come back may miss its first step: so try twice
  look >preflight.jsonl || { sleep 5 & wait "$!"; look >preflight.jsonl; }
  #  20 to 29: one number per cause
  hpcdl preflight judge "$@" preflight.jsonl || leave "$?"
}

# together RANKS SECONDS VARIABLE: a rank that exits with 75 wrote its checkpoint. The others get
# some seconds for theirs, since a rank's failure ends all: the first such rank waits for them and
# tells it; each leaves a mark, by its number in a variable.
together() {
  mkdir .left
  #  each rank's own shell expands it
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

# expect FILE: a result at the end is then of this run.
expect() {
  rm -f "$1"
  hpcdl_result=$1
}

# follow PROCESS: the launcher runs in the background, because a shell handles no signal while a
# foreground child runs. It forwards signals to the ranks; then this script waits again.
follow() {
  launcher=$1
  cd "$HPCDL_JOB_DIR" || leave 3
  #  the time is nearly up: ranks write a checkpoint and exit with status 75  [trap-deferred]
  trap 'again=1 asked=1; kill -USR2 "$launcher" 2>/dev/null' USR2
  #  cancelled or preempted: ranks write a checkpoint and exit with status 5  [trap-deferred]
  trap 'again=1 stopped=1; kill -TERM "$launcher" 2>/dev/null' TERM
  while
    again=
    #  the first wait gives 128+n after a signal, the next one the real code  [wait-once]
    wait "$launcher"; code=$?
    [[ $again ]]
  do :; done
  #  ranks that stayed longer were ended: their codes say nothing
  [[ -e .left/75 ]] && code=75
  #  srun exits with 0 for a step that was aborted before it was launched
  if (( code == 0 )) && [[ $hpcdl_result && ! -s $hpcdl_result ]]; then
    echo "hpcdl: srun exited with 0, but the ranks wrote no result: the step did not run" >&2
    code=1
  fi
  leave "$code"
}

#  a pipe fails if any part of it fails  [pipe-status]
set -o pipefail
asked='' stopped='' hpcdl_staged='' hpcdl_result='' hpcdl_requeues=0 hpcdl_seconds=999999999
#  the time is up before the ranks started: nothing to save, run me again  [signal-not-trapped]
trap 'asked=1; leave 75' USR2
#  cancelled before the ranks started
trap 'leave 5' TERM
#  the last line: a script that sources this file knows by it that nothing is cut off
hpcdl_job=$SLURM_JOB_ID
