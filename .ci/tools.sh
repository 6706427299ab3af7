# shellcheck shell=bash
# For `test`: steps and their times, and the programs that are installed when they are missing.

current="start"
step_times=()

# step HEADING COMMAND...: not called in a condition, so that `set -e` holds inside of it.
step() {
    current=$1
    shift
    printf '\n=== %s\n' "$current"
    local begun=$SECONDS
    "$@"
    local took=$((SECONDS - begun))
    step_times+=("$(printf '%5s s  %s' "$took" "$current")")
    printf -- '--- %s: %s s\n' "$current" "$took"
}

# Runs when the script ends, however it ends; an interrupt ends it with a step in `current`.
finish() {
    local status=$?
    rm -rf "$TMPDIR"
    if [ ${#step_times[@]} -gt 0 ]; then
        printf '\n%s\n' "${step_times[@]}"
    fi
    if [ "$status" -eq 0 ] && [ -z "$current" ]; then
        printf '\n./test %s passed in %s s\n' "$mode" "$SECONDS"
    else
        printf '\nFAILED: %s\n' "$current" >&2
    fi
}

# A function that is called like the program it looks for would find itself.
need_redis_server() {
    need redis-server LEASEHOLD_REDIS_SERVER
}

need_valgrind() {
    need valgrind LEASEHOLD_VALGRIND
}

need_chromium() {
    need chromium LEASEHOLD_CHROMIUM
}

# need PROGRAM VARIABLE: the variable, if set, is the path of the program.
need() {
    local program=${!2:-}
    if [ -z "$program" ] && ! command -v "$1" >/dev/null; then
        apt_install "$1" "$2=/path/to/$1"
    fi
    "${program:-$1}" --version
}

# apt_install PACKAGE VARIABLE=PATH: where it may not, the variable helps.
apt_install() {
    local as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
    if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true; then
        echo "$1 is missing and cannot be installed from here. Install it, or set" >&2
        echo "$2." >&2
        return 1
    fi
    "${as_root[@]}" apt-get update -q
    # Only the program is wanted, not a server that starts with the machine.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get install -q -y --no-install-recommends "$1"
}

# passed COUNT COMMAND...: the command says that so many tests passed. A filter that no test's name
# fits would pass without this.
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
