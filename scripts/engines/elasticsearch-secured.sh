# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# The same Elasticsearch with security: with users, roles and API keys, over plain HTTP, and without inline scripts. Its
# address contains the name and the password of the superuser.

: "${scripts:?is set by the script that sources this file}"
# shellcheck source=scripts/engines/elasticsearch.sh
. "$scripts/engines/elasticsearch.sh"

engine_about='the same Elasticsearch, with users and passwords, without inline scripts (starts in 7 s)'
engine_env=ELASTICSEARCH_SECURED_URL
engine_package=elasticsearch

engine_start() {
    local data=$2 search_password
    need_node
    # Kept data keeps its password.
    if [[ ! -s $data/password ]]; then
        (umask 077 && node -p 'require("crypto").randomBytes(12).toString("hex")' >"$data/password") || return 1
    fi
    search_password=$(<"$data/password")
    elasticsearch_start "${@:1:5}" -E xpack.security.enabled=true -E script.allowed_types=stored \
        -E xpack.security.http.ssl.enabled=false -E xpack.security.transport.ssl.enabled=false "${@:6}"
}
