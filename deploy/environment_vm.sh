#!/bin/sh
# Serves one environment on this machine, a process for each port, and starts again what ends. For machines without
# systemd; with it use deploy/uirl-env@.service. SIGTERM or Ctrl-C ends all servers.
#
#   UIRL_ENV_TOKEN=... UIRL_ENV_GRADER_TOKEN=... sh deploy/environment_vm.sh --env miniwob --option task=click-color
#
# PORTS     default: one for each core, from 8000 on
# HOST      default: 0.0.0.0, which needs the two tokens
# SESSIONS  at a time and process, default 16
# UIRL      the program, default: uirl
set -u
: "${HOST:=0.0.0.0}" "${SESSIONS:=16}" "${UIRL:=uirl}"
: "${PORTS:=$(seq 8000 $((7999 + $(nproc))))}"
[ $# -gt 0 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
for name in UIRL_ENV_TOKEN UIRL_ENV_GRADER_TOKEN; do
  eval "value=\${$name:-}"
  [ -n "$value" ] || { echo "$name is not set; expected a long random text: openssl rand -hex 32" >&2; exit 2; }
done
export UIRL_ENV_TOKEN UIRL_ENV_GRADER_TOKEN

serve() { # one port: again and again, unless the command itself is wrong (status 2)
  port=$1; shift
  trap 'trap - TERM; [ -z "${server:-}" ] || kill "$server" 2>/dev/null; wait; exit 0' TERM INT
  while :; do
    $UIRL serve --host "$HOST" --port "$port" --sessions "$SESSIONS" \
      --token-env UIRL_ENV_TOKEN --grader-token-env UIRL_ENV_GRADER_TOKEN "$@" &
    server=$!
    wait "$server"; status=$?
    [ "$status" -ne 2 ] || { echo "port $port: the command is wrong, see above; not started again" >&2; exit 2; }
    echo "port $port: the server ended with status $status; again in 2 s" >&2
    server=; sleep 2
  done
}

keepers=
for port in $PORTS; do
  serve "$port" "$@" &
  keepers="$keepers $!"
done
trap 'trap - TERM INT; kill $keepers 2>/dev/null; wait; exit 0' TERM INT
wait
exit 2 # all commands were wrong
