"""The towns that are shipped: plans with all their numbers.

Wamtown01 has narrow streets only and neither lights nor signs. Wamtown02 (to learn in) and Wamtown03 (to be tested in)
have the same kinds of places in other shapes: avenues with two lanes each way, lights, stop signs, junctions without
either, a fast road that a ramp merges into, parking lanes, bends.
"""

from __future__ import annotations

from carla_bridge.server.town_builder.plan import Edge, RoadPlan, TownPlan

WAMTOWN01 = TownPlan(
    name="Wamtown01",
    junctions={
        "a1": (120.0, 0.0),
        "a2": (260.0, 0.0),
        "a3": (400.0, 0.0),
        "b0": (0.0, 120.0),
        "b1": (120.0, 120.0),
        "b2": (260.0, 130.0),
        "b3": (400.0, 120.0),
        "b4": (530.0, 120.0),
        "c0": (0.0, 250.0),
        "c1": (120.0, 250.0),
        "c2": (262.0, 262.0),
        "c3": (400.0, 250.0),
        "c4": (530.0, 250.0),
        "d1": (120.0, 370.0),
        "d2": (270.0, 370.0),
        "d3": (400.0, 370.0),
    },
    roads=(
        RoadPlan("a1", "b0", ((0.0, 0.0, 40.0),)),
        RoadPlan("a1", "a2"),
        RoadPlan("a2", "a3"),
        RoadPlan("a3", "b4", ((530.0, 0.0, 60.0),), 50),
        # the southern bypass: a long, gentle S between two corners
        RoadPlan(
            "a1", "a3", ((120.0, -75.0, 45.0), (215.0, -75.0, 90.0), (305.0, -120.0, 90.0), (400.0, -120.0, 45.0)), 50
        ),
        RoadPlan("b0", "b1"),
        RoadPlan("b1", "b2", ((170.0, 120.0, 60.0), (210.0, 130.0, 60.0))),
        RoadPlan("b2", "b3"),
        RoadPlan("b3", "b4"),
        RoadPlan("a1", "b1"),
        RoadPlan("a2", "b2"),
        RoadPlan("a3", "b3"),
        RoadPlan("b0", "c0"),
        RoadPlan("b1", "c1"),
        RoadPlan("b2", "c2"),
        RoadPlan("b3", "c3", ((400.0, 155.0, 35.0), (420.0, 185.0, 35.0), (400.0, 215.0, 35.0))),
        # the eastern loop: out, back on a bulge, tight corners
        RoadPlan("b4", "c4", ((610.0, 120.0, 25.0), (600.0, 185.0, 60.0), (610.0, 250.0, 25.0))),
        RoadPlan("b4", "c4"),
        RoadPlan("c0", "c1"),
        RoadPlan("c1", "c2"),
        RoadPlan("c2", "c3", ((310.0, 268.0, 50.0), (350.0, 250.0, 50.0))),
        RoadPlan("c3", "c4"),
        RoadPlan("c0", "d1", ((0.0, 370.0, 30.0),)),
        RoadPlan("c1", "d1"),
        RoadPlan("c2", "d2"),
        RoadPlan("c3", "d3"),
        RoadPlan("d1", "d2", ((160.0, 370.0, 40.0), (195.0, 385.0, 60.0), (230.0, 370.0, 40.0))),
        RoadPlan("d2", "d3"),
        RoadPlan("d3", "c4", ((530.0, 370.0, 50.0),), 50),
    ),
)

WAMTOWN02 = TownPlan(
    name="Wamtown02",
    junctions={
        "a1": (110.0, 0.0),
        "a2": (262.5, 0.0),  # where the ramp merges
        "a3": (430.0, 0.0),
        "r3": (430.0, 75.0),  # where the ramp leaves
        "b0": (0.0, 150.0),
        "b1": (120.0, 150.0),
        "b2": (280.0, 150.0),
        "b3": (430.0, 150.0),
        "b4": (560.0, 150.0),
        "c1": (120.0, 290.0),
        "c2": (280.0, 285.0),
        "c3": (430.0, 300.0),
        "c4": (560.0, 290.0),
        "d2": (280.0, 420.0),
        "d3": (430.0, 420.0),
    },
    roads=(
        RoadPlan("a1", "a2", speed_kmh=60, lanes=2, edge=Edge.SHOULDER),
        RoadPlan("a2", "a3", speed_kmh=60, lanes=2, edge=Edge.SHOULDER),
        # down from the street, then along the fast road's westbound side at 15 degrees
        RoadPlan(
            "r3",
            "a2",
            ((370.0, 75.0, 40.0), (325.0, 20.0, 60.0)),
            50,
            one_way=True,
            edge=Edge.SHOULDER,
            end_at=(296.022, 12.235),
        ),
        RoadPlan("b0", "a1", ((0.0, 0.0, 50.0),), 50),
        RoadPlan("a3", "b4", ((430.0, -70.0, 40.0), (560.0, -70.0, 55.0)), 50),
        RoadPlan("a1", "b1", ((110.0, 60.0, 80.0), (120.0, 100.0, 80.0))),
        RoadPlan("a3", "r3"),
        RoadPlan("r3", "b3"),
        # the avenue
        RoadPlan("b0", "b1", speed_kmh=50, lanes=2),
        RoadPlan("b1", "b2", speed_kmh=50, lanes=2, parking=True),
        RoadPlan("b2", "b3", speed_kmh=50, lanes=2, parking=True),
        RoadPlan("b3", "b4", speed_kmh=50, lanes=2),
        RoadPlan("b2", "c2", speed_kmh=50, lanes=2),
        RoadPlan("b0", "c1", ((0.0, 290.0, 45.0),)),
        RoadPlan("b1", "c1", parking=True),
        RoadPlan("b3", "c3", ((430.0, 200.0, 30.0), (450.0, 228.0, 30.0), (430.0, 256.0, 30.0))),
        RoadPlan("b4", "c4", ((560.0, 190.0, 30.0), (585.0, 220.0, 30.0), (560.0, 250.0, 30.0))),
        RoadPlan("c1", "c2", parking=True),
        RoadPlan("c2", "c3", ((330.0, 285.0, 60.0), (380.0, 300.0, 60.0))),
        RoadPlan("c3", "c4"),
        RoadPlan("c1", "d2", ((120.0, 420.0, 35.0),)),
        RoadPlan("c2", "d2"),
        RoadPlan("c3", "d3"),
        RoadPlan("d2", "d3", ((320.0, 420.0, 50.0), (355.0, 438.0, 50.0), (390.0, 420.0, 50.0))),
        RoadPlan("d3", "c4", ((560.0, 420.0, 50.0),), 50),
    ),
    lights=("a3", "b1", "b2", "b3", "b4", "c2"),
    stop_signs=("a1", "b0", "c1", "c3", "d2"),
    yield_signs=("a2",),
    arm_lengths_m={"a2": 37.5},
)

