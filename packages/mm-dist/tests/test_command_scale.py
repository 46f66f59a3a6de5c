"""``mm-dist scale`` as a command."""

import json
from dataclasses import fields

import pytest

from mm_dist._command import main
from mm_dist._command._scale import format_seconds
from mm_dist._command._scale_arguments import read_ranks
from mm_dist._scale import Constants, Job, estimate, find_limits
from mm_dist._scale._formulas import FORMULAS


def test_tables_have_a_row_for_each_number_of_ranks_and_each_limit(capsys):
    assert main(["scale"]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    title, start, saving, limits = printed.out.rstrip().split("\n\n")
    assert title.startswith("7e+09 parameters with nccl, 8 ranks per machine, timeout 600 s")
    assert "nothing was started" in title
    ranks = [str(8 << shift) for shift in range(11)]
    for table, header in ((start, "objects"), (saving, "in parts")):
        rows = table.splitlines()
        assert header in rows[0]
        assert [row.split()[0] for row in rows[1:]] == ranks
    for limit in find_limits(Job(), Constants()):
        assert f"{limit.first or 'above 1048576'}" in limits
        assert f"{limit.then}: {limit.answer}" in limits


def test_json_has_every_number_and_its_origin(capsys, tmp_path):
    path = tmp_path / "scale.json"
    arguments = ["scale", "--ranks=2,6", "--backend=gloo", "--ranks-per-node=2", f"--json={path}"]
    assert (
        main([*arguments, "--parameters=1e9", "--round_trip=0.5", "--async-save", "--lazy_gloo"])
        == 0
    )
    assert "1e+09 parameters with gloo" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert found["job"]["timeout"] == 1800
    assert found["job"]["is_saving_behind"]
    assert found["job"]["is_gloo_lazy"]
    assert [each["ranks"] for each in found["estimates"]] == [2, 6]
    assert found["estimates"][1]["nodes"] == 3
    assert found["constants"]["round_trip"]["value"] == 0.5
    assert found["constants"]["round_trip"]["origin"] == "given"
    assert set(found["constants"]) == {each.name for each in fields(Constants)}
    startup = found["estimates"][1]["startup"]
    parts = sum(startup[name] for name in ("imports", "store", "group", "objects"))
    assert startup["total"] == pytest.approx(parts)
    assert {"what", "first", "then", "answer"} == set(found["limits"][0])


def test_json_alone_is_nothing_but_json(capsys):
    assert main(["scale", "--ranks=8", "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["estimates"]
    assert only["all_reduce"] == estimate(Job(), 8, Constants()).all_reduce


def test_explain_shows_formulas_and_constants(capsys):
    assert main(["scale", "--ranks=8", "--explain", "--open-files=65536"]) == 0
    printed = capsys.readouterr().out
    for each in FORMULAS:
        assert f"{each.what}: {each.formula}\n    {each.source}" in printed
    lines = {line.split()[0]: line for line in printed.splitlines() if line[:1].isalpha()}
    for each in fields(Constants):
        assert ("given" in lines[each.name]) == (each.name == "open_files")


def test_local_environment_leaves_the_storage_out(capsys):
    assert main(["scale", "--ranks=8192", "--json"]) == 0
    shared = json.loads(capsys.readouterr().out)
    assert main(["scale", "--ranks=8192", "--local-environment", "--json"]) == 0
    local = json.loads(capsys.readouterr().out)
    first, second = (each["estimates"][0]["startup"]["imports"] for each in (shared, local))
    assert second == Constants().import_seconds < first


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8:64", [8, 16, 32, 64]),
        ("8:100", [8, 16, 32, 64, 100]),
        ("5:5", [5]),
        ("3:12", [3, 6, 12]),
        ("8", [8]),
        ("512,8, 9", [512, 8, 9]),
    ],
)
def test_ranks_are_doubled_or_listed(text, numbers):
    assert read_ranks(text) == numbers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks=0:8"], "--ranks=0:8 is no number of ranks; write FROM:TO"),
        (["--ranks=8:"], "--ranks=8: is no number"),
        (["--ranks="], "--ranks= is no number"),
        (["--ranks=eight"], "--ranks=eight is no number"),
        (["--ranks=1:2:3"], "--ranks=1:2:3 is no number"),
        (["--ranks=-8"], "--ranks=-8 is no number"),
        (["--ranks=64:8"], "write --ranks=8:64"),
        (["--parameters=0"], "--parameters=0 must be a number above 0"),
        (["--parameters=1e308"], "--parameters=1e+308 is no number of this world"),
        (["--rank-mtbf=1e-320"], "is no number of this world; give one between 1e-30"),
        (["--parameters=nan"], "--parameters=nan must be a number above 0"),
        (["--timeout=-1"], "--timeout=-1 must be"),
        (["--ranks-per-node=0"], "--ranks-per-node=0 must be"),
        (["--network-bandwidth=inf"], "--network-bandwidth=inf must be"),
        (["--store-exchange=-1e-6"], "--store-exchange=-1e-06 must be"),
        (["--json=nowhere/file.json"], "there is no folder nowhere"),
    ],
)
def test_bad_usage_is_explained(arguments, message, capsys):
    assert main(["scale", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out


@pytest.mark.parametrize("arguments", [["--backend=mpi"], ["--parameters=many"], ["--link=1"]])
def test_argparse_refuses_the_rest(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["scale", *arguments])
    assert caught.value.code == 2
    assert arguments[0].partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (3.36e-4, "336 us"),
        (0.0021, "2.1 ms"),
        (1.0, "1 s"),
        (119.4, "119 s"),
        (120.0, "2 min"),
        (7199.0, "120 min"),
        (7200.0, "2 h"),
        (48 * 3600.0, "2 d"),
        (1.824e8, "2.11e+03 d"),
    ],
)
def test_times_have_the_unit_that_suits_them(seconds, text):
    assert format_seconds(seconds) == text
