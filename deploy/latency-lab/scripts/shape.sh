#!/usr/bin/env bash
# Within a container: shape.sh RTT_MS PEER delays what leaves for PEER by half of the round trip.
#
# The whole interface towards it is delayed, so no filter knows an address that a restart changes.
# netem drops what is beyond `limit` packets, 1,000 of itself: 15 MB/s at 100 ms. Here it is what
# LINK_GBIT has on its way in that time, in packets of 1,500 bytes, and as much again.
set -euo pipefail
rtt_ms=$1 peer=$2
address=$(getent ahostsv4 "$peer" | awk 'NR == 1 { print $1 }')
device=$(ip -o route get "$address" | sed 's/.* dev \([^ ]*\).*/\1/')
tc qdisc del dev "$device" root 2>/dev/null || true
if [ "$rtt_ms" -gt 0 ]; then
  limit=$((2 * LINK_GBIT * 1000000000 / 8 * rtt_ms / 2 / 1000 / 1500 + 1000))
  tc qdisc add dev "$device" root netem delay "$((rtt_ms * 500))us" limit "$limit"
fi
tc -s qdisc show dev "$device"
