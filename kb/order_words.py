"""The orders that a running session takes, and what each means."""

MEANING: dict[str, str] = {
    "pause": "start no further experiment until `go`",
    "go": "go on after `pause`",
    "stop": "end the search; the finalists are still re-measured, so that there is a result",
    "budget": "profiles=N experiments of search instead of the job's",
    "profile": "believe the simulators no longer: profile everything from now on",
    "validate": "run the configuration next that the simulators predict to be best, and check them by it",
    "try": "run this configuration next; knobs not given follow the best so far",
    "retry": "the same, also if it was measured or failed before",
    "propose": "an idea for the search: it is tried as far as such ideas were right before (--why explains)",
    "hold": "try nothing more of what is proposed until `hear`",
    "hear": "listen to proposals again after `hold`",
    "pin": "only configurations with these knob values from now on",
    "exclude": "no configuration with one of these knob values from now on",
}
