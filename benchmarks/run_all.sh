#!/usr/bin/env bash
# The main job: sets up the environment, serves the tiny model and asks it about images, measures on this machine,
# simulates every experiment of the paper, draws every figure, writes results/index.html.
#
#   bash benchmarks/run_all.sh                        --quick: under 20 minutes on two cores
#   bash benchmarks/run_all.sh --full                 more points and requests: hours
#   bash benchmarks/run_all.sh --only fig12,fig16     some figures or experiments
#   bash benchmarks/run_all.sh --device cuda --model PATH --pp 4 --encoders 1
#
# What is finished is not run again; --redo does.
set -euo pipefail
cd "$(dirname "$0")/.."
source benchmarks/env.sh
exec "$PYTHON" -m benchmarks.run_all "$@"
