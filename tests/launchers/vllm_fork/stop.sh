#!/usr/bin/env bash
# Stands for the fork's stop.sh: the container is stopped and kept.
set -euo pipefail
docker stop --time "${STOP_TIMEOUT:-60}" "${CONTAINER_NAME:-glm53-flash-exl3-b12x-vllm}"
