#!/usr/bin/env bash
# The entry point of the images that scripts/containers makes. It runs an engine in the foreground, as the official
# image of the same name would: it takes the same command or the same settings from the environment, answers on the same
# port at every address, and prints the same line when it is ready. It runs only in a container.
#
#   container-entry.sh ENGINE [COMMAND...]
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/lib/engines.sh
. "$scripts/lib/engines.sh"
engine_load "$1"
shift

# The folder in which scripts/containers puts an engine.
engine_home() {
    printf '/engine/%s\n' "$engine_name"
}

# The engine replaces this process, so the output of the container is its log.
engine_spawn() {
    shift
    exec "$@" 0<>"$engine_input"
}

mongod_run() {
    local command
    [[ ${1:-} == mongod ]] || die "this image only runs mongod, not '${1:-}'."
    shift
    mkdir -p /data/db
    mongod_command "$(engine_home)" mongod
    # The options are those of scripts/engines/mongodb-replset.sh: a small cache, and no diagnostic samples.
    exec "${command[@]}" --wiredTigerCacheSizeGB 0.25 \
        --setParameter diagnosticDataCollectionEnabled=false "$@"
}

# shellcheck disable=SC2034  # search_spawn reads what it sets
search_run() {
    local folder=/tmp/node entry options search_password=''
    mkdir -p "$folder"/{data,logs,tmp}
    cp -R "$(engine_home)/config" "$folder/config"
    declare -A search_setting=(
        [path.data]=$folder/data
        [path.logs]=$folder/logs
        [network.host]=0.0.0.0
    )
    # In a container, Elasticsearch prints JSON, and OpenSearch does not.
    local layout='PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] [%node_name]%marker %m%n'
    if [[ $engine_name == elasticsearch ]]; then
        layout='ECSJsonLayout
appender.console.layout.dataset = elasticsearch.server'
        # Encryption between nodes is not tested, so it needs no keys.
        search_setting[xpack.security.transport.ssl.enabled]=false
    fi
    cat >"$folder/config/log4j2.properties" <<END
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = $layout
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
END
    # An environment variable with a dot in its name is a setting. Bash cannot read such variables, so this reads the
    # environment of the process from the kernel.
    while IFS= read -r -d '' entry; do
        case $entry in
        ELASTIC_PASSWORD=*) search_password=${entry#*=} ;;
        ES_JAVA_OPTS=* | OPENSEARCH_JAVA_OPTS=*)
            read -r -a options <<<"${entry#*=}"
            search_java_options+=("${options[@]}")
            ;;
        *.*=*) if [[ ${entry%%=*} == *.* ]]; then search_setting[${entry%%=*}]=${entry#*=}; fi ;;
        esac
    done </proc/$$/environ
    search_spawn "$folder" "$folder/tmp" /dev/stdout
}

case $engine_name in
mongodb-replset) mongod_run "$@" ;;
*) search_run ;;
esac
