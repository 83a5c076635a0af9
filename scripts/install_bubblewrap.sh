#!/bin/sh
# Installs bubblewrap, the better sandbox of PythonTool, where it can. Asks nothing and always exits 0: without it the
# tool uses a list of allowed system calls, and the tests of programs behind bubblewrap say that they were skipped.

if command -v bwrap; then
    exit 0
fi
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    as_root="env"
elif command -v apt-get >/dev/null && command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n env"
else
    echo "sandbox: no bubblewrap, and no apt-get as root to install it"
    exit 0
fi
{
    $as_root DEBIAN_FRONTEND=noninteractive timeout 300 apt-get update -qq
    $as_root DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq --no-install-recommends bubblewrap
} >/dev/null 2>&1 </dev/null
command -v bwrap || echo "sandbox: apt-get did not install bubblewrap"
exit 0
