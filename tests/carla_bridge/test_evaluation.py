"""Evaluations: what counts, what is tried again, what a killed one goes on with, and what the final files say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.agents.choice import AgentChoice
from carla_bridge.agents.linked import Patience
from carla_bridge.client.server_process import ServerProcess
from carla_bridge.drive.driver import DriveConfig, Driver
from carla_bridge.drive.latency import LatencyMode
from carla_bridge.evaluation.attempts import PROGRESS_NAME, Attempt, Job, Kind, Refusal, Task
from carla_bridge.evaluation.evaluator import Evaluator
from carla_bridge.evaluation.final import write_final_files
from carla_bridge.evaluation.pool import START_LIMIT_S, TICK_LIMIT_S, Finished, LocalPool, _Running
from carla_bridge.evaluation.request import Evaluation, select_routes
from carla_bridge.evaluation.worker import attempt
from carla_bridge.leaderboard.record import RouteRecord, RouteStatus
from carla_bridge.leaderboard.results import LeaderboardResults
from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.leases import Lease, lease_ports
from carla_bridge.recording.results import DriveResults
from carla_bridge.report import write_report
from carla_bridge.routes.errors import RouteError
from carla_bridge.routes.route_file import load_routes
from tests.carla_bridge import kill_anywhere
from tests.carla_bridge.run_doubles import write_route
from tests.carla_bridge.test_closed_loop_results import ROUTE
from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError
from wamdiff2_core.processes import child_environment

pytestmark = pytest.mark.carla
REFUSAL = Refusal(field="--device", expected="one of this machine", got="cuda", fix="take another")


@pytest.fixture
def config(tmp_path):
    routes = tmp_path / "routes.xml"
    kill_anywhere.write_routes(routes, 3)
    return DriveConfig(routes=routes, agent=AgentChoice.parse("route-only"), out=tmp_path / "run", video=False)


def evaluation(config, **options):
    return Evaluation(config, tuple(load_routes(config.routes)), **options)


def driven(job: Job, completion: float = 100.0, number: int = 0) -> Attempt:
    failure = RouteStatus.BLOCKED
    record = RouteRecord.of_drive(job.route_id, completion, [], failure, repetition=job.repeat, town="Wamtown01")
    outcome = Outcome.COMPLETED if completion == 100.0 else Outcome.BLOCKED
    result = replace(ROUTE, route_id=job.route_id, repeat=job.repeat, outcome=outcome, completion_pct=completion,
                     record=record.to_json(0), infractions=())
    return Attempt(job.route_id, job.repeat, number, Kind.DRIVEN, "", job.repeat, "agent", result=result)


class ScriptedPool:
    """Attempts that end as a test says: each drive has a list of outcomes, the last of which repeats."""

    def __init__(self, script, workers=2):
        self.script, self.workers, self.started, self.hand = script, workers, [], {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hand.clear()

    def capacity(self):
        return self.workers

    def has_room(self):
        return len(self.hand) < self.workers

    def news(self):
        return []

    def start(self, job, task, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.started.append(job)
        self.hand[job] = folder

    def finished(self):
        over = []
        for job, folder in self.hand.items():
            left = self.script.get(job.route_id, [100.0])
            what = left.pop(0) if len(left) > 1 else left[0]
            refusal = REFUSAL if what is Kind.REFUSED else None
            over.append(Finished(driven(job, what) if isinstance(what, float) else Attempt(
                job.route_id, job.repeat, 0, what, f"it was {what}", 0, refusal=refusal), folder))
        self.hand = {}
        return over

    def running(self):
        return dict.fromkeys(self.hand, 0.0)


def lines(config):
    return [json.loads(line) for line in (config.out / "journal.jsonl").read_text().splitlines()]


def records(config, name="leaderboard.json"):
    return LeaderboardResults.load(config.out / name)


def test_spoilt_attempts_are_tried_again_and_never_count_as_driving(config):
    first, second, third = (spec.id for spec in load_routes(config.routes))
    pool = ScriptedPool({first: [Kind.INFRASTRUCTURE, Kind.INFRASTRUCTURE, 40.0], second: [Kind.INFRASTRUCTURE]})
    results = Evaluator(evaluation(config, retries=2), pool).run()
    assert [pool.started.count(Job(route, 0)) for route in (first, second, third)] == [3, 3, 1]
    assert [(route.route_id, route.completion_pct) for route in results.routes] == [(first, 40.0), (third, 100.0)]
    assert [(item.route_id, item.kind, item.attempts) for item in results.not_driven] == [
        (second, "infrastructure", 3)
    ]
    assert results.exit_code == ExitCode.INFRASTRUCTURE
    assert results.spread["driving_score"].mean == pytest.approx(70.0)
    file = records(config)
    assert [record.route_id for record in file.records] == [first, third]
    assert file.progress == (2, 3)
    assert {path.name for path in (config.out / "failed").iterdir()} == {
        f"{route}-{number}" for route, count in ((first, 2), (second, 3)) for number in range(1, count + 1)
    }
    assert [line["number"] for line in lines(config)[1:] if line["route_id"] == first] == [1, 2, 3]


def test_more_retries_take_up_what_had_run_out_of_them(config):
    second = load_routes(config.routes)[1].id
    Evaluator(evaluation(config, retries=0), ScriptedPool({second: [Kind.INFRASTRUCTURE]})).run()
    pool = ScriptedPool({})
    results = Evaluator(evaluation(config, retries=1), pool).run()
    assert pool.started == [Job(second, 0)]
    assert results.completed == 3
    assert results.exit_code == ExitCode.DONE


def test_a_torn_journal_is_gone_on_with_and_comes_to_the_same_files(config):
    jobs = evaluation(config, repeats=2).jobs
    script = {jobs[0].route_id: [50.0]}
    Evaluator(evaluation(config, repeats=2), ScriptedPool(dict(script))).run()
    names = ("leaderboard-r0.json", "leaderboard-r1.json", "results.json")
    whole = {name: (config.out / name).read_bytes() for name in names[:2]}
    spread = DriveResults.load(config.out).spread
    journal = config.out / "journal.jsonl"
    content = journal.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(content)):
        journal.write_bytes(b"".join(content[:kept]) + content[kept][: len(content[kept]) // 2])
        pool = ScriptedPool(dict(script))
        Evaluator(evaluation(config, repeats=2), pool).run()
        assert len(pool.started) == len(jobs) - (kept - 1)
        assert {name: (config.out / name).read_bytes() for name in names[:2]} == whole
        assert DriveResults.load(config.out).spread == spread


def test_repeats_have_their_own_seeds_files_and_a_spread(config):
    jobs = evaluation(config, repeats=2).jobs
    attempts = [driven(job, 100.0 if job.repeat == 0 else 70.0) for job in jobs]
    config.out.mkdir()
    results = write_final_files(evaluation(config, repeats=2), attempts)
    score = results.spread["driving_score"]
    assert (score.mean, score.least, score.most, score.repeats) == (85.0, 70.0, 100.0, 2)
    assert score.deviation == pytest.approx(15.0 * 2**0.5)
    assert score.interval == pytest.approx((85.0 - 12.7062 * 15.0, 85.0 + 12.7062 * 15.0), abs=1e-3)  # t of a table
    assert DriveResults.load(config.out).spread == results.spread
    words = "85.00 ± 21.21 (95 % interval of the mean -105.59 to 275.59, 2 repeats)"
    assert results.spread_in_words()[0] == ("driving score", words)
    assert [record.repetition for record in records(config, "leaderboard-r1.json").records] == [1, 1, 1]
    assert [Task.of(job, replace(config, seed=7)).seed for job in jobs] == [7, 7, 7, 8, 8, 8]
    assert jobs[3].name(2) == f"{jobs[3].route_id}-r1"


def test_a_spread_over_unequal_repeats_says_how_many_drives_are_missing(config):
    jobs = evaluation(config, repeats=3).jobs
    config.out.mkdir()
    results = write_final_files(evaluation(config, repeats=3), [driven(job) for job in jobs[1:6]])
    assert results.spread["success_rate_pct"].missing == 4
    assert results.spread_in_words()[1][1].endswith("% (95 % interval of the mean 100.00 to 100.00, 2 repeats, "
                                                    "4 drives missing)")
    alone = write_final_files(evaluation(config, repeats=3), [driven(jobs[0])])
    assert dict(alone.spread_in_words())["completion"] == "100.00 % (8 drives missing)"


def test_another_request_is_refused_by_the_name_of_what_differs_unless_it_may_overwrite(config):
    Evaluator(evaluation(config), ScriptedPool({})).run()
    other = evaluation(replace(config, seed=5))
    with pytest.raises(UserError, match=r"seed 0 \(now 5\)"):
        Evaluator(other, ScriptedPool({})).run()
    config.routes.write_text(config.routes.read_text() + "\n")
    with pytest.raises(UserError, match="routes_sha256"):
        Evaluator(evaluation(config), ScriptedPool({})).run()
    pool = ScriptedPool({})
    Evaluator(other, pool, overwrite=True).run()
    assert len(pool.started) == 3


@pytest.mark.parametrize("change", [{"vehicles": 3}, {"walkers": 2}, {"scenarios": False}, {"maps": "changed"}])
def test_traffic_and_the_towns_own_files_are_part_of_the_request(config, tmp_path, change):
    folder = tmp_path / "maps"
    folder.mkdir()
    (folder / "Wamtown01.xodr").write_text("one")
    config = replace(config, maps=folder)
    Evaluator(evaluation(config), ScriptedPool({})).run()
    if "maps" in change:
        (folder / "Wamtown01.xodr").write_text("another")
    else:
        config = replace(config, **change)
    with pytest.raises(UserError, match=next(iter(change))):
        Evaluator(evaluation(config), ScriptedPool({})).run()


def test_a_task_tells_a_worker_all_of_the_drive(config, tmp_path, nano_folder):
    (tmp_path / "Town.xodr").touch()
    config = replace(config, latency=LatencyMode.parse("150"), seed=4, patience=Patience(wait_s=2.0), maps=tmp_path,
                     vehicles=7, walkers=5, scenarios=False,
                     agent=AgentChoice.parse(str(nano_folder), "in-process", 80.5, "eager"))
    path = Task.of(Job("100", 1), config).save(tmp_path)
    assert Task.load(path).config(config.out) == replace(config, seed=5)


def test_the_embedded_server_of_a_drive_has_its_background_traffic(config, tmp_path):
    import carla

    with ServerProcess("Wamtown01", 0, tmp_path / "server.log", vehicles=3, walkers=2) as server:
        client = carla.Client(*server.wait())
        client.set_timeout(20.0)
        kinds = [actor.type_id.partition(".")[0] for actor in client.get_world().get_actors()
                 if actor.attributes.get("role_name") == "background"]
    assert sorted(kinds) == ["vehicle"] * 3 + ["walker"] * 2
    with pytest.raises(UserError, match="only the embedded server"):
        replace(config, carla="127.0.0.1:2000", walkers=1)


def test_an_agent_that_cannot_be_used_ends_the_evaluation_as_wrong_use(config):
    route = load_routes(config.routes)[0].id
    with pytest.raises(UserError, match=r"^--device: expected one of this machine, got cuda; take another$"):
        Evaluator(evaluation(config), ScriptedPool({route: [Kind.REFUSED]})).run()


def test_refused_attempts_use_up_no_retries(config):
    ids = [spec.id for spec in load_routes(config.routes)]
    for _ in range(3):
        with pytest.raises(UserError):
            Evaluator(evaluation(config, retries=1), ScriptedPool({ids[0]: [Kind.REFUSED]}, workers=1)).run()
    pool = ScriptedPool({ids[0]: [Kind.INFRASTRUCTURE, 100.0]}, workers=1)
    results = Evaluator(evaluation(config, retries=1), pool).run()
    assert [pool.started.count(Job(route, 0)) for route in ids] == [2, 1, 1]
    assert results.exit_code == ExitCode.DONE
    assert [line["number"] for line in lines(config)[1:] if line["route_id"] == ids[0]] == [1, 2, 3, 4, 5]


def test_other_code_is_refused(config, monkeypatch):
    Evaluator(evaluation(config), ScriptedPool({})).run()
    monkeypatch.setattr("carla_bridge.evaluation.request.code_hash", lambda: "edited")
    with pytest.raises(UserError, match=r"code '[0-9a-f]{12}' \(now 'edited'\)"):
        Evaluator(evaluation(config), ScriptedPool({})).run()


@pytest.mark.parametrize(("error", "kind"), [
    (RouteError("position 2", "a place on the road", "a field"), Kind.UNUSABLE),
    (UserError("embedded server", "arguments that it takes", 7, "give others"), Kind.REFUSED),
])
def test_what_is_wrong_with_one_route_makes_it_unusable_and_anything_else_is_refused_as_it_is(
    config, monkeypatch, error, kind
):
    def fail(*_):
        raise error

    monkeypatch.setattr("carla_bridge.evaluation.worker._drive", fail)
    done = Attempt.from_json(json.loads(json.dumps(attempt(Task.of(Job("100", 0), config), config.out).to_json())), "")
    assert (done.kind, done.reason) == (kind, str(error))
    assert (str(done.refusal.error()) if done.refusal else "") == (str(error) if kind is Kind.REFUSED else "")


def test_a_town_that_is_not_there_is_the_routes_own_fault(config, tmp_path):
    with pytest.raises(RouteError, match="town in --routes: expected the name of a town, got Town77"):
        Driver(config, "Town77").__enter__()


def test_infrastructure_that_never_works_ends_the_evaluation(config):
    ids = [spec.id for spec in load_routes(config.routes)]
    pool = ScriptedPool({route: [Kind.INFRASTRUCTURE] for route in ids})
    with pytest.raises(InfrastructureError, match="first 6 attempts all failed"):
        Evaluator(evaluation(config, retries=9), pool).run()
    assert len(lines(config)) == 1 + 6


def test_a_journal_without_a_result_is_refused_to_another_request_too(config):
    Evaluator(evaluation(config), ScriptedPool({})).run()
    journal = config.out / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    other = evaluation(replace(config, agent=AgentChoice.parse("none")))
    with pytest.raises(UserError, match=r"planner 'route-only' \(now 'none'\)"):
        Evaluator(other, ScriptedPool({})).run()
    assert Evaluator(evaluation(config), ScriptedPool({})).run().completed == 3
    assert Evaluator(other, ScriptedPool({}), overwrite=True).run().planner == "none"


def test_a_repeat_tells_of_finished_drives_whose_files_are_gone(config, capsys):
    Evaluator(evaluation(config), ScriptedPool({})).run()
    for spec in load_routes(config.routes)[1:]:
        write_route(config.out, 0, route_id=spec.id, town="Wamtown01", name=spec.id, ticks=20)
    capsys.readouterr()
    Evaluator(evaluation(config), ScriptedPool({})).run()
    assert "files of 1 finished drives are gone, such as routes/100:" in capsys.readouterr().out


def test_the_report_of_a_killed_evaluation_tells_how_to_go_on(config):
    Evaluator(evaluation(config), ScriptedPool({})).run()
    for name in ("results.json", "leaderboard.json"):
        (config.out / name).unlink()
    (config.out / "map.json").write_text("{}")
    with pytest.raises(UserError, match="killed, with 3 finished drives; the closed-loop command that began it"):
        write_report(config.out, video=False)


def test_the_last_line_has_figures_in_words(config, capsys):
    first = load_routes(config.routes)[0].id
    Evaluator(evaluation(config), ScriptedPool({first: [40.0]})).run()
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert "driving score 80.00, success rate 66.67 %, completion 80.00 %" in last


def test_a_folder_with_other_things_is_not_taken(config):
    config.out.mkdir()
    (config.out / "thesis.tex").write_text("all of it")
    with pytest.raises(UserError, match="an empty folder"):
        Evaluator(evaluation(config), ScriptedPool({})).run()


@pytest.mark.parametrize(("subset", "chosen"), [
    (None, "all"), ("101", ["101"]), ("100-101", ["100", "101"]), ("102,100", ["100", "102"]), ("100 - 102", "all"),
])
def test_subsets_are_ids_and_ranges_in_the_order_of_the_file(config, subset, chosen):
    specs = load_routes(config.routes)
    assert [spec.id for spec in specs] == ["100", "101", "102"]
    found = [spec.id for spec in select_routes(specs, subset)]
    assert found == (["100", "101", "102"] if chosen == "all" else chosen)


@pytest.mark.parametrize("subset", ["", " ", "7", "100-7", "102-100", "100,,101", "-"])
def test_subsets_that_are_not_there_are_refused(config, subset):
    with pytest.raises(UserError, match="routes-subset"):
        select_routes(load_routes(config.routes), subset)


def test_leases_are_exclusive_between_processes_and_end_with_a_killed_holder():
    code = ("from carla_bridge.leases import lease_ports; import sys, time\n"
            "print(lease_ports().number, flush=True); time.sleep(60)")
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                              env=child_environment({"PYTHONPATH": str(Path(__file__).parents[2])}))
    try:
        number = int(holder.stdout.readline())
        with pytest.raises(InfrastructureError, match="no free server-port"):
            Lease("server-port", [number], lambda port: True)
        with lease_ports() as mine:
            assert mine.number != number
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    Lease("server-port", [number], lambda port: True).close()


def test_a_worker_hangs_by_the_steady_clock_however_the_date_is_set(tmp_path, monkeypatch):
    clock = 100.0
    monkeypatch.setattr("carla_bridge.evaluation.pool.time.monotonic", lambda: clock)
    item = _Running(None, tmp_path, None, "", clock, clock)
    progress = tmp_path / PROGRESS_NAME
    clock += START_LIMIT_S - 1.0
    assert not LocalPool._hung(item)
    for date_s in (2e9, 1e9):
        progress.write_text("{}")
        os.utime(progress, (date_s, date_s))
        assert not LocalPool._hung(item)
        clock += TICK_LIMIT_S - 1.0
        assert not LocalPool._hung(item)
    clock += 2.0
    assert "no tick for 120 s" in LocalPool._hung(item)


@pytest.mark.slow
def test_kills_of_any_process_do_not_change_scores_or_trajectories(tmp_path, monkeypatch):
    """The whole proof is `kill_anywhere.py` with its defaults: 10 routes, 20 kills."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    said = kill_anywhere.compare(tmp_path, routes=2, kills=3, seed=2, planner="expert")
    assert said.startswith("3 kills")
