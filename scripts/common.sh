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

# What build_shown shows of DIR's build.log, until killed or the script is gone.
show_build() {
    local log=$1/build.log start=$SECONDS at n all quarter=1
    while sleep 0.5 && kill -0 $$ 2>/dev/null; do
        at=$(grep -oE '^\[[0-9]+/[0-9]+\]' "$log" 2>/dev/null | tail -n 1 | tr -d '[]') || continue
        n=${at%/*} all=${at#*/}
        if [ -t 1 ]; then
            printf '\r%d of %d files (%d %%), %d s ' "$n" "$all" $((100 * n / all)) $((SECONDS - start))
        elif [ $((4 * n)) -ge $((quarter * all)) ]; then
            printf '%d of %d files, %d s\n' "$n" "$all" $((SECONDS - start))
            quarter=$((4 * n / all + 1))
        fi
    done
}

# build_shown DIR [TARGETS]: build, and how far it is: one line that is written over on a terminal, a line at each quarter elsewhere;
# then how long it took.  The build stays in the foreground, where ^C finds it.
build_shown() {
    local start=$SECONDS watcher status=0
    : >"$1/build.log"
    show_build "$1" &
    watcher=$!
    build "$@" || status=$?
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    [ ! -t 1 ] || printf '\r%50s\r' ''
    [ "$status" != 0 ] || echo "built in $((SECONDS - start)) s"
    return "$status"
}
