"""What was measured alone promises, whatever simulators and past jobs predict: a simulator can explain well why most
configurations are slow, and be wrong about which of the fast ones is fastest."""

from autoscout.search.belief.surrogate import Surrogate


def look_unaided(model: Surrogate, pending: list[int]) -> None:
    """Sets the candidates' gain, mean and deviation (as Model.look) by the hypotheses without a prior mean, until the
    next update. Their beliefs stay until the next fit, extended by what is told: made anew they take longer than all
    else of a step."""
    weights = [member.weight for member in model.members]
    for member in model.members:
        alone = any(member is other for other in model.nothing)
        member.weight = 1 / len(model.nothing) if alone else 0.0
        if alone and member.belief is None:
            member.belief = model.belief_of(member, model.candidates)
    model.look(pending)
    for member, weight in zip(model.members, weights, strict=True):
        member.weight = weight
