# shellcheck shell=bash
# What every job of hpcdl does. A script sources this file of its release, or has the functions that
# it calls in itself (`hpcdl job render --standalone`). Comments that begin with two blanks are
# reasons: `hpcdl job explain` prints them, and no script has them. A line that ends in `#? WORD` is
# only in scripts that have that word.

# Variables of another job, inherited at submission, would change the steps.
hpcdl_clean() {
  #  sbatch sets these itself for such a job
  local kept=() name; for name; do [[ -v $name ]] && kept+=("$name=${!name}"); done
  #  srun reads these, and this job does not set them: those of another job would hold here  [nested-environment]
  unset "${!SBATCH_@}" "${!SRUN_@}" SLURM_{CPU_BIND,CPUS_PER_GPU,EXACT,EXCLUSIVE,HINT,WHOLE,GRES} \
    SLURM_{GPU_BIND,GPUS,GPUS_PER_NODE,GPUS_PER_SOCKET,GPUS_PER_TASK,STEP_GRES,TRES_BIND,OVERLAP} \
    SLURM_{MEM_BIND,MEM_PER_CPU,MEM_PER_GPU,MEM_PER_NODE,TRES_PER_TASK,CORE_SPEC,OVERCOMMIT} \
    SLURM_{THREADS_PER_CORE,NTASKS_PER_GPU,NTASKS_PER_CORE,NTASKS_PER_SOCKET,DISTRIBUTION,HOSTFILE}
  #  ranks get this script's environment, even if the job was submitted with --export=NONE  [export-flows]
  export "${kept[@]}" SLURM_EXPORT_ENV=ALL
}

