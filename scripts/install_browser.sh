#!/bin/sh
# Installs a Chromium for the browser environments where it can, and says what to do where it cannot: Debian's package,
# else the one that Playwright brings.
# Asks nothing and always exits 0: everything but the browser environments works without it.

label=browser

find_program() {
    for name in "${UIRL_CHROMIUM:-}" chromium-headless-shell chrome-headless-shell chromium chromium-browser google-chrome; do
        [ -n "$name" ] && command -v "$name" && return 0
    done
    return 1
}

explain() {
    if "${PLAYWRIGHT:-.venv/bin/playwright}" install --only-shell chromium >/dev/null 2>&1; then
        echo "browser: installed by playwright ($1)"
        exit 0
    fi
    echo "browser: none installed ($1)."
    echo "browser: the browser environments stay off; everything else works. To turn them on, either"
    echo "browser:   playwright install chromium                       (Linux, macOS, Windows)"
    echo "browser:   sudo apt-get install chromium-headless-shell     (Debian 12 or later; elsewhere: chromium)"
    echo "browser: or set UIRL_CHROMIUM to the path of a Chromium or Chrome."
    exit 0
}

. "$(dirname "$0")/apt_install.sh"
finish_if_found
apt_install chromium-headless-shell chromium
