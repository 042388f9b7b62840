# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# Another engine with MongoDB's own code in a Node.js process, for the tests of what only an alpha of MongoDB 9.0 has.
# They need it even if the other tests are given another MongoDB, such as a container with an older version.

: "${scripts:?is set by the script that sources this file}"

# shellcheck source=scripts/engines/mongodb.sh
. "$scripts/engines/mongodb.sh"

engine_about='the same MongoDB in a Node.js process, for what only an alpha of 9.0 has (starts in half a second)'
engine_env=MONGODB_ALPHA_URI
engine_package=mongodb
