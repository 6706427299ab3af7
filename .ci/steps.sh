# shellcheck shell=bash
# What the steps of `test` do. Each function is one step, or helps the one below it.
#
# Commands select the whole workspace with `--workspace` wherever they can, even if they run one
# test: cargo unites the features of all selected packages, so any other selection builds tokio, and
# everything that depends on it, once more.

with_lints() {
    RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/rustc-with-lints "$@"
}

with_mutants() {
    RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/rustc-with-mutants "$@"
}

# ---- ./test

# All that the steps below run, with clippy's lints.
build() {
    with_lints cargo test -q --workspace --no-run
}

# The suites with a step of their own.
own_step='conformance|differential'

tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        with_lints cargo nextest run --workspace --no-fail-fast --no-tests fail --status-level fail \
            --final-status-level slow -E "not binary(/^($own_step)\$/)"
        return
    fi
    local name targets=()
    for name in $(cargo metadata -q --no-deps --format-version 1 |
        grep -o '"kind":\["test"\],"crate_types":\["bin"\],"name":"[^"]*"' |
        cut -d '"' -f 12 | sort -u | grep -vxE "$own_step"); do
        targets+=(--test "$name")
    done
    RUST_TEST_THREADS=8 with_lints cargo test --workspace --lib --bins --examples "${targets[@]}"
}

# Each on the simulator; they assert what they show. On a server, the tour is a test. `build` leaves
# out the programs of the examples that have tests.
examples() {
    local path
    with_lints cargo build -q --workspace --examples
    for path in tour examples/*.rs; do
        "$CARGO_TARGET_DIR/debug/examples/$(basename "$path" .rs)"
    done
}

doc_tests() {
    with_lints cargo test -q --workspace --doc
}

# Fewer cases than these mean that some were lost.
declare -A conformance_cases=([sim]=354 [redis-rs]=350 [fred]=350)

# The suite prints the line `conformance BACKEND: N passed, N failed, N ignored` by itself.
conformance() {
    local log=$TMPDIR/conformance.log backend passed
    with_lints cargo test --workspace --no-fail-fast --test conformance 2>&1 | tee "$log"
    for backend in "${!conformance_cases[@]}"; do
        passed=$(sed -n "s/^conformance $backend: \([0-9]*\) passed, 0 failed, .*/\1/p" "$log")
        if [ "${passed:-0}" -lt "${conformance_cases[$backend]}" ]; then
            echo "$backend passed ${passed:-none} of ${conformance_cases[$backend]} cases" >&2
            return 1
        fi
    done
}

# Random commands to each backend, compared with the state machine; a run prints what it saw.
differential() {
    LEASEHOLD_DIFFERENTIAL_COMMANDS=$1 \
        with_lints cargo test --workspace --no-fail-fast --test differential -- --nocapture
}

# ---- ./test deep

# Compiles all benches and runs each once, and the report: they measure nothing here, but they work.
benches() {
    with_lints cargo build -q --workspace --bin report --bench '*'
    with_lints cargo test -q --workspace --bench '*'
    "$CARGO_TARGET_DIR/debug/report" --quick --out "$TMPDIR/bench-report"
}

# The tests notice each mutant of the client and of the state machine, and the table of explored
# mutants names each.
mutants() {
    passed 1 with_mutants cargo test -q --workspace --test mutants -- --nocapture
    passed 1 with_mutants cargo test -q --workspace --lib every_fault_is_found_here_or_elsewhere
}

explorer() {
    cargo build -q --release -p leasehold-verifier --bin explore
}

# explore FLAG...: runs of the simulator, each checked; a failed one prints how to repeat it.
explore() {
    explorer
    "$CARGO_TARGET_DIR/release/explore" "$@"
}

# explore_mutants TRIALS: finds each mutant this many times, each time within its budget of seeds.
explore_mutants() {
    with_mutants explorer
    "$CARGO_TARGET_DIR/release/explore" --all-mutants "$1"
}

