"""Scores from result files, without a server.

    sources, route_sets          records from paths on a command line; the routes that are expected
    checks, problems             whether the records make up the set, and what is wrong with them
    bench2drive, figures         every figure of Bench2Drive, exact or between bounds; the form they are returned in
    abilities, efficiency        what the figures are made of
    comfort                      from the agents' own logs
    junction_rule, hop_graph     traffic signs on maps from files
    table, command               `wamdiff2 score`
"""
