"""What a user gets wrong on the command line: one sentence, the exit code, and at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.cli.main import main
from support.servers import free_port

# Every option that names a file to be written behind a measurement, before which it is tried.
WRITTEN = [
    ("bench client --store embedded", "--json"),
    ("bench client --store embedded", "--plot"),
    ("bench codec", "--json"),
    ("bench engines --model /", "--json"),
    ("bench engines --model /", "--plot"),
    ("bench memtier_benchmark", "--json"),
    ("bench redis-benchmark", "--json"),
    ("roi --gpu h100 --model llama-3.1-8b", "--plot"),
    ("roi --gpu h100 --model llama-3.1-8b", "--page"),
    ("trace replay trace.jsonl", "--plot"),
    ("trace replay trace.jsonl", "--csv"),
]


@pytest.mark.parametrize(("command", "option"), WRITTEN)
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, reason in ((tmp_path / "none/x.png", "there is no directory"), (tmp_path, "")):
        assert main([*command.split(), option, str(path)]) == 2
        said = capsys.readouterr().err
        assert f"Invalid value for '{option}'" in said
        assert reason in said


@pytest.mark.parametrize("command", [words for words, option in WRITTEN if option == "--plot"])
def test_a_drawing_of_a_kind_that_there_is_none_of_is_told(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after a minute, as a bug of ours."""
    assert main([*command.split(), "--plot", str(tmp_path / "x.foo")]) == 2
    assert "does not end in .png or .svg" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["memtier_benchmark", "redis-benchmark"])
def test_a_load_for_nobody_ends(name: str) -> None:
    """redis-benchmark itself tries for ever."""
    port = free_port()
    words = ["bench", name, "-h", "127.0.0.1", "-p", str(port), "-n", "10"]
    command = [sys.executable, "-m", "kvferry.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert f"kvferry: cannot connect to 127.0.0.1:{port}: Connection refused\n" in done.stderr


@pytest.mark.parametrize(
    "words", ["lab tokens --model m", "lab long-doc-qa --base-url foo", "roi --server foo"]
)
def test_a_url_that_is_none(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", "foo")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert main([*words.split(), *(["--model", "llama-3.1-8b"] if "roi" in words else [])]) == 2
    said = capsys.readouterr().err
    assert "http" in said
    assert "bug" not in said


@pytest.mark.parametrize("text", ["{}", "5", '[1, "2"]', "[1.5]", "[true]", "", '"12"', "[" * 9999])
def test_tokens_are_a_list_of_whole_numbers(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(text)
    assert main(["explain", "--tokens", str(file), "--url", "http://127.0.0.1:1"]) == 2
    assert "is no JSON list of token ids, such as [1, 2, 3]\n" in capsys.readouterr().err


def test_a_full_disk_is_said_in_words() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvferry.cli.main", "roi", "--list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (1, "kvferry: No space left on device\n")
