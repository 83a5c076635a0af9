#!/bin/sh
# Installs Node.js with npm where it can, and says what to do where it cannot: the reference servers of MCP need it.

label=node

find_program() {
    command -v npm >/dev/null && command -v node
}

explain() {
    echo "node: not installed ($1). Install Node.js 18 or later with npm; the tests of MCP's reference servers need it."
    exit 1
}

. "$(dirname "$0")/apt_install.sh"
finish_if_found
apt_install "nodejs npm"
