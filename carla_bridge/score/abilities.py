"""The five abilities of Bench2Drive: which scenario types count for which.

Types may count for two abilities, so the routes of the abilities add up to more than the routes driven. Source:
`ability_benchmark.py` of Bench2Drive 0.0.4, whose list for traffic signs names some types twice.
"""

from __future__ import annotations

from collections.abc import Mapping

TRAFFIC_SIGNS = "Traffic_Signs"

_JUNCTIONS = frozenset({
    "CrossingBicycleFlow", "EnterActorFlow", "NonSignalizedJunctionLeftTurn", "NonSignalizedJunctionLeftTurnEnterFlow",
    "NonSignalizedJunctionRightTurn", "SignalizedJunctionLeftTurn", "SignalizedJunctionLeftTurnEnterFlow",
    "SignalizedJunctionRightTurn",
})

ABILITIES: Mapping[str, frozenset[str]] = {
    "Overtaking": frozenset({
        "Accident", "AccidentTwoWays", "ConstructionObstacle", "ConstructionObstacleTwoWays", "HazardAtSideLane",
        "HazardAtSideLaneTwoWays", "ParkedObstacle", "ParkedObstacleTwoWays", "VehicleOpensDoorTwoWays",
    }),
    "Merging": _JUNCTIONS | {
        "HighwayCutIn", "HighwayExit", "InterurbanActorFlow", "InterurbanAdvancedActorFlow", "MergerIntoSlowTraffic",
        "MergerIntoSlowTrafficV2", "ParkingExit", "SequentialLaneChange",
    },
    "Emergency_Brake": frozenset({
        "BlockedIntersection", "ControlLoss", "DynamicObjectCrossing", "HardBreakRoute",
        "OppositeVehicleRunningRedLight", "OppositeVehicleTakingPriority", "ParkingCrossingPedestrian", "ParkingCutIn",
        "PedestrianCrossing", "StaticCutIn", "VehicleTurningRoute", "VehicleTurningRoutePedestrian",
    }),
    "Give_Way": frozenset({"InvadingTurn", "YieldToEmergencyVehicle"}),
    TRAFFIC_SIGNS: _JUNCTIONS | {
        "BlockedIntersection", "OppositeVehicleRunningRedLight", "OppositeVehicleTakingPriority", "PedestrianCrossing",
        "T_Junction", "VanillaNonSignalizedTurn", "VanillaNonSignalizedTurnEncounterStopsign",
        "VanillaSignalizedTurnEncounterGreenLight", "VanillaSignalizedTurnEncounterRedLight", "VehicleTurningRoute",
        "VehicleTurningRoutePedestrian",
    },
}
