# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# One member of a replica set of the complete mongod 7.0, from the same packages as the set of one member. The caller
# makes the set: the fault laboratory does this, with its own network between the members.
#
# The first argument "--set NAME" names the set. The default is rs0; a sharded cluster has several sets.

: "${scripts:?is set by the script that sources this file}"

# shellcheck source=scripts/engines/mongodb-replset.sh
. "$scripts/engines/mongodb-replset.sh"

engine_about='mongod 7.0, a member for a replica set that is yet to be made (needs --port; starts in 3 s)'
engine_env=MONGODB_MEMBER_URI
engine_package=mongodb-replset

engine_start() {
    local home=$1 data=$2 log=$4 port=$5 name=rs0
    shift 5
    [[ -n $port ]] || die "a member needs --port, by which the others know it."
    if [[ ${1:-} == --set ]]; then
        name=${2:?--set needs a name}
        shift 2
    fi
    mongod_listen "$home" "$data" "$log" "$port" --replSet "$name" "$@"
}