WAMTOWN03 = TownPlan(
    name="Wamtown03",
    junctions={
        "e1": (140.0, -20.0),
        "e2": (300.0, -15.0),
        "e3": (450.0, -30.0),
        "f0": (0.0, 110.0),
        "f1": (130.0, 115.0),
        "f2": (285.0, 125.0),
        "f3": (440.0, 105.0),
        "f5": (600.0, 120.0),
        "g1": (150.0, 250.0),
        "g2": (290.0, 262.0),
        "g3": (500.0, 255.0),
        "g5": (600.0, 265.0),
        "s1": (150.0, 335.0),  # where the ramp leaves
        "h1": (150.0, 400.0),
        "h2": (330.0, 400.0),  # where the ramp merges
        "h3": (500.0, 400.0),
    },
    roads=(
        RoadPlan("h1", "h2", speed_kmh=70, lanes=2, edge=Edge.SHOULDER),
        RoadPlan("h2", "h3", speed_kmh=70, lanes=2, edge=Edge.SHOULDER),
        # up from the street, then along the fast road's eastbound side at 15 degrees
        RoadPlan(
            "s1",
            "h2",
            ((222.5, 335.0, 35.0), (267.5, 380.0, 70.0)),
            50,
            one_way=True,
            edge=Edge.SHOULDER,
            end_at=(296.478, 387.765),
        ),
        RoadPlan("f0", "h1", ((0.0, 450.0, 60.0), (150.0, 450.0, 25.0)), 50),
        RoadPlan("h3", "g5", ((600.0, 400.0, 60.0),), 50),
        RoadPlan("f0", "e1", ((0.0, -20.0, 35.0),)),
        RoadPlan("e3", "f5", ((600.0, -30.0, 50.0),), 50),
        # the avenue winds
        RoadPlan("f0", "f1", speed_kmh=50, lanes=2),
        RoadPlan("f1", "f2", ((185.0, 112.0, 120.0), (235.0, 128.0, 120.0)), 50, lanes=2, parking=True),
        RoadPlan("f2", "f3", speed_kmh=50, lanes=2),
        RoadPlan("f3", "f5", ((500.0, 100.0, 90.0), (545.0, 120.0, 90.0)), 50, lanes=2, parking=True),
        RoadPlan("f2", "g2", speed_kmh=50, lanes=2),
        RoadPlan("e1", "f1"),
        RoadPlan("e2", "f2", parking=True),
        RoadPlan("e3", "f3", ((470.0, 10.0, 35.0), (440.0, 50.0, 45.0))),
        RoadPlan("e1", "e2", ((190.0, -20.0, 28.0), (222.0, -45.0, 28.0), (255.0, -15.0, 28.0))),
        RoadPlan("e2", "e3", parking=True),
        RoadPlan("f1", "g1", ((130.0, 165.0, 60.0), (150.0, 205.0, 60.0))),
        RoadPlan("f3", "g3"),
        RoadPlan("f5", "g5"),
        RoadPlan("g1", "s1"),
        RoadPlan("s1", "h1"),
        RoadPlan("g1", "g2", ((185.0, 250.0, 40.0), (215.0, 272.0, 40.0), (250.0, 262.0, 60.0))),
        RoadPlan("g2", "g3", ((350.0, 262.0, 80.0), (410.0, 240.0, 80.0), (455.0, 255.0, 80.0)), parking=True),
        RoadPlan("g3", "g5"),
        RoadPlan("g3", "h3", parking=True),
    ),
    lights=("f1", "f2", "f3", "f5", "g3", "h3"),
    stop_signs=("e2", "f0", "g2", "g5", "h1"),
    yield_signs=("h2",),
    arm_lengths_m={"h2": 37.5},
)

TOWN_PLANS = {plan.name: plan for plan in (WAMTOWN01, WAMTOWN02, WAMTOWN03)}
