"""All faults by name, in families: some need one nats-server, some need a cluster."""

from __future__ import annotations

from bench.chaos.broker_faults import BROKER_FAULTS
from bench.chaos.cluster_faults import CLUSTER_FAULTS
from bench.chaos.fault_class import FaultClass
from bench.chaos.role_faults import ROLE_FAULTS

FAULTS: dict[str, FaultClass] = ROLE_FAULTS | BROKER_FAULTS | CLUSTER_FAULTS


def faults_of(num_servers: int) -> dict[str, FaultClass]:
    """Those that can strike beside so many nats-servers."""
    return ROLE_FAULTS | (BROKER_FAULTS if num_servers == 1 else CLUSTER_FAULTS)
