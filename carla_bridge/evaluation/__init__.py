"""Many routes, each in a process of its own, journaled: killed anywhere, it goes on and comes to the same results.

    request   what is evaluated, and what must be the same when it goes on
    attempts  a route given to a process, and what came back
    worker    that process
    pool      runs workers on this machine, and watches them
    cluster   does so on the nodes of a Ray cluster; `cluster_node` is what runs there
    installation  what must be the same on all of them
    evaluator what is left to do, the journal, retries
    final     the files made from a finished journal
"""
