"""The picture of a space: well-formed, complete, nothing on top of anything else."""

import itertools
import xml.etree.ElementTree as ET

import pytest
from landscape import space_of

from autoscout.space.picture import svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", ["llama-3.2-3b", "llama-3.1-nemotron-nano-8b", "qwen3-30b-a3b", "llama-3-8b-serve"])
def test_every_knob_that_acts_has_a_box_of_its_own_inside_the_picture(name):
    space = space_of(name)
    root = ET.fromstring(svg(space, f"{name} <&>"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = {}
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        text = group.find(f"{SVG}text")
        assert rect is not None
        assert text is not None
        boxes[text.text] = {side: float(rect.attrib[side]) for side in ("x", "y", "width", "height", "rx")}
    acts = space.active()
    assert set(boxes) == {knob.name for knob in space.knobs if acts[knob.name] is not False}
    for a, b in itertools.combinations(boxes.values(), 2):
        assert abs(a["x"] - b["x"]) >= a["width"] or abs(a["y"] - b["y"]) >= a["height"]
    for knob, box in boxes.items():
        assert box["x"] + box["width"] < width
        assert box["y"] + box["height"] < height
        assert (box["rx"] > 10) == (space.knob[knob].kind == "dense")
    layers = {knob.layer: boxes[knob.name]["x"] for knob in space.knobs if knob.name in boxes}
    assert all(boxes[knob.name]["x"] == layers[knob.layer] for knob in space.knobs if knob.name in boxes)


def test_every_activation_between_them_is_an_arrow():
    space = space_of("llama-3.2-3b")
    root = ET.fromstring(svg(space, "t"))
    titles = {path.findtext(f"{SVG}title") for path in root.iter(f"{SVG}path") if path.attrib.get("marker-end")}
    assert "tp activates sp: tp > 1" in titles
    assert {t for t in titles if t and t.startswith("tp implies dp")}


def test_it_is_the_same_every_time():
    space = space_of("tiny-moe-cpu")
    assert svg(space, "t") == svg(space_of("tiny-moe-cpu"), "t")
