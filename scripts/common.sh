# common.sh - what the scripts share; sourced by them, never run.
# Each script works from any folder: it goes to the root of the checkout first.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

JOBS=${HEDDLE_JOBS:-$(nproc)}

say() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# configure DIR [CMAKE ARGUMENTS]: (re)configure a build folder, quietly unless it fails.
configure() {
    local dir=$1 log
    shift
    mkdir -p "$dir"
    log=$dir/configure.log
    cmake -S . -B "$dir" -G Ninja "$@" >"$log" 2>&1 || {
        cat "$log"
        return 1
    }
}

# build DIR [TARGETS]: output only when it fails.
build() {
    local dir=$1 log
    shift
    log=$dir/build.log
    cmake --build "$dir" -j "$JOBS" ${1:+--target "$@"} >"$log" 2>&1 || {
        grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$log" | head -n 60
        return 1
    }
}
