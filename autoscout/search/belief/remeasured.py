"""What another measurement of the configurations that were measured is expected to tell."""

import numpy as np

from autoscout.search.belief.surrogate import Surrogate


def worth(model: Surrogate) -> tuple[np.ndarray, np.ndarray]:
    """(n,) bent log-cost that another measurement of each measured row is expected to tell, and its standard
    deviation: the belief f and what is the row's own, a row that was measured c times with a cth of the noise. What
    failed when it was measured again or broke a constraint is worth nothing (inf)."""
    (own, added), n = model.unexplained(), len(model.rows)
    value, second = np.zeros(n), np.zeros(n)
    for member in model.active():
        assert member.belief is not None
        points, linear = member.belief.measured
        features = points[:n], linear[:n]
        k = member.posterior.kernel(features, features).astype(float)
        k.flat[:: len(k) + 1] += (own + added) / member.unit**2
        inverse = np.linalg.inv(k)
        here = model.bent(member.mean.bend) - added / member.unit * (inverse @ model.unexpected(member))
        variance = added - (added / member.unit) ** 2 * np.diag(inverse)
        here, deviation = member.shared(here, np.sqrt(np.maximum(variance, 0)))
        value += member.weight * here
        second += member.weight * (here**2 + deviation**2)
    deviation = np.sqrt(np.maximum(second - value**2, 0))
    return np.where(model.kept, value, np.inf), deviation
