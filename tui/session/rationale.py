"""The search's reasons, collected from journal events: beliefs, expected and achieved gains."""

import msgspec

from kb.journal import AnyEvent, Believed, Decided, Outlook, Rewarded

_PENDING = 16  # number of recent proposals that are searched for the one to which a reward belongs


class Promise(msgspec.Struct, kw_only=True):
    """A proposal of a bandit arm. `promised`, `delivered`: its expected and achieved gain over the configuration that
    was believed to be the best, as a share of the cost, at least 0; `delivered` is None before the result, and if the
    run `failed`."""

    step: int
    arm: str
    promised: float
    delivered: float | None = None
    failed: bool = False


class Reasons(msgspec.Struct, kw_only=True):
    believed: Believed | None = None
    outlooks: list[Outlook] = []
    promises: list[Promise] = []
    offered: dict[str, list[float]] = {}  # arm → expected gains of all its proposals, including those not run

    @property
    def recorded(self) -> bool:
        """Whether the journal has any of them."""
        return self.believed is not None or bool(self.outlooks or self.promises)

    def apply(self, event: AnyEvent) -> None:
        match event:
            case Believed():
                self.believed = event
            case Outlook():
                self.outlooks.append(event)
            case Decided(phase="search") if "predicted_gain" in event.values:
                self.promises.append(
                    Promise(step=event.step, arm=event.arm, promised=max(0.0, event.values["predicted_gain"]))
                )
                for name, gain in event.values.items():
                    if name.startswith("gain_"):
                        self.offered.setdefault(name.removeprefix("gain_"), []).append(gain)
            case Rewarded():
                self._deliver(event)
            case _:
                pass

    def _deliver(self, event: Rewarded) -> None:
        waiting = [p for p in self.promises[-_PENDING:] if p.delivered is None and not p.failed]
        promise = next((p for p in waiting if p.step == event.step), waiting[0] if waiting else None)
        if promise is None or len(event.costs) != 4:
            return
        base, got = event.costs[0], event.costs[3]
        if got is None:
            promise.failed = True
        elif base:
            promise.delivered = max(0.0, 1 - got / base)
