#!/usr/bin/env bash
# A first start with empty caches, then a second one in a new process: cold.sh TREE PAGE
set -euo pipefail
export TORCHINDUCTOR_CACHE_DIR=$(mktemp -d) TRITON_CACHE_DIR=$(mktemp -d) PYTHONPATH=$1
for start in first second; do
  begin=$SECONDS
  echo "128 1" | python3 "$(dirname "$0")/worker.py" "$2"
  echo "$start start, with the end of the process: $((SECONDS - begin)) s"
done
