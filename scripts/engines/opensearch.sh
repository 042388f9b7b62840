# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# OpenSearch 2.5, without its plugins, such as security.

: "${scripts:?is set by the script that sources this file}"
# shellcheck source=scripts/lib/search-engines.sh
. "$scripts/lib/search-engines.sh"

engine_about='OpenSearch 2.5, one node on a TCP port, without security (starts in 5 s)'
engine_env=OPENSEARCH_URL
engine_pins=('a second home with opensearch-security')

# Prints the path of a Java that can run OpenSearch 2.5: the one of this machine, or the one that Elasticsearch
# contains.
opensearch_java() {
    local java version home
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)"; do
        [[ -n $java ]] || continue
        # Java is tried as the user that will run it, because that user cannot use a Java in root's home.
        version=$(setpriv "${engine_as[@]}" "$java" -version 2>&1) || continue
        # Java 8 is too old for OpenSearch, and versions that are too new have no security manager any more.
        [[ $version =~ version\ \"([0-9]+) ]] || continue
        if ((BASH_REMATCH[1] >= 11 && BASH_REMATCH[1] <= 21)); then
            printf '%s\n' "$java"
            return
        fi
    done
    home=$(engine_load elasticsearch && engine_home)
    if [[ ! -d $home ]]; then
        say "there is no Java 11 to 21 on this machine: taking the one that comes with Elasticsearch."
        "$scripts/engine" fetch elasticsearch >&2
    fi
    printf '%s\n' "$home/jdk/bin/java"
}

engine_fetch() {
    local target=$1/node_modules/@dragon-den/dopensearch/target name
    engine_reachable "$(dirname "$1")" 'set LEASEHOLD_CACHE to a folder that everyone may enter'
    npm_unpack "$1"
    for name in LICENSE.txt NOTICE.txt config lib modules; do
        mv "$target/$name" "$1/"
    done
    # Without these folders, which may be empty, it does not start.
    mkdir "$1"/{bin,plugins}
    # These are the settings of plugins that are left out.
    rm -rf "$1"/config/opensearch-[!s]*
    # A node has all plugins of its home, so the security plugin has a home of its own.
    mkdir -p "$1"/secured/{bin,plugins}
    cp -Rl "$1"/{lib,modules} "$1/secured/"
    mv "$target/plugins/opensearch-security" "$1/secured/plugins/"
    cp -R "$1/config" "$1/secured/"
    rm -r "$1/config/opensearch-security"
    rm -rf "$1/node_modules"
    search_publish "$1"
    opensearch_java >/dev/null
}

# See search_start. opensearch_home may be the home of another variant.
search_spawn() {
    local folder=$1 log=$3 home java name settings=() options=()
    home=${opensearch_home:-$(engine_home)}
    java=$(opensearch_java) || return 1
    for name in "${!search_setting[@]}"; do settings+=(-E "$name=${search_setting[$name]}"); done
    # Java 11 does not know this option. Versions after 17 need it.
    if "$java" -Djava.security.manager=allow -version >/dev/null 2>&1; then
        options=(-Djava.security.manager=allow)
    fi
    engine_spawn "$log" env -C "$folder" "$java" \
        -Dopensearch.networkaddress.cache.ttl=60 -Dopensearch.networkaddress.cache.negative.ttl=10 \
        -Djava.locale.providers=SPI,COMPAT "${options[@]}" \
        "${search_java_options[@]}" \
        -Djava.io.tmpdir="$folder/tmp" -Dopensearch.path.home="$home" \
        -Dopensearch.path.conf="$folder/config" -Dopensearch.distribution.type=tar \
        -Dopensearch.bundled_jdk=true -cp "$home/lib/*" \
        org.opensearch.bootstrap.OpenSearch "${settings[@]}"
}

engine_start() {
    local home=$1
    shift
    search_start "$home/config" "$@"
}
