#!/usr/bin/env bash
# Parity and speed on this machine's accelerator, in one JSON file; downloads and installs nothing.
#   benchmarks/accelerator.sh [--dry] [--json FILE] [--checkpoint FOLDER] [--device cuda|npu] [--rounds N]
# --dry runs the same steps on the CPU, with stand-ins for the devices and a tiny model: it shows that the command
# works, and measures nothing of worth.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3
exec "$python" -m benchmarks.accelerator "$@"
