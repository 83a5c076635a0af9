#!/bin/sh
# Installs bubblewrap, the better sandbox of PythonTool, where it can. Asks nothing and always exits 0: without it the
# tool uses a list of allowed system calls, and the tests of programs behind bubblewrap say that they were skipped.

label=sandbox

find_program() {
    command -v bwrap
}

explain() {
    echo "sandbox: no bubblewrap ($1)"
    exit 0
}

. "$(dirname "$0")/apt_install.sh"
finish_if_found
apt_install bubblewrap
