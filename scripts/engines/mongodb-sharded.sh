# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# A sharded cluster of the complete mongod 7.0, from the same packages as the replica set: a config server and a shard,
# each a set of one member, and two routers. Its address contains both routers. The clock of the second router is a
# minute ahead, because routers often run on other machines than the shards.
#
# An argument "--clock CLOCK", as in "--clock +5s", sets that clock off by that time instead.

: "${scripts:?is set by the script that sources this file}"

# shellcheck source=scripts/engines/mongodb-router.sh
. "$scripts/engines/mongodb-router.sh"

engine_about='a sharded cluster of mongod 7.0 with one shard and two routers, one of them a minute ahead (starts in 15 s)'
engine_env=MONGODB_SHARDED_URI
engine_package=mongodb-replset

engine_start() {
    local home=$1 data=$2 ready=$3/ready log=$4 port=$5 clock=+1m ports=() initiate
    shift 5
    while (($#)); do
        case $1 in
        --clock) clock=${2:?--clock needs a difference, as in +5s} && shift 2 ;;
        *) die "unknown argument $1: this engine takes only --clock." ;;
        esac
    done
    need_node
    [[ ! -s $data/ports ]] || read -r -a ports <"$data/ports"
    if ((${#ports[@]} == 0)); then
        ports=("$(free_port)" "$(free_port)" "${port:-$(free_port)}" "$(free_port)")
        echo "${ports[@]}" >"$data/ports"
    fi
    mongod_spawn "$home" "${ports[0]}" "$data/config" "$log" --configsvr --replSet config
    mongod_spawn "$home" "${ports[1]}" "$data/shard" "$log" --shardsvr --replSet shard
    mongos_spawn "$home" "${ports[2]}" "${ports[0]}" "$log"
    mongos_spawn "$home" "${ports[3]}" "${ports[0]}" "$log" "$clock"
    NODE_PATH=$home/node_modules engine_spawn "$log" \
        node "$scripts/engines/mongodb-sharded/initiate.js" "$ready" "${ports[@]}"
    initiate=${engine_pids[-1]}
    engine_await "$ready" || return 1
    unset 'engine_pids[-1]'
    wait "$initiate" || return 1
    engine_uri=$(<"$ready")
}
