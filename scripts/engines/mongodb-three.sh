# shellcheck shell=bash disable=SC2034,SC2154  # what it sets is read by scripts/engine
# The complete mongod 7.0 as a replica set of three members, for what happens when the primary
# changes. Out of the same packages as the set of one member.

: "${scripts:?is set by the script that sources this file}"

# shellcheck source=scripts/engines/mongodb-replset.sh
. "$scripts/engines/mongodb-replset.sh"

engine_about='mongod 7.0, a replica set of three members on TCP ports (starts in 15 s)'
engine_env=MONGODB_THREE_URI
engine_package=mongodb-replset

# Without kept data and ports of choice: nobody needs them yet.
engine_start() {
    local home=$1 data=$2 work=$3 log=$4 ports member attempt
    shift 5
    need_node
    if compgen -G "$data/db*" >/dev/null; then
        die "$engine_name does not start again on kept data: give an empty --data folder, or none."
    fi
    # Between the choice of free ports and their use another process may take one: once more then.
    for attempt in 1 2 3 4 5; do
        ports=()
        engine_pids=()
        for member in 1 2 3; do ports+=("$(free_port)"); done
        for member in 1 2 3; do
            mongod_spawn "$home" "${ports[member - 1]}" "$data/db$member" "$log" "$@"
        done
        if mongod_replset "$home" "$work" "$log" "${ports[@]}"; then return; fi
        { kill -KILL "${engine_pids[@]}"; wait "${engine_pids[@]}"; } 2>/dev/null || true
        grep -q 'Address already in use' "$log" || return 1
        say "one of the ports ${ports[*]} was taken meanwhile (attempt $attempt): trying others."
        rm -rf "$data"/db*
    done
    return 1
}
