#!/usr/bin/env bash
# Sets the round trip between engine and store: latency.sh RTT_MS. Half of it is added by each
# container to what it sends to the other one. 0 takes the delay away.
#
# LINK_GBIT (10) is what the link shall carry: netem holds that many packets and drops what is more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1-} =~ ^[0-9]+$ ]] || { echo "usage: latency.sh RTT_MS (a whole number)" >&2; exit 2; }
for pair in engine:store store:engine; do
  docker compose exec -T -e "LINK_GBIT=${LINK_GBIT:-10}" "${pair%:*}" \
    bash /scripts/shape.sh "$1" "${pair#*:}"
done
