# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# The complete mongod 7.0 as a replica set of one member again, and it asks who its clients are. Its
# address has the name and password of the superuser in it.

: "${scripts:?is set by the script that sources this file}"

# shellcheck source=scripts/engines/mongodb-replset.sh
. "$scripts/engines/mongodb-replset.sh"

engine_about='the same mongod 7.0 replica set of one member, with users and passwords (starts in 6 s)'
engine_env=MONGODB_SECURED_URI
engine_package=mongodb-replset

engine_start() {
    local data=$2 mongod_key
    need_node
    # Kept data comes back with its key, which is the superuser's password too.
    if [[ ! -s $data/key ]]; then
        (umask 077 && node -p 'require("crypto").randomBytes(12).toString("hex")' >"$data/key") || return 1
    fi
    mongod_key=$(<"$data/key")
    # With a key for its members a set has access control. The least number of rounds for a password: each
    # connection goes through them, which takes an emulated server, and a client without optimizations, a while.
    mongod_start "${@:1:5}" --keyFile "$data/key" --setParameter scramSHA256IterationCount=5000 "${@:6}"
}
