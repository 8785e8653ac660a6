# Source this: it makes the virtual environment once, and afterwards costs a fraction of a second.
#
#   source benchmarks/env.sh     sets PYTHON to the environment's interpreter
#
# The environment is .venv in the repository; RSERVE_VENV names another folder.

_rserve_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
_rserve_venv="${RSERVE_VENV:-$_rserve_root/.venv}"
PYTHON="$_rserve_venv/bin/python"
export PYTHON

_rserve_stamp() {
    cat "$_rserve_root/requirements.txt" "$_rserve_root/setup.py" | sha256sum | cut -d ' ' -f 1
}

_rserve_find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

_rserve_set_up() {
    local python started=$SECONDS
    if [ ! -x "$PYTHON" ]; then
        if ! python="$(_rserve_find_python)"; then
            echo "Python 3.11 or newer is needed; install it (for example: apt-get install python3 python3-venv)" >&2
            return 1
        fi
        echo "[1/3] making a virtual environment in $_rserve_venv ($("$python" --version))"
        if ! "$python" -m venv "$_rserve_venv"; then
            echo "the venv module failed; install it (for example: apt-get install python3-venv)" >&2
            return 1
        fi
    fi
    echo "[2/3] installing requirements.txt (a few minutes the first time)"
    "$PYTHON" -m pip install --disable-pip-version-check -r "$_rserve_root/requirements.txt" || return 1
    echo "[3/3] installing this repository"
    "$PYTHON" -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation \
        -e "$_rserve_root" || return 1
    _rserve_stamp > "$_rserve_venv/.rserve-stamp"
    echo "environment ready after $((SECONDS - started)) s"
}

# Two scripts that start at once must not install at once.
mkdir -p "$_rserve_venv"
exec 9> "$_rserve_venv/.rserve-lock"
if command -v flock > /dev/null; then flock 9; fi
if [ "$(cat "$_rserve_venv/.rserve-stamp" 2>/dev/null)" != "$(_rserve_stamp)" ]; then
    if ! _rserve_set_up; then
        exec 9>&-
        echo "setting up the environment failed; the lines above say why" >&2
        return 1 2>/dev/null || exit 1
    fi
fi
exec 9>&-
