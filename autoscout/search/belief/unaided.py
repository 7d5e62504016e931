"""What was measured alone promises, whatever simulators and past jobs predict: a simulator can explain well why most
configurations are slow, and be wrong about which of the fast ones is fastest."""

from autoscout.search.belief.surrogate import Model


def look_unaided(model: Model, pending: list[int]) -> None:
    """Sets the candidates' gain, mean and deviation (as Model.look) by the hypotheses without a prior mean, until the
    next update."""
    before = [(member.weight, member.belief) for member in model.members]
    for member in model.members:
        alone = any(member is other for other in model.nothing)
        member.weight = 1 / len(model.nothing) if alone else 0.0
        member.belief = model._belief(member, model.candidates) if alone else None
    model.look(pending)
    for member, (weight, belief) in zip(model.members, before, strict=True):
        member.weight, member.belief = weight, belief
