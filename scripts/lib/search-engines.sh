# shellcheck shell=bash disable=SC2034,SC2154  # scripts/engine reads what it sets, and sets what it reads
# What the engines Elasticsearch and OpenSearch, which have a common origin, share. The files of both engines in
# scripts/engines source it after lib/engines.sh.
#
# Both engines are started without their own scripts. Those scripts start one or two more Java virtual machines for what
# is done here, which takes seconds. The script of Elasticsearch also stays as the parent of the node, so the node would
# survive a SIGKILL.

: "${scripts:?is set by the script that sources this file}"

engine_listens=tcp
engine_rootless=yes

# These options are for a small node that starts fast, not for one that is fast in the long run: the nodes of a test
# live for seconds, and many run at the same time. The nodes that the whole suite shares have some hundred indices at
# the end. They refuse requests when the heap is full of these and of garbage that was not collected yet.
search_java_options=(
    -Xms512m -Xmx1g -Xss1m
    -XX:+UseSerialGC
    -XX:TieredStopAtLevel=1
    -Xshare:auto
    -XX:-UsePerfData
    -XX:+ExitOnOutOfMemoryError
    -XX:-OmitStackTraceInFastThrow
    -Djava.awt.headless=true
    -Dfile.encoding=UTF-8
    -Djna.nosys=true
    -Dio.netty.noUnsafe=true
    -Dio.netty.noKeySetOptimization=true
    -Dio.netty.recycler.maxCapacityPerThread=0
    -Dlog4j.shutdownHookEnabled=false
    -Dlog4j2.disable.jmx=true
    -Dlog4j2.formatMsgNoLookups=true
)

# search_publish FOLDER: makes the folder readable, at the end of engine_fetch.
search_publish() {
    # The archives contain folders that only their owner may enter. (mktemp made the folder itself, also for its owner
    # only.)
    chmod -R u+w,go-w,a+rX "$1"
}

# search_settings ARGUMENT...: adds the settings on the command line, '-E name=value', to the associative array
# search_setting. A later setting replaces an earlier one.
search_settings() {
    while (($#)); do
        case $1 in
        -E)
            [[ ${2:-} == *=* ]] || die "-E needs name=value, not '${2:-}'."
            search_setting[${2%%=*}]=${2#*=}
            shift 2
            ;;
        -E*=*)
            local argument=${1#-E}
            search_setting[${argument%%=*}]=${argument#*=}
            shift
            ;;
        *) die "$engine_name takes settings as '-E name=value' after '--', not '$1'." ;;
        esac
    done
}

# search_start CONFIG DATA WORK LOG PORT [ARGUMENT...]: starts the node and waits until it accepts writes. CONFIG is the
# configuration to copy. The caller defines
#   search_spawn FOLDER WORK LOG
#       starts the node with the settings in search_setting, its configuration in FOLDER/config
# and may set search_password, the password of the user search_user (elastic by default).
search_start() {
    local config=$1 data=$2 work=$3 log=$4 port=$5 node=$2/node host address search_password=${search_password:-}
    shift 5
    need_node
    # Kept data gets its former address.
    if [[ -z $port && -s $data/port ]]; then port=$(<"$data/port"); fi

    # A former node with the same data may have left these folders.
    rm -rf "$node"/{config,logs,tmp}
    if ! mkdir -p "$node"/{data,logs,tmp} || ! cp -R "$config" "$node/config"; then
        die "cannot write to the data folder $data: make room there, or give one that you may write to."
    fi
    # The node logs only to its standard output, which is the engine's log.
    cat >"$node/config/log4j2.properties" <<'END'
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
END
    if ((${#engine_as[@]})); then
        # mktemp made these folders for this user only.
        chmod o+x "$work" "$data"
        chown -R "${engine_as[1]}:${engine_as[3]}" "$node"
        engine_reachable "$node" 'set TMPDIR, or --data, to a folder that everyone may enter'
        engine_reachable "$config" 'set LEASEHOLD_CACHE to a folder that everyone may enter'
    fi

    declare -A search_setting=(
        [path.data]=$node/data
        [path.logs]=$node/logs
        [network.host]=127.0.0.1
        # With 0 the node takes any free port, and writes it into a file.
        [http.port]=${port:-0}
        [transport.port]=0
        [node.portsfile]=true
        # A full disk must not make the index of a test read-only.
        [cluster.routing.allocation.disk.threshold_enabled]=false
    )
    search_settings "$@"
    # A node of a larger cluster is told how to find the other nodes, or which nodes form the cluster first.
    if [[ " ${!search_setting[*]}" != *' '@(discovery.|cluster.initial_)* ]]; then
        search_setting[discovery.type]=single-node
    fi

    # Kept data has an older log.
    local seen
    seen=$(wc -c 2>/dev/null <"$log" || echo 0)
    search_spawn "$node" "$work" "$log" || return 1
    if ! engine_await "$node/logs/http.ports"; then
        if [[ -n $port ]] && tail -c +$((seen + 1)) "$log" | grep -q BindHttpException; then
            die "port $port is in use: stop what listens there, or give another --port."
        fi
        return 1
    fi
    host=$(grep -m 1 '^127\.' "$node/logs/http.ports" || head -n 1 "$node/logs/http.ports")
    address=http://${search_password:+${search_user:-elastic}:$search_password@}$host
    engine_rootful_spawn "$log" node "$scripts/lib/search-ready.js" "$work/ready" "$address"
    local ready=${engine_pids[-1]}
    engine_await "$work/ready" || return 1
    unset 'engine_pids[-1]'
    wait "$ready" || return 1
    printf '%s\n' "${host##*:}" >"$data/port"
    engine_uri=$address
}

# Like engine_spawn, but as this user.
engine_rootful_spawn() {
    local engine_as=() engine_input=/dev/null
    engine_spawn "$@"
}
