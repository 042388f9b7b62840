# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# One member of a replica set of the complete mongod 7.0, out of the same packages as the set of one
# member. Whoever starts it makes the set: the fault laboratory does, with a network of its own
# between the members.

: "${scripts:?is set by the script that sources this file}"

# shellcheck source=scripts/engines/mongodb-replset.sh
. "$scripts/engines/mongodb-replset.sh"

engine_about='mongod 7.0, a member for a replica set that is yet to be made (needs --port; starts in 3 s)'
engine_env=MONGODB_MEMBER_URI
engine_package=mongodb-replset

engine_start() {
    local home=$1 data=$2 log=$4 port=$5 seen end=$((SECONDS + ${LEASEHOLD_START_TIMEOUT:-120}))
    shift 5
    [[ -n $port ]] || die "a member needs --port, by which the others know it."
    # Kept data has a log from before.
    seen=$(wc -c 2>/dev/null <"$log" || echo 0)
    mongod_spawn "$home" "$port" "$data/db" "$log" "$@"
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
        kill -0 "${engine_pids[@]}" 2>/dev/null || return 1
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
    if tail -c +$((seen + 1)) "$log" | grep -q 'Address already in use'; then
        die "port $port is in use: stop what listens there, or give another --port."
    fi
    engine_uri=mongodb://127.0.0.1:$port/?directConnection=true
}
