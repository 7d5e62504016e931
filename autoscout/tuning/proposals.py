"""Passes users' proposals to the strategy of a running session, which has an arm for them (search/proposed.py)."""

from typing import Any, cast

from autoscout.search.proposed import proposed_by
from autoscout.search.strategy import Kind, Listens, Proposed, Strategy
from autoscout.space.graph import Space
from autoscout.tuning.steer import Steering
from kb.journal import PROPOSED, Decided
from kb.orders import Order
from kb.records import Configuration

PROPOSING = ("propose", "hold", "hear")


class Proposals:
    def __init__(self, kind: Kind | None) -> None:
        """`kind`: the session's strategy; None for a session without a search."""
        self.heard = kind is not None and kind.listens
        self.deaf = ""
        if not self.heard and kind is not None:
            self.deaf = f"strategy '{kind.name}' takes no proposals; the order `try` runs a configuration next"
        self._given: list[Proposed] = []
        self._held = False

    def within(self, allowed: Space) -> dict[str, Any]:
        """The proposals as fields of a new `Search`, limited to the allowed space."""
        inside = [each for each in self._given if allowed.is_valid(each.configuration)]
        return {"proposed": inside, "held": self._held}

    def obey(self, order: Order, steering: Steering, best: Configuration, strategy: Strategy) -> None:
        if order.what == "propose":
            self.take(order, steering.wanted(order, best), strategy)
        else:
            self._held = order.what == "hold"
            cast(Listens, strategy).hold(self._held)

    def named(self, order: Order, steering: Steering, best: Configuration, step: int) -> Configuration:
        """The configuration that an order wants to run at once. Journals who proposed it,
        except in the replay of an older journal without that event."""
        wanted, tape = steering.wanted(order, best), steering.tape
        if self.heard and (not tape.replaying or tape.next_is_of(PROPOSED)):
            name, why = steering.space.name(wanted), proposed_by(order.by, order.why)
            tape.emit(Decided(step=step, phase="search", arm=PROPOSED, configurations=[wanted], names=[name], why=why))
        return wanted

    def take(self, order: Order, configuration: Configuration, strategy: Strategy) -> None:
        """Adds the configuration of an order as a proposal of the order's author."""
        if self.heard and order.what != "validate":
            self._given.append(Proposed(configuration=configuration, by=order.by, why=order.why))
            cast(Listens, strategy).propose(self._given[-1])
