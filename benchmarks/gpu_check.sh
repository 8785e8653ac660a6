#!/usr/bin/env bash
# Checks and measures this project on a machine with a GPU, in under 8 minutes; downloads nothing.
#
#   bash benchmarks/gpu_check.sh          all of it; without a GPU it says so and ends with 1
#   bash benchmarks/gpu_check.sh --cpu    what can be checked without a GPU
#
# PYTHON names an interpreter that has torch, triton and transformers (default: .venv, else python3).
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; fi
fi
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
exec timeout --signal=INT 480 "$PYTHON" -m benchmarks.gpu_check "$@"
