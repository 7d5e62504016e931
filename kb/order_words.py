"""The orders that a running session accepts, and their meanings."""

MEANING: dict[str, str] = {
    "pause": "start no further experiment until `go`",
    "go": "continue after `pause`",
    "stop": "end the search; the finalists are still re-measured, so that there is a result",
    "budget": "set the search's budget to N experiments (profiles=N)",
    "profile": "stop trusting the simulators: measure everything from now on",
    "validate": "next, run the configuration that the simulators predict to be best, to check them",
    "try": "run this configuration next; omitted knobs are taken from the best so far",
    "retry": "like try, even if the configuration was measured or failed before",
    "propose": "suggest a configuration: tried if earlier suggestions did well (--why: your reason)",
    "hold": "try no further proposals until `hear`",
    "hear": "listen to proposals again after `hold`",
    "pin": "only configurations with these knob values from now on",
    "exclude": "no configuration with one of these knob values from now on",
}
