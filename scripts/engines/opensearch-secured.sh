# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# The same OpenSearch with its security plugin: with users and roles, over plain HTTP. Its address contains the name and
# the password of the superuser.

: "${scripts:?is set by the script that sources this file}"
# shellcheck source=scripts/engines/opensearch.sh
. "$scripts/engines/opensearch.sh"

engine_about='the same OpenSearch, with users and passwords (starts in 15 s)'
engine_env=OPENSEARCH_SECURED_URL
engine_package=opensearch

# opensearch_users FOLDER: writes what the plugin reads at its first start: the only user, with search_password, and its
# only role. The plugin's own file gives each user a role besides.
opensearch_users() {
    local java hash
    java=$(opensearch_java) || return 1
    hash=$("$java" -cp "$opensearch_home/plugins/opensearch-security/*:$opensearch_home/lib/*" \
        org.opensearch.security.tools.Hasher -p "$search_password") || return 1
    cat >"$1/internal_users.yml" <<END
_meta: { type: internalusers, config_version: 2 }
$search_user: { hash: "${hash##*$'\n'}" }
END
    cat >"$1/roles_mapping.yml" <<END
_meta: { type: rolesmapping, config_version: 2 }
all_access: { users: [$search_user] }
END
}

engine_start() {
    local data=$2 config=$3/config search_user=leasehold search_password opensearch_home=$1/secured
    need_node
    need openssl openssl
    # Kept data keeps its password.
    if [[ ! -s $data/password ]]; then
        (umask 077 && node -p 'require("crypto").randomBytes(12).toString("hex")' >"$data/password") || return 1
    fi
    search_password=$(<"$data/password")
    cp -R "$opensearch_home/config" "$config" || return 1
    opensearch_users "$config/opensearch-security" || return 1
    # The plugin does not start without TLS between nodes.
    openssl req -x509 -newkey rsa:2048 -nodes -days 36500 -subj /CN=node \
        -keyout "$config/node.key" -out "$config/node.pem" 2>/dev/null || return 1
    local ssl=plugins.security.ssl.transport
    search_start "$config" "${@:2:4}" -E $ssl.pemcert_filepath=node.pem -E $ssl.pemkey_filepath=node.key \
        -E $ssl.pemtrustedcas_filepath=node.pem -E $ssl.enforce_hostname_verification=false \
        -E plugins.security.allow_default_init_securityindex=true -E plugins.security.audit.type=noop \
        -E plugins.security.restapi.roles_enabled=all_access "${@:6}"
}
