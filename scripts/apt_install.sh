# Sourced by the scripts install_*.sh: installs one program by apt-get where that works without a question.
#
# Before it is sourced: `label` names the program in messages, `find_program` prints its path and fails where it is
# missing, and `explain WHY` says what to do without it and exits.

# Prints where the program is and exits, where it is there.
finish_if_found() {
    if path=$(find_program); then
        echo "$label: $path"
        exit 0
    fi
}

# apt_install CHOICE...: each CHOICE is a list of packages, tried until the program is there. Does not return.
apt_install() {
    command -v apt-get >/dev/null || explain "no apt-get here"
    if [ "$(id -u)" = 0 ]; then
        as_root="env"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root="sudo -n env"
    else
        explain "not root, and sudo wants a password"
    fi
    log=$(mktemp)
    echo "$label: installing $1 by apt-get (log: $log)"
    for packages in "$@"; do
        {
            $as_root DEBIAN_FRONTEND=noninteractive timeout 300 apt-get update -qq
            # unquoted: a list of packages
            $as_root DEBIAN_FRONTEND=noninteractive timeout 900 apt-get install -y -qq --no-install-recommends $packages
        } >>"$log" 2>&1 </dev/null
        if find_program >/dev/null; then
            rm -f "$log"
            finish_if_found
        fi
    done
    tail -n 3 "$log" | sed "s/^/$label: /"
    explain "apt-get did not install it, see $log"
}
