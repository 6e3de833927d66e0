#!/usr/bin/env bash
# Trains one stage on this machine's accelerators, by the environment that the authors' scripts use:
#   NUM_GPUS             processes; default: all accelerators, or 1; on a machine without them, CPU processes
#   CONFIG_PATH          stage file; EXPERIMENT_CONFIG is another name for it
#   ACCELERATE_CONFIG    accelerate configuration; default: training/configs/accelerate/fsdp2_8gpu.yaml for several
# Files are looked for where it is called, then in the repository, where it runs.
# Further arguments override the stage file: tools/train.sh --run.steps 100
set -euo pipefail
here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
found() { if [ "${1#/}" = "$1" ] && [ -f "$here/$1" ]; then echo "$here/$1"; else echo "$1"; fi; }

config=$(found "${CONFIG_PATH:-${EXPERIMENT_CONFIG:-}}")
launch=$(found "${ACCELERATE_CONFIG:-}")
[ -n "$config" ] || { echo "error: CONFIG_PATH: expected a stage file, got nothing" >&2; exit 2; }
bin=.venv/bin
[ -x "$bin/accelerate" ] || { echo "error: .venv: expected accelerate in it, got none; run make setup" >&2; exit 2; }
[ -z "$launch" ] || [ -f "$launch" ] || { echo "error: ACCELERATE_CONFIG: expected a file, got $launch" >&2; exit 2; }
accelerators=$("$bin/python" -c 'import torch; print(torch.accelerator.device_count())')
processes=${NUM_GPUS:-$((accelerators > 1 ? accelerators : 1))}
if [ "$processes" = 1 ] && [ -z "$launch" ]; then
  exec "$bin/python" -m training "$config" "$@"
fi
if [ "$accelerators" = 0 ] && [ -z "$launch" ]; then
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
  exec "$bin/python" -m torch.distributed.run --standalone --nproc-per-node "$processes" -m training "$config" "$@"
fi
exec "$bin/accelerate" launch --config_file "${launch:-training/configs/accelerate/fsdp2_8gpu.yaml}" \
  --num_processes "$processes" -m training "$config" "$@"
