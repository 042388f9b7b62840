# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# The complete mongod 7.0 as a replica set of one member, with access control. Its address contains the name and the
# password of the superuser.

: "${scripts:?is set by the script that sources this file}"

# shellcheck source=scripts/engines/mongodb-replset.sh
. "$scripts/engines/mongodb-replset.sh"

engine_about='the same mongod 7.0 replica set of one member, with users and passwords (starts in 6 s)'
engine_env=MONGODB_SECURED_URI
engine_package=mongodb-replset

engine_start() {
    local data=$2 mongod_key
    need_node
    # Kept data keeps its key, which is also the superuser's password.
    if [[ ! -s $data/key ]]; then
        (umask 077 && node -p 'require("crypto").randomBytes(12).toString("hex")' >"$data/key") || return 1
    fi
    mongod_key=$(<"$data/key")
    # A set whose members have a key has access control. The number of rounds for a password is the lowest possible,
    # because each connection computes them, which takes time on an emulated server and in an unoptimized client.
    mongod_start "${@:1:5}" --keyFile "$data/key" --setParameter scramSHA256IterationCount=5000 "${@:6}"
}
