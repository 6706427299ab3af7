# shellcheck shell=bash
# The steps of `test`. Each function is one step, or a helper of the function below it.
#
# Commands select the whole workspace with `--workspace` wherever possible, even to run one test.
# Cargo unifies the features of all selected packages, so another selection would rebuild tokio and
# all its dependents.

with_lints() {
    RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/rustc-with-lints "$@"
}

# planted COMMAND FLAG...: runs this command of cargo in a copy of the source that contains all mutants.
planted() {
    local copy
    copy=$(.ci/plant)
    cargo "$1" --manifest-path "$copy/Cargo.toml" "${@:2}"
}

# ---- ./test

# `./test deep` builds and runs the tests of these packages: leasehold-NAME, in the folder whose name ends in NAME. Cargo
# unifies the features of what it builds, so `own-tests/servers` asks for all that only these packages need of a library.
# Otherwise, `./test deep` would build most libraries again.
later=(benches etcd fred mysql nats object-store processes specimens torture verifier)
# The test targets of both that have separate steps.
own_step='(observed_|memory_|s3_)?conformance|differential|sentinel|cluster|postgres.*|mysql.*|etcd.*|nats.*|s3|sqlite.*|object_store|quorum_.*'
# Other tests that it leaves to `deep`, as a filter of nextest: those that compute for long, and those of a program.
longer='binary(explore_with_sim) | binary(conformance_report) | test(long_queue) | test(/dropped_futures|stepped_server_clock/) | binary(quorum) & test(/^(bursts|long_holds|one_by_one|stress)::/)'

# Sets `selected` to what `./test` builds of the workspace.
select_most() {
    local name names
    selected=(--workspace "${later[@]/#/--exclude=leasehold-}" --lib --bins
        --example unit_test_with_sim --example worker_test_with_sim)
    names=$(cargo metadata -q --no-deps --format-version 1 |
        grep -o '"kind":\["test"\],"crate_types":\["bin"\],"name":"[^"]*","src_path":"[^"]*"' |
        grep -vE "($(tr ' ' '|' <<<"${later[*]}"))/tests/" | cut -d '"' -f 12 | sort -u |
        grep -vxE 'sentinel|cluster|postgres.*|mysql.*|etcd.*|nats.*|sqlite.*|object_store|quorum_.*')
    for name in $names; do selected+=(--test "$name"); done
}

# Builds what the steps of `./test` run, with clippy's lints, and lists the programs of the tests.
build() {
    local selected
    select_most
    with_lints cargo test -q "${selected[@]}" --no-run --message-format json-render-diagnostics >"$TMPDIR/built"
}

tests() {
    local selected
    select_most
    run_tests "not binary(/^($own_step)\$/) - ($longer)" "${selected[@]}"
}

# run_tests FILTER FLAG...: runs these tests of what cargo selects by the flags. Without nextest, all of them.
run_tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        with_lints cargo nextest run "${@:2}" --no-fail-fast --no-tests fail --status-level fail \
            --final-status-level slow -E "$1"
    else
        RUST_TEST_THREADS=8 with_lints cargo test "${@:2}" --no-fail-fast
    fi
}

doc_tests() {
    with_lints cargo test -q --workspace "${later[@]/#/--exclude=leasehold-}" --doc
}

# The folders of the Redis backends, as a pattern.
redis_backends='backend-(redis-rs|fred)'

# Runs the suite on the backends that need at most a standalone Redis server.
conformance() {
    local logs
    logs=$(cell standalone)
    suite conformance sim store quorum redis-rs
    suite observed_conformance observed
}

