"""The rendezvous of ranks on several hosts, and the environment variables that they inherit from us."""

import os
from collections.abc import Callable

from autoscout.running.node_agents import NodeAgent, wait_for

_ASK_S = 60.0
# Prefixes of the environment variables that ranks on other hosts get from us; they inherit all other variables from
# their host.
ALLOWED = (
    *("NCCL_", "GLOO_", "UCX_", "FI_", "OMP_", "MKL_", "KMP_", "TORCH", "PYTORCH_", "CUDA_DEVICE_", "NVTE_", "HF_"),
    *("TRITON_", "PYTHONPATH", "LD_LIBRARY_PATH"),
)


def allowed() -> dict[str, str]:
    """Our environment variables that ranks on other hosts also get."""
    return {name: value for name, value in os.environ.items() if name.startswith(ALLOWED)}


def met(agents: list[NodeAgent], known: dict[tuple[str, ...], str], stopping: Callable[[], bool]) -> tuple[str, int]:
    """An address of the first host that all other hosts can reach, and a free port of that host; ("", 0) if there is
    none, in which case one of the hosts that cannot reach the first is marked as lost. `known`: cache, by the names of
    all hosts."""
    first, others = agents[0], agents[1:]
    key = tuple(agent.host for agent in agents)
    if key not in known:
        first.say({"meet": True})
        meet = wait_for([first], "meet", _ASK_S, stopping).get(first.host)
        if meet is None:
            return "", 0
        for agent in others:
            agent.say({"reach": meet})
        reached = wait_for(others, "reach", _ASK_S, stopping)
        common = [a for a in meet["addresses"] if all(a in found for found in reached.values())]
        if not common or len(reached) < len(others):
            silent = next((agent for agent in others if not reached.get(agent.host)), None)
            if silent is None:
                ways = "; ".join(f"{agent.host} by {', '.join(reached[agent.host])}" for agent in others)
                others[-1].lost = (
                    f"{others[-1].host}: no address of {first.host} can be reached from all hosts ({ways}); name "
                    "the hosts by their addresses in a network that all share"
                )
            elif not silent.lost:
                tried = ", ".join(meet["addresses"])
                silent.lost = (
                    f"{silent.host}: the host cannot reach any address of {first.host} ({tried}); open all ports "
                    "between the two, or name the hosts by their addresses in a network that all share"
                )
            return "", 0
        known[key] = common[0]
    first.say({"port": True})
    port = wait_for([first], "port", _ASK_S, stopping).get(first.host)
    return known[key], int(port or 0)
