#!/bin/sh
# Installs the driver with which Selenium speaks to Chromium, which `make bench` needs for the environment of miniwob.
# Fails where it cannot: that peer could not be measured.

label=chromedriver

find_program() {
    command -v chromedriver
}

explain() {
    echo "chromedriver: none installed ($1). Install Debian's chromium-driver, or the one of your Chromium's version."
    exit 1
}

. "$(dirname "$0")/apt_install.sh"
finish_if_found
apt_install chromium-driver
