"""Moves from one configuration to its neighbours."""

from autoscout.space.compiled.diagram import Diagram


def neighbours(diagram: Diagram, codes: list[int]) -> list[list[int]]:
    """Every one-knob move from a valid configuration (codes by knob index); all results are valid, no two are equal.

    One knob takes another value that the knobs before it (in the diagram's order) allow; the knobs after it keep theirs
    where that is valid, else take the nearest valid code. Once a walk is back on a state of the configuration's own
    path, everything after it stays.
    """
    order = diagram.order
    path = [0]
    for i, knob in enumerate(order):
        path.append(diagram.step(i, path[-1])[codes[knob]])
    found = []
    for i, knob in enumerate(order):
        mine = codes[knob]
        for code, to in diagram.step(i, path[i]).items():
            if code == mine:
                continue
            moved = codes.copy()
            moved[knob] = code
            state, j = to, i + 1
            while state != path[j]:
                steps = diagram.step(j, state)
                wanted = codes[order[j]]
                if wanted not in steps:
                    wanted = min(steps, key=lambda c, w=wanted: abs(c - w))
                    moved[order[j]] = wanted
                state = steps[wanted]
                j += 1
            found.append(moved)
    return found
