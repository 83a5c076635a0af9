#!/bin/sh
# Installs a Chromium for the browser environments where it can, and says what to do where it cannot.
# Asks nothing and always exits 0: everything but the browser environments works without it.

find_browser() {
    for name in "${UIRL_CHROMIUM:-}" chromium-headless-shell chrome-headless-shell chromium chromium-browser google-chrome; do
        [ -n "$name" ] && command -v "$name" && return 0
    done
    return 1
}

explain() {
    echo "browser: none installed ($1)."
    echo "browser: the browser environments stay off; everything else works. To turn them on, either"
    echo "browser:   sudo apt-get install chromium-headless-shell     (Debian 12 or later; elsewhere: chromium)"
    echo "browser: or set UIRL_CHROMIUM to the path of a Chromium or Chrome."
    exit 0
}

if found=$(find_browser); then
    echo "browser: $found"
    exit 0
fi

command -v apt-get >/dev/null || explain "no apt-get here"
if [ "$(id -u)" = 0 ]; then
    as_root="env"
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n env"
else
    explain "not root, and sudo wants a password"
fi

log=$(mktemp)
echo "browser: installing chromium-headless-shell by apt-get (log: $log)"
export_quiet="DEBIAN_FRONTEND=noninteractive"
for package in chromium-headless-shell chromium; do
    {
        $as_root $export_quiet timeout 300 apt-get update -qq
        $as_root $export_quiet timeout 600 apt-get install -y -qq --no-install-recommends "$package"
    } >>"$log" 2>&1 </dev/null
    if found=$(find_browser); then
        echo "browser: $found"
        rm -f "$log"
        exit 0
    fi
done
tail -n 3 "$log" | sed 's/^/browser: /'
explain "apt-get did not install it, see $log"
