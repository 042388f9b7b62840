# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# A router (mongos) of a sharded cluster, from the same packages as the replica set of one member. The caller has
# started a config server before: the fault laboratory does this, and kills routers.
#
# The first argument is the port of that config server, which is a set of one member with the name "config". An argument
# "--clock CLOCK", as in "--clock +5s", sets its clock off by that time.

: "${scripts:?is set by the script that sources this file}"

# shellcheck source=scripts/engines/mongodb-replset.sh
. "$scripts/engines/mongodb-replset.sh"

engine_about='a router of mongod 7.0 for a config server that is there (needs --port; starts in 3 s)'
engine_env=MONGODB_ROUTER_URI
engine_package=mongodb-replset

# mongos_spawn HOME PORT CONFIG-PORT LOG [CLOCK]: starts a router of the cluster with this config server.
mongos_spawn() {
    local home=$1 port=$2 config=$3 log=$4 command=()
    mongod_command "$home" mongos "${5:-}"
    engine_spawn "$log" "${command[@]}" --bind_ip 127.0.0.1 --port "$port" --nounixsocket \
        --configdb "config/127.0.0.1:$config" \
        --setParameter enableTestCommands=1 \
        --setParameter diagnosticDataCollectionEnabled=false
}

engine_start() {
    local home=$1 log=$4 port=$5 config=${6:-} clock='' seen
    [[ -n $port ]] || die "a router needs --port, at which it is started again."
    [[ -n $config ]] || die "which config server? Give its port as the first argument."
    if [[ ${7:-} == --clock ]]; then clock=${8:?--clock needs a difference, as in +5s}; fi
    # Kept data has an older log.
    seen=$(wc -c 2>/dev/null <"$log" || echo 0)
    mongos_spawn "$home" "$port" "$config" "$log" "$clock"
    mongod_await "$log" "$seen" "$port"
}
