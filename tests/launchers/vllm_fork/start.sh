#!/usr/bin/env bash
# Stands for the fork's start.sh: environment variables alone, the rule for a name that is in use, a container that restarts silently.
set -euo pipefail
cd "$(dirname "$0")"
. ./simulator.env

[ $# = 0 ] || { echo "start.sh takes no arguments" >&2; exit 2; }
name="${CONTAINER_NAME:-glm53-flash-exl3-b12x-vllm}" port="${PORT:-8001}"
served="${SERVED_MODEL_NAME:-${MODEL_ID:?MODEL_ID is missing}}"
case "${MODEL_PROFILE:-k4}" in k325 | k3 | k4 | custom) ;; *) echo "MODEL_PROFILE must be k325, k3, k4 or custom" >&2; exit 1 ;; esac
if [ -n "${KV_CACHE_PROFILE:-}" ] && [ "${KV_CACHE_PROFILE}" != fp8 ] && [ "${KV_CACHE_PROFILE}" != nvfp4 ]; then
    echo "KV_CACHE_PROFILE must be fp8 or nvfp4" >&2; exit 1
fi
if [ "${DFLASH_TOKENS:-3}" -lt 1 ] || [ "${DFLASH_TOKENS:-3}" -gt 7 ]; then echo "DFLASH_TOKENS must be 1 to 7" >&2; exit 1; fi
docker image inspect "$IMAGE" >/dev/null || { echo "Unable to find image $IMAGE" >&2; exit 1; }
state="$(docker inspect -f '{{.State.Running}}' "$name" 2>/dev/null || true)"
if [ "$state" = true ]; then echo "container $name is already running" >&2; exit 1; fi
if [ "$state" = false ]; then docker rm "$name" >/dev/null; fi
mkdir -p "${CACHE_DIR:?}"
touch "$CACHE_DIR/compiled"
debug=()
for pair in ${DEBUG_ENV:-}; do debug+=(--env "$pair"); done
eval "arguments=($SIM_DOCKER_ARGUMENTS)"
eval "command=($SIM_COMMAND)"
# The real one publishes a port; without a bridge the host's network is used, and PORT holds address and port.
docker run -d --name "$name" --restart unless-stopped --network host --env HF_HUB_OFFLINE=1 "${debug[@]}" -v "$CACHE_DIR:/tmp/cache" \
    "${arguments[@]}" "$IMAGE" "${command[@]}" --fork --host "${port%:*}" --port "${port##*:}" --model "$served" \
    --context "${MAX_MODEL_LEN:-8192}" ${EXTRA_SERVE_ARGS:-} >/dev/null
echo "vLLM is starting at http://127.0.0.1:$port"