# conformance_on SETUP [PROGRAM]: runs the suite through both Redis backends. The setup is standalone,
# RESP2, TLS, Sentinel or cluster. The servers run this program.
conformance_on() {
    local logs packages=$redis_backends
    local -x LEASEHOLD_REDIS_SERVER=${2:-${LEASEHOLD_REDIS_SERVER:-}}
    case $1 in
    standalone) ;;
    RESP2) local -x LEASEHOLD_RESP=2 ;;
    TLS)
        local -x LEASEHOLD_TLS=server
        # Fetched programs are built without TLS.
        [ $# -eq 1 ] || LEASEHOLD_TLS=proxy
        ;;
    Sentinel) local -x LEASEHOLD_TOPOLOGY=sentinel ;;
    cluster) local -x LEASEHOLD_TOPOLOGY=cluster ;;
    *) echo "unknown setup $1" >&2 && return 1 ;;
    esac
    logs=$(cell "$1")
    suite conformance redis-rs fred
}

# cell TOPOLOGY: creates the folder for the logs of a cell of the matrix, and prints its path.
cell() {
    local server
    server=$("${LEASEHOLD_REDIS_SERVER:-redis-server}" --version |
        sed -nE 's/^(Redis|Valkey) server v=([0-9.]+) .*/\1 \2/p')
    mkdir -p "$TMPDIR/cells/${server:?has no version} $1"
    echo "$TMPDIR/cells/$server $1"
}

