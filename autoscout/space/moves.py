"""Generates the neighbours of a configuration."""

from autoscout.space.compiled.diagram import Diagram


def neighbours(diagram: Diagram, codes: list[int]) -> list[list[int]]:
    """Returns all valid configurations one move away from a valid one, as codes by knob index without duplicates.

    A move changes one knob to a different value that the preceding knobs (in the diagram's order) allow. Each following
    knob keeps its value if it is still valid, and otherwise takes the nearest valid code. Once the path through the
    diagram returns to a state of the original path, all remaining knobs keep their values."""
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
