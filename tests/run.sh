#!/usr/bin/env bash
# The test suite: `bash tests/run.sh` runs all of it, `bash tests/run.sh --fast` leaves out what is slow.
# Further arguments go to pytest: `bash tests/run.sh tests/core -k preemption`.
set -euo pipefail
cd "$(dirname "$0")/.."
source benchmarks/env.sh

# Tests run in two processes; more threads than cores would only make them slower.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

arguments=()
if [ "${1:-}" = "--fast" ]; then
    shift
    arguments+=(-m "not slow")
fi
exec "$PYTHON" -m pytest -n 2 --dist worksteal --timeout 600 --durations 10 "${arguments[@]}" "$@"
