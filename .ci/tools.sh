# shellcheck shell=bash
# Helpers of `test`: run and time steps, install missing programs, count passed tests.

keep_going=false
# Whether all steps were run. After a signal, the exit status alone may be 0.
complete=false

# step HEADING COMMAND...: runs and times a step. Never call it in a condition, because `set -e`
# does not apply there. A failed step ends the run, or its lane, unless `keep_going` is true.
step() {
    local begun=$SECONDS took failed="" TIMEFORMAT="--- $1: %0U s of processor time, %0S s of the system's"
    printf '\n=== %s\n' "$1"
    echo "$1" >"$TMPDIR/current"
    set +e
    time (set -e; "${@:2}")
    [ $? -eq 0 ] || failed=" FAILED"
    set -e
    took=$((SECONDS - begun))
    printf '%5s s  %s%s\n' "$took" "$1" "$failed" >>"$TMPDIR/steps"
    printf -- '--- %s: %s s%s\n' "$1" "$took" "$failed"
    if [ -n "$failed" ]; then
        echo "$1" >>"$TMPDIR/failed"
        $keep_going
    fi
}

# lanes FUNCTION...: runs these functions at the same time. Each runs steps, one after the other. The
# output of the first is shown as it comes, that of the others when all are done.
lanes() {
    local lane runs=() failed=""
    for lane in "${@:2}"; do
        "$lane" >"$TMPDIR/$lane.log" 2>&1 &
        runs+=("$!")
    done
    set +e
    (set -e; "$1")
    [ $? -eq 0 ] || failed=yes
    set -e
    for lane in "${runs[@]}"; do
        wait "$lane" || failed=yes
    done
    for lane in "${@:2}"; do
        cat "$TMPDIR/$lane.log"
    done
    [ -z "$failed" ]
}

# Runs on exit, also when the run is interrupted. What failed stays at the end.
finish() {
    local status=$? lanes
    $complete || [ "$status" -ne 0 ] || status=1
    lanes=$(jobs -p)
    # shellcheck disable=SC2086
    [ -z "$lanes" ] || kill $lanes || true
    if [ "$status" -eq 0 ]; then
        printf '\n' && cat "$TMPDIR/steps"
    else
        touch "$TMPDIR/failed"
        [ -s "$TMPDIR/failed" ] || cp "$TMPDIR/current" "$TMPDIR/failed"
    fi
    if [ -e "$TMPDIR/failed" ]; then
        printf '\n' >&2
        sed 's/^/FAILED: /' "$TMPDIR/failed" >&2
        status=1
    else
        printf '\n./test %s passed in %s s\n' "$mode" "$SECONDS"
    fi
    rm -rf "$TMPDIR"
    exit "$status"
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

need_mariadb() {
    local mariadbd=${LEASEHOLD_MARIADB_BIN:+$LEASEHOLD_MARIADB_BIN/mariadbd}
    if [ -z "$mariadbd" ] && ! PATH=$PATH:/usr/sbin command -v mariadbd >/dev/null; then
        apt_install mariadb-server LEASEHOLD_MARIADB_BIN=/folder/of/mariadbd
    fi
    PATH=$PATH:/usr/sbin "${mariadbd:-mariadbd}" --version
}

need_etcd() {
    local folder=${LEASEHOLD_ETCD_BIN:+$LEASEHOLD_ETCD_BIN/}
    [ -n "$folder" ] || command -v etcd >/dev/null || apt_install etcd-server LEASEHOLD_ETCD_BIN=/folder/of/etcd
    [ -n "$folder" ] || command -v etcdctl >/dev/null || apt_install etcd-client LEASEHOLD_ETCD_BIN=/folder/of/etcd
    "${folder}etcd" --version | head -n 1
}

# Debian's is too old.
need_nats() {
    "${LEASEHOLD_NATS_SERVER:-$(.ci/fetch-servers nats)}" --version
}

# Debian has it in /usr/sbin, which is not on everybody's PATH.
need_pgbouncer() {
    PATH=$PATH:/usr/sbin need pgbouncer LEASEHOLD_PGBOUNCER
}

need_strace() {
    need strace LEASEHOLD_STRACE
}

need_groff() {
    need groff LEASEHOLD_GROFF
}

need_patch() {
    need patch LEASEHOLD_PATCH
}

need_valgrind() {
    need valgrind LEASEHOLD_VALGRIND
}

# Debian's `prometheus` brings promtool, and would start a server.
need_promtool() {
    command -v promtool >/dev/null || apt_install prometheus PATH
    promtool --version 2>&1 | head -n 1
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
    local log
    log=$(mktemp -p "$TMPDIR")
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
