#!/bin/bash
# The demo: from a bare Slurm to a verdict. Every step is a command that a person could type.
# What exists already is used again.
# usage: tools/demo.sh [STEPS]      (default: all)
set -euo pipefail

started=$SECONDS
number=0
steps=7
bold='' plain=''
[[ ! -t 1 ]] || bold=$'\033[1m' plain=$'\033[0m'

say() {
  (( number < last )) || end
  printf '\n%s[%d/%d] %s%s\n' "$bold" "$((number += 1))" "$steps" "$1" "$plain"
}
show() { printf '$ %s\n' "$*"; "$@"; }
end() {
  echo
  echo "Done in $((SECONDS - started)) s. To explore the cluster:"
  echo "  export PATH=$(dirname "$(command -v hpcdl)"):\$PATH HPCDL_SITE=$HPCDL_SITE"
  # shellcheck disable=SC2016 # a person is to type this
  echo '  eval "$(hpcdl cluster env)"; squeue; sinfo; module avail'
  echo "  make down    # stops the cluster"
  exit 0
}
last=${1:-$steps}
trap 'code=$?; (( code == 0 )) || echo "the demo stopped with exit code $code; run it again, it resumes" >&2' EXIT

export NO_COLOR="${NO_COLOR-}"

say "a real Slurm on this machine"
show hpcdl cluster up
eval "$(hpcdl cluster env)"
show sinfo

say "the software stack: TensorFlow and Horovod, built once, published as a module"
show hpcdl stack build --backend venv
show hpcdl stack publish --partition p100   # the gate: a job on the partition used below

datasets=$(hpcdl site show --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["paths"]["datasets"])')
say "a data set: 1,797 handwritten digits as TFRecords"
show hpcdl data make digits "$datasets/digits"

say "a training job on 2 nodes x 2 ranks"
show hpcdl job submit --partition p100 --nodes 2 --gpus-per-node 2 --name digits --time 10:00 --watch \
  -- --model mlp --data "$datasets/digits" --epochs 150 --global-batch 128 --target-accuracy 0.95

say "a reference: throughput of the healthy cluster"
show hpcdl check references measure --partition p100 --tag smoke --name throughput --if-missing

say "the nightly check, compared with the reference"
show hpcdl check run --partition p100 --tag smoke --name throughput

say "the same check with a slowed job: it must fail"
code=0
show hpcdl check run --partition p100 --tag smoke --name throughput --set delay_ms=60 --set steps=100 || code=$?
if (( code != 1 )); then
  echo "error: the check did not detect the slowed job (exit code $code)" >&2
  exit 1
fi
echo "FAIL as expected: the check detected the slowdown."

end
