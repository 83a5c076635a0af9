#!/bin/sh
# Installs Node.js with npm where it can, and says what to do where it cannot: the reference servers of MCP need it.

find_node() {
    command -v node && command -v npm
}

explain() {
    echo "node: not installed ($1). Install Node.js 18 or later with npm; the tests of MCP's reference servers need it."
    exit 1
}

if find_node >/dev/null; then
    echo "node: $(command -v node)"
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
echo "node: installing nodejs and npm by apt-get (log: $log)"
{
    $as_root DEBIAN_FRONTEND=noninteractive timeout 300 apt-get update -qq
    $as_root DEBIAN_FRONTEND=noninteractive timeout 900 apt-get install -y -qq --no-install-recommends nodejs npm
} >>"$log" 2>&1 </dev/null
if find_node >/dev/null; then
    echo "node: $(command -v node)"
    rm -f "$log"
    exit 0
fi
tail -n 3 "$log" | sed 's/^/node: /'
explain "apt-get did not install it, see $log"
