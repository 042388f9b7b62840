# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# MongoDB's own code in a Node.js process, from npm. It is small and fast, so most tests use it. It is a standalone
# server without sessions, transactions and authentication, and its TTL monitor does not run. Tests that need those use
# mongodb-replset.

: "${scripts:?is set by the script that sources this file}"

engine_about='MongoDB in a Node.js process, a standalone server on a Unix socket (starts in half a second)'
engine_env=MONGODB_URI
engine_listens=socket

# The oldest C library with which the npm package runs, and the source of a newer one.
mongodb_libc=2.38
mongodb_libc_packages='trixie: libc6'

# Checks whether the system's C library is older than that.
mongodb_libc_is_old() {
    local have
    have=$(getconf GNU_LIBC_VERSION 2>/dev/null) ||
        die "this system's C library is not glibc, which the mongodb engine needs: use such a system, or set $engine_env to the address of a server."
    [[ $(printf '%s\n' "${have##* }" "$mongodb_libc" | sort -V | head -n 1) != "$mongodb_libc" ]]
}

engine_pins=(libc: system)
if mongodb_libc_is_old; then
    engine_pins=(libc: "$mongodb_libc_packages")
fi

engine_fetch() {
    npm_unpack "$1"
    if mongodb_libc_is_old; then
        debian_unpack "$1/libc" "$(dpkg --print-architecture)" "$mongodb_libc_packages"
    fi
}

engine_start() {
    local home=$1 data=$2 work=$3 log=$4 socket=${5:-$3/mongodb.sock} node
    [[ $# -le 5 ]] || die "mongodb takes no arguments of its own: leave out everything after '--'."
    [[ $socket == /*.sock ]] || die "drivers take only an absolute path that ends in .sock for a Unix socket: $socket is none."
    ((${#socket} < 100)) || die "the path $socket is too long for a Unix socket: choose one of less than 100 characters."
    need_node
    node=(node)
    if mongodb_libc_is_old; then
        node=("$home"/libc/usr/lib/*/ld-linux-*.so.*)
        # The system's folders come second. They have the libraries that Node.js itself needs.
        node+=(--library-path "$(dirname "${node[0]}"):/lib/$(uname -m)-linux-gnu:/usr/lib/$(uname -m)-linux-gnu:/lib64:/usr/lib64")
        # 'node' may be a wrapper script, which the loader cannot start.
        node+=("$(node -p process.execPath)")
    fi
    mkdir -p "$data/db"
    # The package creates its socket in TMPDIR; serve.js moves it to the wanted place.
    NODE_PATH=$home/node_modules TMPDIR=$work engine_spawn "$log" \
        "${node[@]}" "$scripts/engines/mongodb/serve.js" "$data/db" "$socket" "$work/ready"
    engine_await "$work/ready" || return 1
    engine_uri=$(<"$work/ready")
}
