"""What a meter read of a node in a run, from logs as MLPerf's submissions have them."""

from pathlib import Path

import pytest

from tests.tools.published_power import Metered, served, trained


def test_watts_of_a_training_run_are_those_between_its_start_and_its_end(tmp_path: Path) -> None:
    log = '{"time_ms": %d, "key": "%s", "value": null}\n'
    told = '{"key": "tracked_stats", "value": {"throughput": %s}}\n{"value": {"validation_throughput": 99.0}}\n'
    (tmp_path / "result_3.txt").write_text(log % (1000, "run_start") + told % 4.0 + log % (5000, "run_stop"))
    (tmp_path / "power/result_3").mkdir(parents=True)
    reading = '{"time_ms": %d, "event_type": "POINT_IN_TIME", "key": "power_reading", "value": %.1f}\n'
    meter = '{"key": "conversion_eff", "value": 0.9}\n'
    meter += "".join(reading % each for each in ((500, 2000.0), (1500, 6000.0), (4500, 8000.0), (6000, 3000.0)))
    (tmp_path / "power/result_3/node_0.txt").write_text(meter)
    node, least, seconds = trained(tmp_path, {"gpu": "h100", "global_batch": 8})
    assert (node, least, seconds) == pytest.approx((6300, 1800, 2.0))


def test_a_meter_in_another_time_zone_is_read_at_the_hours_of_the_run(tmp_path: Path) -> None:
    line = "Time,07-17-2024 %s.000,Watts,%.1f,Volts,239.0\n"
    read = (("09:44:00", 2000.0), ("09:45:00", 5000.0), ("09:46:00", 7000.0), ("09:47:00", 2500.0))
    (tmp_path / "spl.txt").write_text("".join(line % each for each in read))
    said = '{"key": "power_%s", "value": "07-17-2024 %s.000"}\n'
    marks = said % ("begin", "01:44:30") + said % ("end", "01:46:30")
    (tmp_path / "mlperf_log_detail.txt").write_text(marks)
    meter = served(tmp_path, "h200")
    assert meter == pytest.approx((0.94 * 6000, 0.94 * 2000 - 8 * 75))
    assert Metered(6600, 1000).device == 700
