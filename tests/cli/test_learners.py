"""What several processes of `torchrun` must not do."""

import pytest

from uirl.cli.main import main


@pytest.mark.parametrize("command", ["sweep", "evolve"])
def test_a_command_whose_runs_would_join_each_other_refuses_several_processes(command, tmp_path, monkeypatch, capsys):
    for key, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(tmp_path)
    assert main([command, "guess_number"]) == 2
    assert f"uirl {command}: got 2 processes" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