# Prints the results of the suite in each cell so far: server, topology and client. Below are the
# reasons why cases were ignored.
matrix() {
    local cell client log counts reasons row='%-24s %-8s %6s %6s %7s  %s\n'
    local -A notes=()
    # shellcheck disable=SC2059
    printf "$row" "server and topology" client passed failed ignored why
    for cell in "$TMPDIR"/cells/*; do
        for client in redis-rs fred; do
            log=$cell/backend-$client.log
            touch "$log"
            counts=$(sed -nE 's/^conformance .*: (.+) passed, (.+) failed, (.+) ignored$/\1 \2 \3/p' "$log")
            reasons=$(sed -nE 's/.* ignored \((.*)\)$/\1/p' "$log" | sort | uniq -c | sed 's/^ *//')
            reasons=${reasons:-none}
            notes[$reasons]=${notes[$reasons]:-$((${#notes[@]} + 1))}
            # shellcheck disable=SC2059,SC2086
            printf "$row" "${cell##*/}" "$client" ${counts:-none none none} "[${notes[$reasons]}]"
        done
    done
    for reasons in "${!notes[@]}"; do
        echo "[${notes[$reasons]}] ${reasons//$'\n'/, }"
    done | sort
}

# suite TARGET BACKEND...: runs this test target on all backends that have it, and checks that the suite passed
# on these.
suite() {
    local log
    log=$(mktemp -p "$TMPDIR")
    on_all_backends "$1" 2>&1 | tee "$log"
    all_passed "$log" "${@:2}"
}

# all_passed LOG BACKEND...: looks for the lines `conformance BACKEND: N passed, N failed, N ignored` that the suite
# has printed. It has compared what it ignored with the list of the backend.
all_passed() {
    local backend
    for backend in "${@:2}"; do
        grep -q "^conformance $backend: [1-9][0-9]* passed, 0 failed, " "$1" || {
            echo "the suite did not pass on $backend" >&2
            return 1
        }
    done
}

# side_by_side COMMAND...: runs these commands at the same time, because some of them mostly wait. Prints
# the output of each when all are done, of a failed one last.
side_by_side() {
    local n outputs runs=() passed=() failed=()
    outputs=$(mktemp -d -p "$TMPDIR")
    for n in $(seq $#); do
        # shellcheck disable=SC2086
        ${!n} >"$outputs/$n" 2>&1 &
        runs+=("$!")
    done
    for n in $(seq $#); do
        if wait "${runs[n - 1]}"; then passed+=("$n"); else failed+=("$n"); fi
    done
    for n in "${passed[@]}" "${failed[@]}"; do
        printf '\n%s\n' "${!n}"
        cat "$outputs/$n"
    done
    [ ${#failed[@]} -eq 0 ]
}

# differential COUNT: sends this many random commands to each backend and to the state machine, and
# compares the replies. Each run prints what it covered.
differential() {
    LEASEHOLD_DIFFERENTIAL_COMMANDS=$1 on_all_backends differential --nocapture
}

# The same, through the Redis backends alone.
differential_on_redis() {
    local packages=$redis_backends
    differential "$1"
}

# on_all_backends TARGET ARGUMENT...: runs the test target of this name in every package that has
# one, or in those whose folder matches the caller's `packages`. The programs run side by side,
# because they mostly wait for their servers. Their output is printed when all of them are done, and
# stays in the caller's folder `logs`.
on_all_backends() {
    local package program programs run runs=() failed=0 to=${logs:-}
    [ -n "$to" ] || to=$(mktemp -d -p "$TMPDIR")
    [ -e "$TMPDIR/built" ] || programs
    programs=$(sed -nE \
        '/"kind":\["test"\].*"name":"'"$1"'"/s|.*"manifest_path":"[^"]*/([^"/]*)/Cargo.toml".*"executable":"([^"]*)".*|\1 \2|p' \
        "$TMPDIR/built" | grep -E "^${packages:-[^ ]*} ")
    while read -r package program; do
        "$program" "${@:2}" >"$to/$package.log" 2>&1 </dev/null &
        runs+=("$!")
    done <<<"$programs"
    for run in "${runs[@]}"; do
        wait "$run" || failed=1
    done
    while read -r package program; do
        printf '\n%s: %s\n' "$package" "$program"
        cat "$to/$package.log"
    done <<<"$programs"
    return "$failed"
}

# ---- ./test deep

# Builds all programs that the steps below run, and lists those of the tests. The steps that wait for servers build nothing.
programs() {
    with_lints cargo test -q --workspace --no-run --message-format json-render-diagnostics >"$TMPDIR/built"
    with_lints cargo build -q --workspace --bins --examples
}

# Checks that `./test` builds no library with fewer features than `programs`, which would build it again.
built_once() {
    features_of_libraries "${later[@]/#/--exclude=leasehold-}" >"$TMPDIR/most"
    features_of_libraries >"$TMPDIR/all"
    ! LC_ALL=C comm -23 "$TMPDIR/most" "$TMPDIR/all" | grep .
}

features_of_libraries() {
    cargo tree -q --workspace "$@" --prefix none -f '{p} {f}' | sed 's/ (\*)$//' | LC_ALL=C sort -u
}

# The tests that `./test` leaves to this.
more_tests() {
    local packages
    local -x LEASEHOLD_NATS_SERVER=${LEASEHOLD_NATS_SERVER:-$(.ci/fetch-servers nats)}
    packages=$(tr ' ' '|' <<<"${later[*]}")
    run_tests "(package(/^leasehold-($packages)\$/) | $longer) - binary(/^($own_step)\$/)" --workspace
    with_lints cargo test -q --workspace --doc -- backend-{etcd,fred,mysql,nats,object-store}
}

# The suite and the differential test through the second Redis library.
second_library() {
    local logs packages=backend-fred
    logs=$(cell standalone)
    suite conformance fred
    differential 5000
}

# Runs each example on the simulator; the examples contain assertions. tests/tour.rs runs the tour
# on a server.
examples() {
    local path
    for path in tour examples/*.rs; do
        "$CARGO_TARGET_DIR/debug/examples/$(basename "$path" .rs)"
    done
}

# Runs every bench once, and a quick report. This only shows that they work; it measures nothing.
benches() {
    with_lints cargo test -q --workspace --bench '*'
    "$CARGO_TARGET_DIR/debug/report" --quick --out "$TMPDIR/bench-report"
}

# Checks that the tests catch each mutant.
mutants() {
    # One test after the other: a mutant is active in its whole process.
    passed 3 with_lints planted test -q --workspace --test mutants -- --nocapture --test-threads 1
    passed 2 with_lints planted test -q --workspace --test jobs -- --nocapture --test-threads 1 each_mutant_is_found tasks_stop_at
    passed 1 with_lints planted test -q --workspace --test observed -- --nocapture each_mutant_is_found
    passed 1 with_lints planted test -q --workspace --test scripts -- --nocapture every_mutant_of_the_scripts
}

# explore FLAG...: checks many runs on the simulator. A failed run prints the command that repeats
# it.
explore() {
    cargo run -q --release -p leasehold-verifier --bin explore -- "$@"
}

# explore_mutants TRIALS: fails unless each mutant is found this many times, each time within its
# budget of seeds.
explore_mutants() {
    planted run -q --release -p leasehold-verifier --bin explore -- --all-mutants "$1"
}

# loom_models PREEMPTIONS: runs the models of the state that threads share, then those that must
# fail with a mutant. Each model runs in its own process, because loom aborts the process if it
# finds a lost wake-up. loom is a dependency only under the flag, hence the separate target folder.
loom_models() {
    local program models
    export LOOM_MAX_PREEMPTIONS=$1
    program=$(RUSTFLAGS="${RUSTFLAGS:-} --cfg leasehold_loom" \
        planted test --target-dir "$CARGO_TARGET_DIR/loom" -p leasehold-api --lib --no-run 2>&1 |
        tee >(cat >&2) | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
    models=$("$program" --list | sed -n 's/^\(.*::loom_[a-z_]*\): test$/\1/p')
    [ -n "$models" ]
    xargs -P "$(nproc)" -I '{}' "$program" --exact '{}' <<<"$models" | tee "$TMPDIR/loom.log"
    [ "$(grep -c '1 passed' "$TMPDIR/loom.log")" -eq "$(wc -l <<<"$models")" ]
    passed 1 "$program" --nocapture mutants_among_threads_are_found
}

# features SET...: checks what an outside crate gets from the facade with these features alone. No feature may
# need another one; `build` has all of them together. Without TLS, nothing may be sent that a URL with TLS
# protects: that program has both Redis libraries.
features() {
    local set
    for set in "$@"; do
        echo "leasehold with features [$set]"
        cargo clippy -q -p leasehold-outside --features "$set" -- -D warnings
    done
    with_lints cargo run -q -p leasehold-outside --features without-tls
}

facade_features() {
    sed -n '/^\[features\]/,/^\[dependencies\]/s/^\([a-z][a-z-]*\) = .*/\1/p' Cargo.toml | grep -vx default
}

# Builds the documentation with all features but `peers`, which need other lock libraries. With those,
# `benches_with_peers` builds it.
rustdoc() {
    local features
    features=$(facade_features | sed 's|^|leasehold/|' | paste -sd ,)
    RUSTDOCFLAGS="-D warnings" cargo doc -q --workspace --no-deps --features "$features,leasehold-conformance/differential"
}

# ---- ./test full

# A seed must give the same run in a debug and in a release build.
same_runs_in_release() {
    local debug release
    debug=$(printed_runs with_lints cargo test -q --workspace)
    release=$(printed_runs cargo test -q --release -p leasehold-verifier)
    [ -n "$debug" ] && [ "$debug" = "$release" ]
}

# printed_runs COMMAND...: the hashes of some runs, as this build prints them.
printed_runs() {
    LEASEHOLD_PRINT_TRACES=1 "$@" --test verifier -- --exact --nocapture same_runs::three_processes_give_the_same_runs |
        grep '^traces'
}

# random_commands COUNT: draws this many sequences of commands and checks the rules after each
# command. The seed that it prints repeats the run.
random_commands() {
    export PROPTEST_CASES=$1 PROPTEST_RNG_SEED=$SRANDOM
    echo "PROPTEST_CASES=$PROPTEST_CASES PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
    passed 1 with_lints cargo test -q --workspace --test machine -- --exact random::rules_hold_for_random_commands
}

# fuzz CASES: draws this many inputs for everything that is parsed, and damages this many stored values under
# the scripts. `full` draws other inputs than `deep`.
fuzz() {
    PROPTEST_CASES=$1 with_lints cargo test -q --workspace --no-fail-fast --lib --test scripts --test machine \
        --test facade -- any_ damaged_ redirect_is_read info_is_read every_name_is prefix_and_key url_is_read key_is_its never_panic
}

# The seed that it prints repeats the run.
fuzz_others() {
    export PROPTEST_RNG_SEED=$SRANDOM
    echo "PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
    fuzz "$1"
}

# The targets of cargo-fuzz must compile. They run only with a nightly compiler.
fuzz_targets() {
    cargo check -q --locked --manifest-path own-tests/fuzz/Cargo.toml
}

# explore_others COUNT: explores this many seeds that hardly any run before has explored.
explore_others() {
    local first=$SRANDOM
    echo "--seeds $first..$((first + $1))"
    explore --seeds "$first..$((first + $1))"
}

# explore_observed COUNT: explores stores without a clock with this many seeds that hardly any run before has explored.
explore_observed() {
    local first=$SRANDOM
    echo "LEASEHOLD_FIRST_SEED=$first"
    LEASEHOLD_FIRST_SEED=$first LEASEHOLD_SEEDS=$1 passed 9 cargo test -q --release --workspace --test observed
}

# fenced_updates COUNT: explores this many runs of the example whose updates must not be lost.
fenced_updates() {
    LEASEHOLD_SEEDS=$1 passed 5 cargo test -q --release --example explore_with_sim
}

# Runs the benches that compare leasehold with other lock libraries, and the lock services, and builds what torments those
# libraries.
benches_with_peers() {
    local -x LEASEHOLD_NATS_SERVER=${LEASEHOLD_NATS_SERVER:-$(.ci/fetch-servers nats)}
    local -x LEASEHOLD_WEED=${LEASEHOLD_WEED:-$(.ci/fetch-servers s3)}
    with_lints cargo check -q -p leasehold-torture --all-targets --features peers
    with_lints cargo run -q -p leasehold-benches --all-features --bin report -- \
        --quick --out "$TMPDIR/bench-report"
    RUSTDOCFLAGS="-D warnings" cargo doc -q -p leasehold-benches -p leasehold-torture --no-deps \
        --features leasehold-benches/peers,leasehold-torture/peers
}

# Kills, pauses and replaces primaries under both backends. Most of the time the tests wait.
failovers() {
    on_all_backends sentinel --test-threads 2
}

# Migrates slots, and kills and pauses nodes of clusters under both backends.
clusters() {
    on_all_backends cluster --test-threads 2
}

# Runs the suite through a pooler, and with clients of both kinds. Its cases have deadlines that leave a busy machine little
# room, because a command through a pooler takes several statements.
suites_through_a_pooler() {
    local topology
    for topology in pooled mixed; do
        LEASEHOLD_TOPOLOGY=$topology suite postgres_conformance "postgres-$topology"
    done
}

# Runs everything that needs a Postgres server.
on_postgres() {
    on_all_backends postgres --test-threads 4
    side_by_side "suite postgres_conformance postgres" "differential_on postgres 10000"
}

# Runs everything that needs a SQLite file.
on_sqlite() {
    on_all_backends sqlite --test-threads 2
    suite sqlite_conformance sqlite
}

# Runs what needs a MariaDB server.
on_mysql() {
    on_all_backends mysql --test-threads 2
    suite mysql_conformance mysql
}

# Runs what needs an etcd server.
on_etcd() {
    on_all_backends etcd --test-threads 2
    suite etcd_conformance etcd
}

# Runs what needs a NATS server.
on_nats() {
    local -x LEASEHOLD_NATS_SERVER=${LEASEHOLD_NATS_SERVER:-$(.ci/fetch-servers nats)}
    on_all_backends nats --test-threads 2
    suite nats_conformance nats
}

# Also three servers whose leader changes.
more_on_nats() {
    local -x LEASEHOLD_NATS_SERVER=${LEASEHOLD_NATS_SERVER:-$(.ci/fetch-servers nats)}
    differential_on nats "$1"
    on_all_backends nats_cluster --test-threads 1
}

# The suite on objects in memory needs no server.
on_objects_in_memory() {
    suite memory_conformance object-store
}

# Runs what needs an S3 server. SeaweedFS needs much processor time, so few cases of the suite run at once.
on_s3() {
    on_all_backends s3
    on_all_backends s3_conformance --test-threads 4 2>&1 | tee "$TMPDIR/s3.log"
    all_passed "$TMPDIR/s3.log" object-store-s3
}

# torture_elsewhere MINUTES: with the features that nothing else in the workspace needs, and on SQLite. The command needs the
# same features.
torture_elsewhere() {
    local features
    features=$(printf '%s,' leasehold-{cli,torture}/{etcd,mysql,nats,object-store})
    export LEASEHOLD_NATS_SERVER=${LEASEHOLD_NATS_SERVER:-$(.ci/fetch-servers nats)}
    export LEASEHOLD_WEED=${LEASEHOLD_WEED:-$(.ci/fetch-servers s3)}
    with_lints cargo test -q --workspace --features "$features" --test etcd --test mysql --test nats --test object_store
    with_lints cargo build -q --workspace --features "$features" --bin torture
    side_by_side "torments $1 leasehold-etcd etcd" "torments $1 leasehold-mysql mysql" \
        "torments $1 leasehold-nats nats" "torments $1 leasehold-sqlite sqlite"
    side_by_side "torments $1 election-etcd etcd" "torments $1 election-nats nats" "torments $1 job-nats nats" \
        "torments $1 leasehold-s3 s3" "torments $1 election-s3 s3"
}

# differential_on STORE COUNT: the differential test on another store. Without push, some outcomes are rare: it takes minutes
# until each has occurred often enough.
differential_on() {
    LEASEHOLD_DIFFERENTIAL_COMMANDS=$2 on_all_backends "$1_differential" --nocapture
}

# Runs the suite on a quorum of three Redis servers, and on one of three different backends. Restarts the
# servers of a quorum one after the other.
on_real_quorums() {
    on_all_backends quorum_restarts
    suite quorum_conformance quorum-redis quorum-mixed
}

# torture MINUTES: torments leasehold on each topology for this long. Prints what was checked, and the
# history of each violation. Fails also if a run has seen too little.
torture() {
    torture_locks "$1"
    side_by_side "torments $1 "{job,election}-{redis-rs,fred}" standalone sentinel cluster" \
        "torments $1 "{job,election}"-postgres postgres"
}

torture_locks() {
    side_by_side "torments $1 leasehold-redis-rs standalone balancer sentinel cluster" \
        "torments $1 leasehold-fred standalone balancer sentinel cluster" \
        "torments $1 leasehold-postgres postgres postgres-pooled" "torments $1 leasehold-quorum quorum"
}

# What a short run deals on each topology, because it doesn't get to all faults.
declare -A three_faults=(
    [standalone]="suspend client|kill client|kill server, restart with its data"
    [balancer]="stop client|graceful failover|kill primary"
    [sentinel]="stop client|kill client|sentinel failover"
    [cluster]="stop client|graceful failover|move slot"
    [postgres]="suspend client|terminate backends|kill server, restart with its data"
    [postgres-pooled]="suspend client|restart pooler|kill server, restart with its data"
    [quorum]="stop client|refuse connections|kill one server, restart with its data"
)

# Torments locks with three kinds of faults. Jobs and elections need longer runs. A run lasts up to three times this long,
# until enough was seen.
torture_briefly() {
    local briefly=true
    torture_locks 0.15
}

# torments MINUTES SUBJECT TOPOLOGY...: one topology after the other. `only` may have more arguments.
torments() {
    local topology status faults=("${only[@]}")
    for topology in "${@:3}"; do
        if [ -n "${briefly:-}" ]; then
            IFS='|' read -ra faults <<<"${three_faults[$topology]}"
            faults=("${faults[@]/#/--only=}")
        fi
        status=0
        "$CARGO_TARGET_DIR/debug/torture" "$2" --on "$topology" --minutes "$1" --seed "$SRANDOM" \
            "${faults[@]}" --out "$CARGO_TARGET_DIR/torture" || status=$?
        # A run of seconds may lack something by chance, and says what (status 3). It fails if it convicts.
        [ "$status" -eq 0 ] || { [ -n "${briefly:-}" ] && [ "$status" -eq 3 ]; } || return 1
    done
}

# Each lock that is broken on purpose must be convicted on a real server, in one of three runs of a minute. Of one that grants nothing,
# nothing is shown.
torture_convicts() {
    local broken
    mapfile -t broken < <("$CARGO_TARGET_DIR/debug/torture" --list | grep ^broken-)
    [ ${#broken[@]} -ge 10 ]
    side_by_side "${broken[@]/#/convicts }"
}

# convicts SUBJECT: on one server.
convicts() {
    local expected=CONVICTED
    [ "$1" != broken-never-grants ] || expected='NOT SHOWN'
    # Faults meet by chance: nine of ten runs of a minute convict the two hardest of these locks. So one
    # run of three is asked for.
    for _ in 1 2 3; do
        torments 1 "$1" standalone >"$TMPDIR/$1.log" || true
        ! grep -q "$expected" "$TMPDIR/$1.log" || break
    done
    has_shown "$expected" "$1" "in three runs"
}

# Without the mend of a fault that real servers have shown, leasehold must be convicted within ten minutes.
torture_convicts_without_mends() {
    with_lints planted build -q --workspace --bin torture
    convicts_without_mend unmended-failover balancer --only "graceful failover"
    convicts_without_mend unmended-failover-fred balancer --only "graceful failover"
    # New processes subscribe while the slot of their key fails over.
    convicts_without_mend unmended-cluster distant-cluster --only "graceful failover" --only "kill client"
    # fred hides it when the server ends a subscription, so fewer of its clients subscribe again: it takes more of them.
    convicts_without_mend unmended-cluster-fred distant-cluster --only "graceful failover" --only "kill client" --clients 8
    convicts_without_mend unmended-quorum quorum --only "refuse connections"
}

# torture_at_failpoints MINUTES: tasks of the clients stop at failpoints, too, and processes die there. Fails also if fewer than
# half of the failpoints were reached.
torture_at_failpoints() {
    local -x LEASEHOLD_FAILPOINTS=1
    with_lints planted build -q --workspace --bin torture
    side_by_side "torments $1 leasehold-redis-rs standalone sentinel" "torments $1 leasehold-fred standalone" \
        "torments $1 leasehold-postgres postgres"
}

# convicts_without_mend SUBJECT SERVERS FLAG...
convicts_without_mend() {
    local status=0 only=("${@:3}")
    torments 10 "$1" "$2" >"$TMPDIR/$1.log" || status=$?
    has_shown CONVICTED "$1" "$status"
}

# has_shown VERDICT SUBJECT STATUS: shows why, from the log of the run.
has_shown() {
    grep -A1 "$1" "$TMPDIR/$2.log" || {
        echo "$2 was not $1 (status $3)" >&2
        cat "$TMPDIR/$2.log" >&2
        return 1
    }
}

# The examples with schedulers, which run until somebody ends them.
examples_with_schedulers() {
    cargo check -q --locked --manifest-path examples/schedulers/Cargo.toml
}

# Fenced transactions through sqlx and tokio-postgres.
example_of_fencing() {
    cargo test -q --locked --manifest-path examples/fencing/Cargo.toml
}

# tormented_commands COUNT: runs this many commands under `leasehold run`, and stops and kills them, their keepers and
# the server. The seed that it prints chooses the faults.
tormented_commands() {
    "$CARGO_TARGET_DIR/debug/examples/torment" --commands "$1"
}

# Holds 100,000 locks through one client for three leases, on each client library, and compares its memory and its
# renewals with limits.
held_locks() {
    cargo run -q --release -p leasehold-benches --bin report -- --only leases --rounds "$1" --out "$TMPDIR/held-locks"
}

example_of_opentelemetry() {
    cargo test -q --locked --manifest-path examples/opentelemetry/Cargo.toml
}

example_of_a_web_service() {
    cargo test -q --locked --manifest-path examples/web/Cargo.toml
}

# Compares the instruction counts of the hot paths with the baseline.
instructions() {
    cargo run -q --release -p leasehold-benches --bin instructions
}

# Checks the pairs of features that users combine. `features` checks each alone, and `build` all together.
feature_pairs() {
    local set
    for set in {redis-rs,fred,postgres},{sim,metrics,tls-rustls,quorum} redis-rs,{fred,postgres} {etcd,mysql,nats,object-store,sqlite},{sim,metrics} store,sim; do
        echo "leasehold with features [$set]"
        cargo check -q -p leasehold --no-default-features --features "$set"
    done
}

# Builds the documentation as docs.rs does, and looks for the badges of features.
docs_rs() {
    RUSTDOC=$PWD/.ci/docsrs-rustdoc RUSTDOCFLAGS="-D warnings --cfg docsrs" \
        cargo doc -q --workspace --exclude leasehold-benches --no-deps --all-features
    grep -q 'Available on crate feature `redis-rs`' "$CARGO_TARGET_DIR/doc/leasehold/index.html"
}

# Checks licences and sources of all dependencies, and that none is there in two versions.
dependencies() {
    need_cargo_tool cargo-deny 0.20.2
    cargo deny --all-features check bans licenses sources
}

# Looks for known vulnerabilities in the dependencies. It downloads the RustSec database from GitHub.
advisories() {
    need_cargo_tool cargo-deny 0.20.2
    cargo deny --all-features check advisories
}

# The packages that are published. Each comes after those that it depends on.
published=(leasehold-api leasehold-redis-common leasehold-redis-rs leasehold-fred leasehold-sim
    leasehold-store leasehold-postgres leasehold-etcd leasehold-mysql leasehold-nats leasehold-object-store leasehold-sqlite leasehold-quorum leasehold-conformance leasehold leasehold-cli)

# Builds the archives of the published packages, and builds the packages from them. Each archive has
# a readme and both licences.
packages() {
    local name files selection=() folder=$CARGO_TARGET_DIR/packages
    for name in "${published[@]}"; do selection+=(--package "$name"); done
    # cargo extracts these archives into its home, and builds them once. It doesn't notice when one of
    # the same version has changed.
    rm -rf "$folder" "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/leasehold-*
    cargo package --allow-dirty --target-dir "$folder" "${selection[@]}" 2>&1 | tee "$TMPDIR/packages.log"
    # The facade's archive keeps the workspace's profiles, which name packages that it lacks.
    ! grep '^warning' "$TMPDIR/packages.log" | grep -v 'profile package spec' || return 1
    for name in "${published[@]}"; do
        files=$(tar -tzf "$folder/package/$name"-[0-9]*.crate | cut -d / -f 2-)
        for file in README.md LICENSE-MIT LICENSE-APACHE; do
            grep -qx "$file" <<<"$files" || {
                echo "the archive of $name lacks $file" >&2
                return 1
            }
        done
    done
}

# Renders the simulator's pages in a browser. The pictures stay in target/tmp.
pages_in_a_browser() {
    passed 1 with_lints cargo test -q --workspace --test sim -- --ignored --exact histories::in_a_browser
}

# Plays faults to the alerts for Prometheus: each fires for its own.
alerts() {
    promtool test rules docs/dashboards/alerts_test.yml
}

# dropped_futures COUNT: drops this many futures at random moments, through each client library. A
# run prints what was left behind.
dropped_futures() {
    LEASEHOLD_DROPPED_FUTURES=$1 \
        passed 2 with_lints cargo test -q --workspace --test server -- --nocapture dropped_futures_leave_nothing
}

# lost_replies COUNT: drops this many replies to each command, for each way to build a client: on single
# Redis servers and clusters through both client libraries, and on Postgres.
lost_replies() {
    local log=$TMPDIR/lost-replies.log
    LEASEHOLD_LOST_REPLIES=$1 with_lints cargo test -q --workspace --no-fail-fast \
        --test server --test cluster --test postgres -- repeated_ | tee "$log"
    [ "$(grep -c '\b6 passed' "$log")" -eq 5 ]
}
