# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# The complete mongod 7.0 without a replica set, from the same packages as the set of one member.

: "${scripts:?is set by the script that sources this file}"

# shellcheck source=scripts/engines/mongodb-replset.sh
. "$scripts/engines/mongodb-replset.sh"

engine_about='mongod 7.0, a standalone server on a TCP port (needs --port; starts in 3 s)'
engine_env=MONGODB_STANDALONE_URI
engine_package=mongodb-replset

engine_start() {
    local home=$1 data=$2 log=$4 port=$5
    shift 5
    [[ -n $port ]] || die "a standalone server needs --port, at which it is started again."
    mongod_listen "$home" "$data" "$log" "$port" "$@"
}
