#!/usr/bin/env bash
# The node-agent on a real NVIDIA GPU: values, faults, cost. Writes one JSON file.
#
#   tests/acceptance/h200.sh [--out FILE] [--quick] [--rehearse]
#
# Needs Linux, the driver, Python >= 3.11 with pip, and root (kernel log, tracefs, cgroups; what is
# not permitted is left out and named in the result). Provokes Xid 13 and 31 by faulty kernels of its
# own processes: run it on a GPU that nobody else uses. No setting of the GPU is changed.
# WHEELS=FOLDER: install the wheels of that folder, without an index.
# --rehearse: the same run on a fake driver, to try the script itself on a machine without a GPU.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
mounted=()
cleanup() {
  for folder in "${mounted[@]}"; do umount "$folder" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT

say() { printf '%s %s\n' "$(date +%T)" "$*"; }
# `tests` of this repository, whatever package of that name is installed here.
mkdir -p "$work/lib/tests"
printf '__path__ = [%s]\n' "'$repo/tests'" >"$work/lib/tests/__init__.py"
export PYTHONPATH=$work/lib:$work/site:$repo/node-agent:$repo PYTHONUNBUFFERED=1
cd "$repo"

say "installing into $work/site"
pip=(python3 -m pip install --quiet --no-warn-conflicts --target "$work/site")
if [ -n "${WHEELS:-}" ]; then
  "${pip[@]}" --no-index --no-deps "$WHEELS"/*.whl
else
  "${pip[@]}" --require-hashes -r requirements/agent.txt
  "${pip[@]}" --no-deps -r tests/acceptance/requirements.txt nvitop psutil cryptography cffi pycparser
fi
python3 -m compileall -q "$work/site" node-agent/node_agent >/dev/null || true

# mount_if_missing TYPE FOLDER SIGN: SIGN is there when something is mounted already.
mount_if_missing() {
  if compgen -G "$3" >/dev/null; then return; fi
  if mount -t "$1" "$1" "$2" 2>/dev/null; then
    mounted+=("$2")
    say "mounted $1 at $2"
  else
    say "$1 cannot be mounted at $2; the run goes on without"
  fi
}
if [[ " $* " != *" --rehearse "* ]]; then
  mount_if_missing tracefs /sys/kernel/tracing "/sys/kernel/tracing/events"
  mount_if_missing cgroup2 /sys/fs/cgroup "/sys/fs/cgroup/*"
fi
python3 -m tests.acceptance.run --work "$work" "$@"
