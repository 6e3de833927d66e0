"""Pairing of images with odometry and navigation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_ros.sync import Synchronizer

STAMPS = st.integers(0, 40)
ARRIVALS = st.lists(st.tuples(st.sampled_from(["image", "odometry", "navigation"]), STAMPS), max_size=60)


def run(synchronizer, arrivals):
    """Feed arrivals; each sample is its own stamp."""
    sets = []
    for name, stamp in arrivals:
        matched = synchronizer.add_image(stamp, stamp) if name == "image" else synchronizer.add(name, stamp, stamp)
        if matched is not None:
            sets.append((matched[0], matched[1]["odometry"], matched[1]["navigation"]))
    return sets


@given(ARRIVALS, st.integers(0, 5))
def test_a_set_never_exceeds_the_tolerance_and_uses_each_image_once(arrivals, tolerance):
    sets = run(Synchronizer(("odometry", "navigation"), tolerance), arrivals)
    for image, odometry, navigation in sets:
        assert abs(odometry - image) <= tolerance
        assert abs(navigation - image) <= tolerance
    assert len(sets) <= sum(name == "image" for name, _ in arrivals)


@given(st.lists(st.permutations(["image", "odometry", "navigation"]), min_size=1, max_size=20))
def test_equal_stamps_pair_in_every_order_of_arrival(orders):
    arrivals = [(name, stamp) for stamp, order in enumerate(orders) for name in order]
    synchronizer = Synchronizer(("odometry", "navigation"), 0)
    assert run(synchronizer, arrivals) == [(stamp,) * 3 for stamp in range(len(orders))]
    assert synchronizer.unpaired == 0


@given(st.lists(STAMPS, min_size=1, max_size=20), STAMPS)
def test_the_nearest_sample_at_hand_is_taken(stamps, image):
    arrivals = [("odometry", s) for s in stamps] + [("navigation", image), ("image", image)]
    sets = run(Synchronizer(("odometry", "navigation"), 100), arrivals)
    assert len(sets) == 1
    assert abs(sets[0][1] - image) == min(abs(s - image) for s in stamps)


def test_newer_image_replaces_the_waiting_one_and_counts_it():
    synchronizer = Synchronizer(("odometry", "navigation"), 0)
    assert run(synchronizer, [("image", 1), ("image", 2), ("odometry", 1), ("navigation", 1)]) == []
    assert synchronizer.unpaired == 1
    assert synchronizer.missing() == ["odometry", "navigation"]
    assert run(synchronizer, [("odometry", 2), ("navigation", 2)]) == [(2, 2, 2)]
    assert synchronizer.missing() == []


def test_samples_from_before_a_restart_of_time_are_forgotten():
    synchronizer = Synchronizer(("odometry", "navigation"), 3)
    run(synchronizer, [("odometry", 100), ("navigation", 100), ("image", 100)])
    assert run(synchronizer, [("image", 10), ("odometry", 11), ("navigation", 9)]) == [(10, 11, 9)]
    assert run(synchronizer, [("image", 99)]) == []
    assert synchronizer.missing() == ["odometry", "navigation"]
