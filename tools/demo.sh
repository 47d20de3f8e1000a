#!/bin/bash
# The demo; `make demo` runs it. Each command is one that a person could type. What exists already
# is used again, so a demo that was stopped continues. `bash tools/demo.sh 4` ends after step 4.
# shellcheck disable=SC2016  # what is in backquotes is shown
set -u
export HPCDL_SITE=embedded
last=${1:-7} begun=$SECONDS number=0 bold='' plain=''
times=${HPCDL_HOME:-~/.local/share/hpcdl}/demo # how long each step took the last time
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' plain=$'\e[0m'; fi

finish() {
  keep
  printf '\nDone in %s s. Next:\n' $((SECONDS - begun))
  # `make demo` puts this environment's programs before a PATH that may lack them.
  PATH=${PATH#*:} type -P hpcdl >/dev/null || printf '  export PATH=%s:$PATH\n' "${PATH%%:*}"
  printf '  %s\n' 'export HPCDL_SITE=embedded; eval "$(hpcdl cluster env)"; sinfo; module avail' \
    'hpcdl job list           # the jobs so far; `hpcdl job report JOB` says where the time went' \
    'hpcdl job explain --partition p100 --gpus 8   # a script, and why each line is in it' \
    'hpcdl cluster down       # stops the cluster'
  echo 'docs/tutorial-user.md goes on from here.'
  exit 0
}

keep() { # the seconds of the step that has ended
  [ "$number" = 0 ] || { mkdir -p "$times" && echo $((SECONDS - since)) >"$times/$number"; }
}

step() { # TITLE REASON
  local took=''
  [ "$number" -lt "$last" ] || finish
  keep
  number=$((number + 1)) since=$SECONDS
  [ ! -r "$times/$number" ] || took=" It took $(<"$times/$number") s the last time."
  printf '\n%s[%s/7] %s%s\n%s%s\n' "$bold" "$number" "$1" "$plain" "$2" "$took"
}

run() { # STATUS COMMAND...: runs a command that must exit with this status
  local wanted=$1 status
  shift
  printf '$ %s\n' "$*"
  "$@" </dev/null
  status=$?
  [ "$status" = "$wanted" ] && return
  printf 'error: step %s: its command exited with status %s, not %s\n' \
    "$number" "$status" "$wanted" >&2
  printf 'help: `make demo` continues there\n' >&2
  exit $((status == 5 ? 5 : 1)) # 5: by a signal
}

step 'a real Slurm on this machine' \
  'Seven emulated nodes in four partitions, with the daemons that a cluster has.'
run 0 hpcdl cluster up
eval "$(hpcdl cluster env)"
run 0 sinfo
data=$(hpcdl site show --json | sed -n 's/.*"datasets": "\(.*\)".*/\1/p')/digits

step 'the software stack: TensorFlow and Horovod, built once, published as a module' \
  'Publishing has a gate: a job on the partition imports, reduces and trains with it.'
run 0 hpcdl stack build --backend wheels
run 0 hpcdl stack publish --partition p100

step 'a data set: 1,797 handwritten digits as TFRecords' \
  'It is made here, so nothing is downloaded; checksums show when it is damaged.'
run 0 hpcdl data make digits "$data"

step 'a training job on 2 nodes x 2 ranks' \
  'The script is derived from the site file; `hpcdl job explain` gives its reasons.'
run 0 hpcdl job submit --partition p100 --nodes 2 --gpus-per-node 2 --name digits --time 10:00 \
  --watch -- --model mlp --data "$data" --epochs 60 --global-batch 128 --target-accuracy 0.95

step 'a reference: throughput of the healthy cluster' \
  'Several runs show how much it scatters; that sets the bound of the nightly check.'
check=(--partition p100 --tag smoke --name throughput)
run 0 hpcdl check references measure "${check[@]}"

step 'the nightly check, compared with the reference' \
  'Every metric has a verdict, and the exit status is one that a pipeline can use.'
run 0 hpcdl check run "${check[@]}"

step 'the same check with a slowed job: it must fail' \
  'Each training step is held up for 60 ms; a check that never fails proves nothing.'
run 1 hpcdl check run "${check[@]}" --set delay_ms=60 --set steps=60
echo 'FAIL as expected: the check detected the slowdown.'
finish
