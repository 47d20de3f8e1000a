#!/bin/bash
# JupyterLab in a job: it chooses a free port, and writes host, port and token to files of
# its runtime directory that only its owner can read. $1 is where it works, the rest its arguments.
# Host names of nodes may be unknown to the node itself: then it listens on all interfaces.
command -v jupyter-lab >/dev/null || {
  echo "hpcdl: there is no jupyter-lab on PATH. Add jupyterlab to the stack's packages," >&2
  echo "hpcdl: or name a module that has it: --module NAME" >&2
  exit 127
}
umask 077
export JUPYTER_RUNTIME_DIR=$HPCDL_JOB_DIR/jupyter
rm -rf "$JUPYTER_RUNTIME_DIR"; mkdir "$JUPYTER_RUNTIME_DIR" || exit 3
echo "$SLURMD_NODENAME" >"$JUPYTER_RUNTIME_DIR/node"
JUPYTER_TOKEN=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
export JUPYTER_TOKEN
listen=$SLURMD_NODENAME
getent hosts "$listen" >/dev/null || listen=0.0.0.0
root=$1; shift
cd "$root" || exit 3
exec jupyter-lab --no-browser --ServerApp.ip="$listen" --ServerApp.port=0 \
  --ServerApp.root_dir="$root" "$@"
