#!/usr/bin/env bash
# Starts the embedded server the way CARLA is started, for programs that launch $CARLA_ROOT/CarlaUE4.sh themselves:
# point CARLA_ROOT at this folder. The script becomes the server, so its pid and its signals are the server's.
#
#   CarlaUE4.sh [TOWN] [-carla-rpc-port=PORT] [other flags of Unreal, ignored]
#
#   WAMDIFF2_DIALECT   CARLA version of the clients: 0.9.15 (default, Bench2Drive's) or 0.9.16
#   WAMDIFF2_MAPS      folder of .xodr files that clients load by name
#   WAMDIFF2_PYTHON    Python that has wamdiff2 installed; by default .venv of this checkout, then `python3`
#   WAMDIFF2_PID_FILE  file to write the server's pid to
#   WAMDIFF2_ORPHAN=1  let the server live on when the process that started it is killed
set -euo pipefail

folder=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
checkout=$(dirname "$(dirname "$folder")")

town=''
port=2000
for argument in "$@"; do
  case $argument in
    -carla-rpc-port=* | --carla-rpc-port=* | -carla-port=* | -world-port=*) port=${argument#*=} ;;
    -*) ;;
    *) town=${town:-$argument} ;;
  esac
done

python=${WAMDIFF2_PYTHON:-}
if [ -z "$python" ]; then
  python=$checkout/.venv/bin/python
  [ -x "$python" ] || python=python3
fi

options=(--port "$port" --client-version "${WAMDIFF2_DIALECT:-0.9.15}")
[ -z "$town" ] || options+=(--town "${town##*/}")
[ -z "${WAMDIFF2_MAPS:-}" ] || options+=(--maps "$WAMDIFF2_MAPS")
[ -n "${WAMDIFF2_ORPHAN:-}" ] || options+=(--with-parent "$PPID")
[ -z "${WAMDIFF2_PID_FILE:-}" ] || echo $$ >"$WAMDIFF2_PID_FILE"

# The caller's Python is another one (Bench2Drive: 3.8): its search paths would break ours.
unset PYTHONHOME LD_LIBRARY_PATH _ROS_WHEELS_BOOTSTRAP_COMPLETE
export PYTHONPATH=$checkout
exec "$python" -m carla_bridge.server "${options[@]}"
