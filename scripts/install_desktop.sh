#!/bin/sh
# Installs what the desktop environment shows: an X server without a screen, a window manager, programs and their walls.
# Asks nothing and always exits 0: everything but that environment works without it.

label=desktop

find_program() {
    for name in bwrap prlimit nsenter Xvfb openbox mousepad galculator pcmanfm gnumeric; do
        command -v "$name" >/dev/null || return 1
    done
    command -v Xvfb
}

explain() {
    echo "desktop: not installed ($1)."
    echo "desktop: the desktop environment stays off; everything else works. To turn it on, on Debian 12 or later:"
    echo "desktop:   sudo apt-get install bubblewrap xvfb openbox mousepad galculator pcmanfm gnumeric fonts-dejavu-core"
    exit 0
}

. "$(dirname "$0")/apt_install.sh"
finish_if_found
apt_install "bubblewrap xvfb openbox mousepad galculator pcmanfm gnumeric fonts-dejavu-core"