# The name of a directory with the job's number can be foreseen: no other user may own or rename it.
hpcdl_own() {
  local dir=$HPCDL_JOB_DIR up=${HPCDL_JOB_DIR%/*} others=(! -uid "$EUID" ! -uid 0)
  [[ $(find "$dir"{,/.} -prune "${others[@]}"; find "$up"{,/.} -prune \
    \( -type l "${others[@]}" -o ! -type l -perm -o=w \( "${others[@]}" -o ! -perm -1000 \) \)) ]] || return 0
  echo "hpcdl: another user can change $dir: give --job-dir a directory of your own" >&2; exit 3
}

# One job runs with the token of its submission, however often it was queued.
hpcdl_once() {
  [[ ${1-} ]] || return 0
  local job=${HPCDL_JOB%_*} taken
  #  made once, by the first job; a requeued one finds its own id
  ln -sT "$job" ".job-$1" 2>/dev/null
  #  a full disk takes no link
  taken=$(readlink ".job-$1") || taken=$job
  [[ $taken == "$job" ]] && return
  echo "hpcdl: job $taken is this submission's (0: withdrawn)" >&2
  exit 5
}

# The end of the job. 75 means: checkpoint written, run me again.
hpcdl_leave() {
  #  a cancelled job's steps may end before this shell is told: it must not end before it is done
  trap '' TERM #? hpcdl_unstage
  [[ ! $HPCDL_STAGED ]] || hpcdl_unstage #? hpcdl_unstage
  trap '' TERM USR2
  #  not after scancel; only so many times that a broken job does not run for ever  [requeue-uncapped]
  if [[ ! $hpcdl_stopped ]] && (( $1 == 75 && ${SLURM_RESTART_COUNT:-0} < HPCDL_REQUEUES )); then #? HPCDL_REQUEUES
    trap - TERM #? HPCDL_REQUEUES
    #  a program that asks for it unasked may do so at once each time
    [[ $hpcdl_asked ]] || { echo "hpcdl: nobody asked the program to stop: a pause"; sleep "$(( 10 << ${SLURM_RESTART_COUNT:-0} ))" & wait "$!"; } #? HPCDL_REQUEUES
    echo "hpcdl: requeue $(( ${SLURM_RESTART_COUNT:-0} + 1 )) of at most $HPCDL_REQUEUES" #? HPCDL_REQUEUES
    #  Slurm ends this script when it takes the job back
    scontrol requeue "$HPCDL_JOB" && sleep 60 #? HPCDL_REQUEUES
  fi #? HPCDL_REQUEUES
  #  a job that ran to its limit leaves no exit code: the next of the chain resumes
  (( SECONDS < ${HPCDL_SECONDS-999999999} )) || exit "$1" #? HPCDL_SECONDS
  #  the exit code, for commands that ask after Slurm has forgotten the job
  [[ ! -d ${HPCDL_JOB_DIR-} ]] || echo "$1" >"$HPCDL_JOB_DIR/exit_code"
  #  the job ends with the program's own exit code  [wait-status]
  exit "$1"
}

# hpcdl_values FILE NAME...: values of --env are in a file that only its owner reads.
hpcdl_values() {
  local name
  #  a file of another user is not run; it is written at submission with mode 0600 and stays for requeues
  # shellcheck source=/dev/null
  if [[ -O $1 ]]; then source "$1"; fi
  for name in "${@:2}"; do
    #  a rendered script has no file of values: it takes them from where sbatch is run
    [[ -v $name ]] || { echo "hpcdl: $name has no value: export it before sbatch${1:+, or write it to $1}" >&2; hpcdl_leave 3; }
    export "${name?}"
  done
}

# hpcdl_meet PORTS: ranks meet on the first node, on a port that is free there.
hpcdl_meet() {
  #  this script runs on the first node of the job
  export MASTER_ADDR=$SLURMD_NODENAME
  #  drawn anew in each run, below the ephemeral range
  while MASTER_PORT=$(shuf --random-source=/dev/urandom -n 1 -i "$1")
    #  somebody listens there: another one
    (: <"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null
  do :; done
  export MASTER_PORT
}

# Preflight: is this the allocation that was requested? The log gets a row per rank.
hpcdl_preflight() {
  #  the release brings hpcdl; a job of other modules runs without this check
  command -v hpcdl >/dev/null || return 0
  #  a node that has just come back may miss its first step: so try twice
  hpcdl_look >preflight.jsonl || { sleep 5 & wait "$!"; hpcdl_look >preflight.jsonl; }
  #  20 to 29: one number per cause
  hpcdl preflight judge "$@" preflight.jsonl || hpcdl_leave "$?"
}

# Ranks end together: the first that wrote its checkpoint (75) gives the others time for theirs.
hpcdl_together() {
  #  RANKS SECONDS VARIABLE [USR2]: each rank leaves a mark, by its number in a variable
  rm -rf .left; mkdir .left
  #  the program starts with USR2 ignored, which a handler overrides: the signal ends no program
  #  that knows nothing of it
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
  cd "$HPCDL_JOB_DIR" || hpcdl_leave 3 #? || hpcdl_leave 3
  #  the time is nearly up: ranks write a checkpoint and exit with status 75  [trap-deferred]
  trap 'again=1 hpcdl_asked=1; echo "hpcdl: the time limit is near: the ranks get USR2" | tee .usr2; kill -USR2 "$launcher" 2>/dev/null' USR2
  #  cancelled or preempted: ranks write a checkpoint and exit with status 5  [trap-deferred]
  trap 'again=1 hpcdl_stopped=1; kill -TERM "$launcher" 2>/dev/null' TERM
  #  the first wait gives 128+n after a signal, the next one the real code  [wait-once]
  while again=; wait "$1"; code=$?; [[ $again ]]; do :; done
  #  ranks that stayed longer were ended: their codes say nothing
  [[ ! -e .left/75 ]] || code=75 #? hpcdl_together
  #  srun exits with 0 for a step that was aborted before it was launched
  [[ $code != 0 || ! $HPCDL_RESULT || -s $HPCDL_RESULT ]] || { echo "hpcdl: srun exited with 0, but the ranks wrote no result: the step did not run" >&2; code=1; } #? HPCDL_RESULT
  hpcdl_leave "$code"
}

#  a pipe fails if any part of it fails  [pipe-status]
set -o pipefail
hpcdl_asked='' hpcdl_stopped='' #? HPCDL_REQUEUES
HPCDL_REQUEUES=0 HPCDL_STAGED='' HPCDL_RESULT='' #? (sourced)
#  the time is up before the ranks started: nothing to save, run me again  [signal-not-trapped]
trap 'hpcdl_asked=1; hpcdl_leave 75' USR2
#  cancelled before the ranks started
trap 'hpcdl_leave 5' TERM
#  the last line: a script that sources this file knows by it that nothing is cut off
HPCDL_JOB=$SLURM_JOB_ID
