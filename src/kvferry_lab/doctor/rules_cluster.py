"""Checks of a cluster as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from kvferry_lab.doctor.facts import ClusterFacts, Facts, Finding, fault, info, ok, warn

__all__ = ["examine_cluster"]

_SLOTS = 16_384
_UNEVEN = 1.25


def examine_cluster(facts: Facts) -> Iterator[Finding]:
    """Every check; nothing where there is no cluster."""
    cluster = facts.cluster
    if cluster is None:
        return
    yield mode(cluster)
    yield state(cluster)
    yield slots(cluster)
    yield coverage(facts)
    yield nodes(cluster)
    yield balance(cluster)


def mode(cluster: ClusterFacts) -> Finding:
    """The client is told that it is one."""
    serving = [node for node in cluster.nodes if node.slots]
    if cluster.is_expected:
        return ok("cluster-mode", f"{len(serving)} shards")
    seen = f"a cluster of {len(serving)} shards, and the URL names one server"
    fix = (
        "use redis+cluster://... instead of redis://..., or rediss+cluster:// instead of rediss://"
    )
    if len(serving) > 1:
        return fault("cluster-mode", seen, "keys of other shards are answered with MOVED", fix)
    return info("cluster-mode", seen, "it works until there is a second shard", fix)


def state(cluster: ClusterFacts) -> Finding:
    """It serves."""
    word = cluster.info.get("cluster_state", "unknown")
    if word == "ok":
        return ok("cluster-state", "ok")
    why = "keys are answered with CLUSTERDOWN"
    return fault("cluster-state", f"cluster_state:{word}", why, "redis-cli --cluster fix HOST:PORT")


def slots(cluster: ClusterFacts) -> Finding:
    """Every slot has an owner that is up."""
    served = sum(
        node.slots for node in cluster.nodes if "fail" not in node.flags and node.is_primary
    )
    if served >= _SLOTS:
        return ok("cluster-slots", f"all {_SLOTS:,} are served")
    seen = f"{_SLOTS - served:,} of {_SLOTS:,} slots are served by nobody"
    why = "their keys cannot be read or written"
    return fault("cluster-slots", seen, why, "redis-cli --cluster fix HOST:PORT")


def coverage(facts: Facts) -> Finding:
    """A shard that is lost takes only its own keys along."""
    settings = [s.config.get("cluster-require-full-coverage") for s in facts.servers if s.config]
    if not settings:
        return info("cluster-coverage", "cluster-require-full-coverage could not be read")
    if "yes" in settings:
        why = "one shard that is lost makes all others refuse; a cache can do with what is left"
        fix = "CONFIG SET cluster-require-full-coverage no   (on every node)"
        return warn("cluster-coverage", "cluster-require-full-coverage yes", why, fix)
    return ok("cluster-coverage", "a lost shard takes only its own keys along")


def nodes(cluster: ClusterFacts) -> Finding:
    """Every node is up, and can be reached from here."""
    down = [node.address for node in cluster.nodes if node.flags & {"fail", "fail?"}]
    down += [n.address for n in cluster.nodes if not n.is_linked and n.address not in down]
    if cluster.unreached:
        said = "; ".join(f"{address}: {why}" for address, why in cluster.unreached.items())
        why = "the client learns addresses from the cluster, and these lead nowhere from here"
        fix = "CONFIG SET cluster-announce-ip <address that clients can reach>   (on those nodes)"
        return fault("cluster-nodes", f"cannot be reached: {said}", why, fix)
    if down:
        why = "fewer nodes carry the load, and what they owned may be missing"
        fix = "start them again, or CLUSTER FORGET <id>   (on every node)"
        return warn("cluster-nodes", f"down: {', '.join(down)}", why, fix)
    return ok("cluster-nodes", f"{len(cluster.nodes)} nodes, all up")


def balance(cluster: ClusterFacts) -> Finding:
    """No shard has far more slots than the others."""
    counts = [node.slots for node in cluster.nodes if node.slots]
    if not counts:
        return info("cluster-balance", "no shard has slots")
    seen = f"{min(counts):,} to {max(counts):,} slots per shard"
    if max(counts) > _UNEVEN * sum(counts) / len(counts):
        why = "the fullest shard sets the time of every batch, and evicts while others have room"
        fix = "redis-cli --cluster rebalance HOST:PORT --cluster-use-empty-masters"
        return warn("cluster-balance", seen, why, fix)
    return ok("cluster-balance", seen)
