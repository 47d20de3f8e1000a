#!/bin/bash
# Installs the Debian or Ubuntu packages that are missing. Prints which before it does, and does
# nothing if all are present. What counts as present: hpcdl/facts/packages.yaml.
# usage: tools/system.sh [PURPOSE...]      (default: what the tests need)
set -euo pipefail
cd "$(dirname "$0")/.."

purposes=("$@")
(( $# )) || purposes=(cluster accounting mpi modules build images python report test)
python=${PYTHON:-python3}

# Value of a key on a line such as `- {purpose: mpi, package: openmpi-bin, program: mpirun}`.
field() { sed -nE "s/.*[{ ]$1: \"?([^\",}]+)\"?[,}].*/\1/p" <<<"$2"; }

present() {
  local program file found=
  program=$(field program "$1") file=$(field file "$1")
  if [[ $program ]]; then
    found=$(PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$program") || return
    # Of a package beside this one?
    [[ $file && $found == /usr/bin/* && -e /etc/debian_version ]] || return 0
  fi
  compgen -G "$file" >/dev/null
}

# A Python that is not the distribution's brings its own venv and headers.
python_is_complete() {
  "$python" - <<'PYTHON' 2>/dev/null
import ensurepip, pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())
PYTHON
}

# Before minutes of apt. A machine without any Python gets the distribution's.
! command -v "$python" >/dev/null || "$python" tools/check_python.py version

missing=()
for purpose in "${purposes[@]}"; do
  [[ $purpose != python ]] || ! python_is_complete || continue
  while IFS= read -r line; do
    present "$line" || missing+=("$(field package "$line")")
  done < <(grep -E "^ *- \{purpose: $purpose," hpcdl/facts/packages.yaml)
done
(( ${#missing[@]} )) || exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

echo "system packages to install: ${missing[*]}"
command -v apt-get >/dev/null || {
  echo "error: this machine has no apt-get" >&2
  echo "help: install these with your system's package manager, then run make again" >&2
  exit 3
}
sudo=()
if (( EUID )); then
  sudo=(sudo)
  { command -v sudo && sudo env true; } >/dev/null 2>&1 || {
    echo "error: you are not root, and cannot become root by sudo" >&2
    echo "help: as root: apt-get install ${missing[*]}; then run make again" >&2
    exit 3
  }
fi
log=$(mktemp /tmp/hpcdl-apt.XXXXXX)
install() {
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1
}
if ! { install update && install install -y --no-install-recommends "${missing[@]}"; }; then
  tail -n 15 "$log" >&2
  echo "error: apt-get failed; its log is $log" >&2
  exit 4
fi
rm -f "$log"