# loom_models PREEMPTIONS: the models of what threads share, then those that must fail with a mutant.
# Each model is a process, because a lost wake-up that loom finds aborts it. loom is a dependency
# only under the flag, hence the target folder.
loom_models() {
    local program models
    export LOOM_MAX_PREEMPTIONS=$1
    program=$(RUSTFLAGS="${RUSTFLAGS:-} --cfg leasehold_loom --cfg leasehold_mutants" \
        cargo test --target-dir "$CARGO_TARGET_DIR/loom" -p leasehold-api --lib --no-run 2>&1 |
        tee /dev/stderr | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
    models=$("$program" --list | sed -n 's/^\(.*::loom_[a-z_]*\): test$/\1/p')
    [ -n "$models" ]
    xargs -P "$(nproc)" -I '{}' "$program" --exact '{}' <<<"$models" | tee "$TMPDIR/loom.log"
    [ "$(grep -c '1 passed' "$TMPDIR/loom.log")" -eq "$(wc -l <<<"$models")" ]
    passed 1 "$program" --nocapture planted_faults_among_threads_are_found
}

# The facade with each feature alone: nothing may work only because another one is on.
features() {
    local set
    for set in "" $(facade_features); do
        echo "leasehold with features [$set]"
        cargo clippy -q -p leasehold --no-default-features --features "$set" -- -D warnings
    done
    cargo clippy -q -p leasehold --all-features -- -D warnings
    cargo clippy -q -p leasehold-api --no-default-features -- -D warnings
}

facade_features() {
    sed -n '/^\[features\]/,/^\[dependencies\]/s/^\([a-z][a-z-]*\) = .*/\1/p' Cargo.toml | grep -vx default
}

# The benches' feature `peers` would build other lock libraries; `benches_with_peers` does.
rustdoc() {
    RUSTDOCFLAGS="-D warnings" cargo doc -q --workspace --exclude leasehold-benches --no-deps --all-features
    RUSTDOCFLAGS="-D warnings" cargo doc -q -p leasehold-benches --no-deps
}

# ---- ./test full

# The kept hashes again, with an optimising compiler: a seed is the same run there.
golden_in_release() {
    cargo test -q --release -p leasehold-verifier --test verifier golden
}

# The tests notice each mutant of the Lua scripts.
mutants_of_the_scripts() {
    with_mutants cargo test -q --workspace --lib --test server -- --nocapture mutant
}

# Benches beside other lock libraries.
benches_with_peers() {
    with_lints cargo run -q -p leasehold-benches --features peers --bin report -- \
        --quick --only peer --out "$TMPDIR/bench-report"
    RUSTDOCFLAGS="-D warnings" cargo doc -q -p leasehold-benches --no-deps --features peers
}

# What runs in every operation takes as many instructions as the kept baseline says.
instructions() {
    cargo run -q --release -p leasehold-benches --bin instructions
}

# Every set of the facade's features.
feature_powerset() {
    local names features set i mask
    names=$(facade_features)
    read -ra features -d '' <<<"$names" || true
    for ((mask = 0; mask < 1 << ${#features[@]}; mask++)); do
        set=()
        for i in "${!features[@]}"; do
            if ((mask >> i & 1)); then set+=("${features[i]}"); fi
        done
        echo "leasehold with features [${set[*]}]"
        cargo check -q -p leasehold --no-default-features --features "${set[*]}"
    done
}

# What would be published, built from its archives.
packages() {
    cargo package --workspace --allow-dirty \
        --exclude leasehold-benches --exclude leasehold-test-servers --exclude leasehold-processes \
        --exclude leasehold-verifier
}

# The simulator's pages, drawn by a browser; the pictures stay in target/tmp.
pages_in_a_browser() {
    passed 1 with_lints cargo test -q --workspace --test sim -- --ignored --exact histories::in_a_browser
}

# dropped_futures COUNT: futures dropped at random moments, through each client library; a run prints
# what was left.
dropped_futures() {
    LEASEHOLD_DROPPED_FUTURES=$1 \
        passed 2 with_lints cargo test -q --workspace --test real -- --nocapture dropped_futures_leave_nothing
}
