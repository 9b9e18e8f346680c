#!/usr/bin/env bash
# Tests and measures fastppo on a machine with an NVIDIA GPU, in under ten minutes:
#
#   bash bench/gpu.sh wheels        once, with a network: the packages that such a machine may lack
#   bash bench/gpu.sh [FOLDER] [--only=STEP,...]      there, also offline
#
# FOLDER (build/gpu) gets three files: report.txt, results.json and logs.tar.gz. All else, such as
# the folders of runs, is below build/.
#
# The second needs Python with torch (CUDA), numpy, numba, cython, safetensors, matplotlib and
# pytest, and a C compiler. It installs the wheels of build/wheels, if there are any, into
# build/site alone, builds the extension, and runs bench/gpu.py, whose steps have a limit each.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
TARGET=${TARGET:-3.12}
WHEELS=build/wheels
WORK=build/gpu_work
SITE=build/site
# What fastppo and its tests import beyond the packages above; pip's answer for Linux on x86-64.
# setuptools: below 77 it refuses the license of pyproject.toml; torch 2.11 wants one below 82.
PACKAGES=("gymnasium>=1.2.3,<2" farama-notifications cloudpickle packaging rich markdown-it-py mdurl
    pygments pillow ale-py Box2D==2.3.10 pygame-ce "setuptools>=77,<82")

if [ "${1:-}" = wheels ]; then
    rm -rf "$WHEELS"
    platforms=()
    for version in 2_17 2_24 2_26 2_27 2_28 2_31 2_34 2_35; do
        platforms+=(--platform "manylinux_${version}_x86_64")
    done
    "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --python-version "$TARGET" \
        --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 -d "$WHEELS" \
        "${PACKAGES[@]}"
    du -sh "$WHEELS"
    exit
fi

folder=build/gpu
if [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; then
    folder=$1
    shift
fi
rm -rf "$WORK"
mkdir -p "$WORK"
if [ -d "$WHEELS" ]; then
    rm -rf "$SITE"
    timeout 30 "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir \
        --target "$SITE" "$WHEELS"/*.whl ||
        echo "the wheels of $WHEELS cannot be installed for $("$PYTHON" --version); going on"
    export PYTHONPATH=$PWD/$SITE${PYTHONPATH:+:$PYTHONPATH}
fi
timeout 120 "$PYTHON" setup.py -q build_ext --inplace >"$WORK/build.txt" 2>&1 || {
    tail -n 20 "$WORK/build.txt"
    echo "the extension cannot be built in 120 s, so kernels are numba's and there are no workers:"
    echo "pong, lander and ranks fail; the others use one process"
}
# SECONDS: those since the start of this script.
exec "$PYTHON" bench/gpu.py "$folder" --work="$WORK" --seconds=$((580 - SECONDS)) "$@"
