"""Machine load: battery, load, heat and metered networks, read from folders like the kernel's."""

import os
from pathlib import Path

import pytest

from metaclaw.config import ScheduleConfig
from metaclaw.schedule.machine_load import MachineLoad, OthersLoad, is_on_battery, temperature_c


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


@pytest.mark.parametrize(
    ("supplies", "answer"),
    [
        ({}, None),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        (
            {
                "BAT0": {"type": "Battery", "status": "Charging"},
                "AC": {"type": "Mains", "online": "1"},
            },
            False,
        ),
        (
            {
                "BAT0": {"type": "Battery", "status": "Discharging"},
                "AC": {"type": "Mains", "online": "0"},
            },
            True,
        ),
        (
            {
                "BAT0": {"type": "Battery", "status": "Discharging"},
                "AC": {"type": "USB", "online": "1"},
            },
            False,
        ),
        ({"mouse": {"type": "Battery", "status": "Discharging", "scope": "Device"}}, None),
    ],
)
def test_a_battery_that_feeds_the_machine_is_noticed(
    tmp_path: Path, supplies: dict[str, dict[str, str]], answer: bool | None
) -> None:
    for name, files in supplies.items():
        put(tmp_path / "class" / "power_supply" / name, **files)
    assert is_on_battery(tmp_path) is answer


def test_the_hottest_sensor_counts_and_broken_ones_do_not(tmp_path: Path) -> None:
    assert temperature_c(tmp_path) is None
    for number, text in enumerate(["45000", "91000", "-273000", "255000", "rubbish"]):
        put(tmp_path / "class" / "thermal" / f"thermal_zone{number}", temp=text)
    put(tmp_path / "class" / "thermal" / "cooling_device0", temp="99000")
    assert temperature_c(tmp_path) == 91.0


def process(folder: Path, number: int, parent: int, ticks: int) -> None:
    put(
        folder / str(number),
        stat=f"{number} (a) b) S {parent} " + " ".join(["0"] * 9) + f" {ticks} 0 0",
    )


def test_load_is_what_others_use_without_ourselves_and_our_children(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    seconds = [100.0]
    load = OthersLoad(tmp_path, root=10, cores=2, clock=lambda: seconds[0])
    assert load.look() is None

    def at(busy_s: int, ours_s: int, child_s: int) -> None:
        put(tmp_path, stat=f"cpu {busy_s * ticks} 0 0 0 0 0 0 0 0 0\ncpu0 1 2 3")
        process(tmp_path, 10, 1, ours_s * ticks)
        process(tmp_path, 11, 10, child_s * ticks)
        process(tmp_path, 12, 1, 5)

    at(1000, 10, 20)
    assert load.look() is None
    seconds[0] += 10
    at(1020, 12, 27)  # twenty seconds of work, nine of them ours, on two cores for ten seconds
    assert load.look() == pytest.approx(11 / 20)


@pytest.mark.anyio
async def test_each_objection_can_be_switched_off_and_only_changes_are_told(tmp_path: Path) -> None:
    put(tmp_path / "class" / "power_supply" / "BAT0", type="Battery", status="Discharging")
    put(tmp_path / "class" / "thermal" / "thermal_zone0", temp="95000")
    heard: list[int] = []

    def built(limits: ScheduleConfig, *, trains_here: bool = True) -> MachineLoad:
        return MachineLoad(
            limits,
            trains_here=trains_here,
            hear=lambda: heard.append(1),
            system=tmp_path,
            processes=tmp_path / "none",
        )

    strict = built(ScheduleConfig())
    await strict.look()
    await strict.look()
    assert strict.objections == ("on battery", "the machine is hot")
    assert len(heard) == 1
    easy = built(ScheduleConfig(on_battery=True, max_temperature_c=0))
    await easy.look()
    assert easy.objections == ()
    elsewhere = built(ScheduleConfig(), trains_here=False)
    await elsewhere.look()
    assert elsewhere.objections == ()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "allowed", "objections"),
    [(True, False, 1), (True, True, 0), (False, False, 0), (None, False, 0)],
)
async def test_a_metered_network_matters_to_a_service_only(
    tmp_path: Path, answer: bool | None, allowed: bool, objections: int
) -> None:
    async def is_metered() -> bool | None:
        return answer

    limits = ScheduleConfig(on_metered=allowed)
    neighbours = MachineLoad(
        limits, trains_here=False, is_metered=is_metered, system=tmp_path, processes=tmp_path
    )
    await neighbours.look()
    assert len(neighbours.objections) == objections
    here = MachineLoad(ScheduleConfig(), is_metered=is_metered, system=tmp_path, processes=tmp_path)
    await here.look()
    assert here.objections == ()
