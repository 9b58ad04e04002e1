#!/usr/bin/env bash
# The stages of photos_effnet end to end on a GPU (some eight minutes of one H200), or a smaller form of them on a CPU:
#
#     benchmarks/gpu.sh OUT PICTURES
#
# OUT is a new or empty folder for the numbers (JSON); PICTURES holds photographs as <wnid>/*.JPEG, all of ImageNet or a part of it.
# It prints images a second of each stage, and compares rankings and maps in bfloat16 with those in float32. FAITHLINE_DEVICE picks
# the device (default: the GPU, if there is one). The environment is VENV (default .venv), made if it is not there; with all of it
# installed no network is needed.
set -euo pipefail

fail() { echo "error: $1" >&2; exit 1; }
[ $# -eq 2 ] || fail "say where to and from where: benchmarks/gpu.sh OUT PICTURES"
[ -d "$2" ] || fail "$2 is no folder of pictures"
mkdir -p "$1"
[ -z "$(ls -A "$1")" ] || fail "$1 is not empty"
out=$(cd "$1" && pwd)
pictures=$(cd "$2" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV:-.venv}
if [ ! -x "$venv/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --disable-pip-version-check -q -e '.[photos]' -c constraints.txt -c constraints-fud.txt -c constraints-dev.txt
fi
python=$(cd "$venv/bin" && pwd)/python
export TQDM_DISABLE=1 PYTHONPATH=$PWD/src OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}

"$python" benchmarks/gpu/photos.py "$out" "$pictures"
echo "numbers: $out"
