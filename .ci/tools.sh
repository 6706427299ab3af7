# shellcheck shell=bash
# Helpers of `test`: run and time steps, install missing programs, count passed tests.

current="start"
step_times=()
failures=()
keep_going=false

# step HEADING COMMAND...: runs and times a step. Never call it in a condition, because `set -e`
# does not apply there. A failed step ends the run unless `keep_going` is true.
step() {
    current=$1
    shift
    printf '\n=== %s\n' "$current"
    local begun=$SECONDS failed=""
    if $keep_going; then
        set +e
        (set -e; "$@")
        [ $? -eq 0 ] || failed=" FAILED"
        set -e
    else
        "$@"
    fi
    local took=$((SECONDS - begun))
    step_times+=("$(printf '%5s s  %s%s' "$took" "$current" "$failed")")
    printf -- '--- %s: %s s%s\n' "$current" "$took" "$failed"
    if [ -n "$failed" ]; then failures+=("$current"); fi
}

# Runs on exit. If a step failed or was interrupted, `current` still names it. Then what it said stays at the end.
finish() {
    local status=$?
    rm -rf "$TMPDIR"
    if [ "$status" -eq 0 ] && [ ${#step_times[@]} -gt 0 ]; then
        printf '\n%s\n' "${step_times[@]}"
    fi
    if [ -n "$current" ] && [ "$status" -ne 0 ]; then failures+=("$current"); fi
    if [ ${#failures[@]} -eq 0 ] && [ "$status" -eq 0 ]; then
        printf '\n./test %s passed in %s s\n' "$mode" "$SECONDS"
        return
    fi
    printf '\n' >&2
    printf 'FAILED: %s\n' "${failures[@]}" >&2
    exit 1
}

# The prefix `need_` matters: `command -v redis-server` would find a function of that name.
need_redis_server() {
    need redis-server LEASEHOLD_REDIS_SERVER
}

# The programs of a server are in a folder that is not on PATH.
need_postgres() {
    local initdb=${LEASEHOLD_POSTGRES_BIN:+$LEASEHOLD_POSTGRES_BIN/initdb}
    if [ -z "$initdb" ] && ! installed_initdb >/dev/null; then
        apt_install postgresql LEASEHOLD_POSTGRES_BIN=/folder/of/initdb
    fi
    "${initdb:-$(installed_initdb)}" --version
}

installed_initdb() {
    compgen -G '/usr/lib/postgresql/*/bin/initdb' || command -v initdb
}

# Debian has it in /usr/sbin, which is not on everybody's PATH.
need_pgbouncer() {
    PATH=$PATH:/usr/sbin need pgbouncer LEASEHOLD_PGBOUNCER
}

need_patch() {
    need patch LEASEHOLD_PATCH
}

need_valgrind() {
    need valgrind LEASEHOLD_VALGRIND
}

need_chromium() {
    need chromium LEASEHOLD_CHROMIUM
}

# need PROGRAM VARIABLE: prints the program's version. Installs the program if it is missing, unless
# the variable has its path.
need() {
    local program=${!2:-}
    if [ -z "$program" ] && ! command -v "$1" >/dev/null; then
        apt_install "$1" "$2=/path/to/$1"
    fi
    "${program:-$1}" --version
}

# apt_install PACKAGE VARIABLE=PATH: installs the package. If it lacks the rights, it suggests the
# variable.
apt_install() {
    local as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
    if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
        echo "$1 is missing and cannot be installed from here. Install it, or set" >&2
        echo "$2." >&2
        return 1
    fi
    "${as_root[@]}" apt-get update -q
    # RUNLEVEL=1 keeps the package from starting its server.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get install -q -y --no-install-recommends "$1"
}

# need_cargo_tool NAME VERSION: installs this version of a cargo subcommand unless it is there.
need_cargo_tool() {
    cargo "${1#cargo-}" --version 2>/dev/null | grep -qx "$1 $2" ||
        cargo install --locked "$1" --version "$2"
}

# passed COUNT COMMAND...: fails unless the command reports this number of passed tests. Otherwise a
# filter that matches no test would pass.
passed() {
    local log=$TMPDIR/passed.log
    "${@:2}" | tee "$log"
    grep -q "\\b$1 passed" "$log" || {
        echo "expected the line '$1 passed'" >&2
        return 1
    }
}

nothing_left_behind() {
    local left=""
    for process in /proc/[0-9]*; do
        case $(readlink "$process/cwd" 2>/dev/null) in
        "$TMPDIR"/*) left+=" ${process#/proc/}" ;;
        esac
    done
    if [ -n "$left" ]; then
        echo "servers of this run are still there, by number:$left" >&2
        return 1
    fi
    echo "no server process is left"
}
