# ruff: noqa: E501 - a changed line break in the prose would change the tokenizer
"""The text the nano tokenizer is trained on: the planning prompts filled with plausible numbers, and driving prose.

The corpus is fixed by this file and a seed, so the same tokenizer comes out everywhere. The prose holds the words that
questions and answers about driving scenes use, so that such text costs few tokens too.
"""

from __future__ import annotations

import numpy as np

from wamdiff2_core.tasks.planning import BENCH2DRIVE, NAVSIM_PAPER, NAVSIM_UPSTREAM, NAVSIM_WORDS
from wamdiff2_core.tasks.text import format_number
from wamdiff2_core.types import NavCommand

PROSE = """\
You are the driver of this vehicle. Look at the image and answer the question in one sentence.
Is there a pedestrian ahead? Yes, a pedestrian is crossing the road in front of the vehicle. No, there is no pedestrian.
What is the colour of the traffic light? The traffic light is red. The traffic light is green. The traffic light is yellow.
There is no traffic light ahead. Is there a stop sign? The vehicle must stop at the stop line and wait.
How far away is the car in front? The car in front is about ten metres away and it is driving slower than the ego vehicle.
The lane is free. The lane is blocked by a construction site, a parked truck, an accident or an open door.
Why does the vehicle brake? It brakes because the leading vehicle stops, because the light is red, or because a cyclist crosses.
What should the ego vehicle do now? It should keep its lane, slow down, accelerate, stop, turn left, turn right, go straight.
Change to the left lane to overtake the obstacle, then return to the right lane. Give way to the emergency vehicle behind.
Yield to oncoming traffic at the junction, then merge into the flow on the highway. Follow the road at the speed limit.
Describe the objects in the scene: cars, trucks, buses, motorcycles, bicycles, pedestrians, cones, barriers, signs, buildings.
What is the object on the left, on the right, in the centre, near, far, behind, between the two cars? What is it doing?
The current speed is zero, the vehicle is standing. The current speed is low, high, constant, increasing, decreasing.
The weather is clear, cloudy, rainy, foggy; it is day, night, dusk. The road is dry, wet, straight, curved to the left.
Where is it? Locate every object of these categories and output the bounding boxes as JSON with bbox_2d and label.
[{"bbox_2d": [12, 34, 156, 178], "label": "car"}, {"bbox_2d": [201, 88, 240, 130], "label": "traffic light"}]
Front camera, front left camera, front right camera, back camera. The images are ordered from the left to the right.
Based on the visual cues from the image and the telemetry, predict the trajectory, the waypoints, the action and the speed.
The distance to the intersection is changing. The gap is too small. The way is clear. Is it safe to go? It is not safe.
Which vehicle will move next, and why? What will happen in the next seconds? How many vehicles are there? One, two, three.
"""
_PROSE_REPEATS = 20
_PROMPTS_PER_COMMAND = 60


def corpus() -> list[str]:
    """All training lines, in a fixed order."""
    rng = np.random.default_rng(0)

    def number(low: float, high: float) -> str:
        return format_number(rng.uniform(low, high), int(rng.integers(1, 3)))

    lines: list[str] = []
    for command in NavCommand:
        for _ in range(_PROMPTS_PER_COMMAND):
            bench2drive = BENCH2DRIVE.format(
                x1=number(2, 12), y1=number(-8, 8), x2=number(4, 24), y2=number(-20, 20),
                command=command.value, speed=number(0, 15),
            )
            motion = {
                "px": "0.00", "py": "0.00", "vx": number(0, 15), "vy": number(-1, 1), "ax": number(-3, 3),
                "ay": number(-2, 2), "navigation": NAVSIM_WORDS[command],
            }
            answer = ",".join(number(-5, 40) for _ in range(12))
            lines += [bench2drive, NAVSIM_PAPER.format(**motion), NAVSIM_UPSTREAM.format(**motion), answer]
    turns = "<|im_start|>system\nYou are a helpful assistant.\nuser\nassistant\n"
    return [*lines, *(PROSE.splitlines() + turns.splitlines()) * _PROSE_REPEATS]
