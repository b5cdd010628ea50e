#!/usr/bin/env bash
# Stands for CuteAFD's run.sh: both of its config parsers, unknown keys, the dry run, the container's name, the wait for /health.
set -euo pipefail
cd "$(dirname "$0")"
. ./simulator.env

config=cuteafd.config dry=0 restart=0
while [ $# -gt 0 ]; do
    case "$1" in
        --config) config="$2"; shift 2 ;;
        --dry-run) dry=1; shift ;;
        --restart) restart=1; shift ;;
        *) echo "unknown argument: $1" >&2; exit 2 ;;
    esac
done
if [ "$dry" = 1 ] && [ "$restart" = 1 ]; then echo "--dry-run and --restart exclude each other" >&2; exit 2; fi
[ -f "$config" ] || { echo "no config file: $config" >&2; exit 1; }

known=" $(tr '\n' ' ' <keys.txt) "
declare -A strict
# The strict parser: trims, strips comments and quotes.
while IFS= read -r line || [ -n "$line" ]; do
    line="${line%%#*}"
    [ -n "${line//[[:space:]]/}" ] || continue
    key="${line%%=*}" value="${line#*=}"
    value="${value%\"}"; value="${value#\"}"
    strict["${key//[[:space:]]/}"]="$(echo "$value" | xargs)"
done <"$config"
# The raw one: splits at the first =, and takes the rest as it is.
raw() { grep -E "^$1=" "$config" | head -n 1 | cut -d= -f2- || true; }
for key in "${!strict[@]}"; do
    case "$known" in *" $key "*) ;; *) echo "unknown key in $config: $key" >&2; exit 1 ;; esac
    if [ "$(raw "$key")" != "${strict[$key]}" ]; then
        echo "$config: the parsers read $key differently: '$(raw "$key")' and '${strict[$key]}'" >&2; exit 1
    fi
done
[ -n "$(raw MODEL_ID)" ] || { echo "MODEL_ID is missing" >&2; exit 1; }
# Where it is told of a cache of models, what it drafts with must lie there at its revision.
drafter="$(raw SPECULATOR_MODEL_ID)" revision="$(raw SPECULATOR_MODEL_REVISION)"
if [ -n "${HF_HOME:-}" ] && [ -n "$revision" ]; then
    snapshot="$HF_HOME/hub/models--${drafter//\//--}/snapshots/$revision"
    [ -f "$snapshot/config.json" ] || { echo "missing snapshot $snapshot" >&2; exit 1; }
fi

name=cuteafd-coordinator
[ -z "$(raw INSTANCE)" ] || name="$name-$(raw INSTANCE)"
addr="$(raw ADDR)" image="$(raw COORDINATOR_DOCKER_INFERENCE)" keys="$(raw API_KEY_FILE)" dumps="$(raw PROBE_DUMP_ROOT)"
if [ "$dry" = 1 ]; then
    echo "indexer keys are forced on a head split"
    echo "rtx0 weights: 41.25 GiB"
    echo "rtx1 weights: 40.50 GiB"
    echo "KV pool  1,931,264 tokens"
    exit 0
fi
[ "$restart" = 1 ] || { echo "the coordinator is left as it is" >&2; exit 1; }
if [ "$(raw ENABLE_BENCH)" = on ]; then
    [ -d "$dumps" ] || { echo "PROBE_DUMP_ROOT is no folder: $dumps" >&2; exit 1; }
fi
if [ -n "$keys" ]; then
    [ "$(stat -c %a "$keys")" = 600 ] || { echo "the API key can be read by others" >&2; exit 1; }
    (umask 077; echo '{}' >"$(dirname "$keys")/api-keys")
fi
docker image inspect "$image" >/dev/null || { echo "No such image: $image" >&2; exit 1; }
docker rm -f "$name" >/dev/null 2>&1 || true
host="${addr%:*}" port="${addr##*:}"
options=(--host "$host" --port "$port" --model "$(raw MODEL_ID)")
if [ "$(raw ENABLE_BENCH)" = on ]; then options+=(--dump-root "$dumps"); fi
if [ "$(raw FULL_PREFILL_LOGITS)" != on ]; then options+=(--no-full-prefill-logits); fi
if [ -n "$keys" ]; then options+=(--api-key-file "$keys"); fi
# `auto` leaves the size to the launcher's planner.
if [ -n "$(raw POOL_TOKENS)" ] && [ "$(raw POOL_TOKENS)" != auto ]; then options+=(--kv-tokens "$(raw POOL_TOKENS)"); fi
mounts=(-v "$(dirname "$keys"):$(dirname "$keys"):ro")
if [ -n "$dumps" ]; then mounts+=(-v "$dumps:$dumps"); fi
eval "arguments=($SIM_DOCKER_ARGUMENTS)"
eval "command=($SIM_COMMAND)"
docker run -d --name "$name" --restart no --network host -e "CUTEAFD_IMAGE=$image" "${mounts[@]}" "${arguments[@]}" "$image" \
    "${command[@]}" "${options[@]}" >/dev/null
for _ in $(seq 300); do
    if [ "$(docker inspect -f '{{.State.Running}}' "$name")" != true ]; then
        echo "coordinator exited:" >&2; docker logs --tail 30 "$name" >&2; exit 1
    fi
    if python3 -c "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://$addr/health', timeout=2)" 2>/dev/null; then
        echo "API ready at http://$addr/v1/ ($(raw MODEL_ID))"; exit 0
    fi
    sleep 0.2
done
echo "coordinator readiness timed out:" >&2; docker logs --tail 30 "$name" >&2; exit 1
