"""The commands of docs/guides/lab.md run, in a small size: options that come last win."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from kvferry.cli.main import main
from support.serve_demo import DemoServer

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "lab.md"
# What it takes of a model's config.json: 1 KiB of KV a token.
MODEL = {
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "torch_dtype": "bfloat16",
}
SMALL = {
    "long-doc-qa": ["--num-documents", "2", "--document-length", "300", "--output-len", "2"],
    "tokens": [
        *("--max-num-completed-requests", "2", "--mean-output-tokens", "4"),
        *("--stddev-output-tokens", "1"),
    ],
}


def commands() -> list[list[str]]:
    """Everything behind a "$ ", as words."""
    text = GUIDE.read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE)]


def test_the_commands_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shape = tmp_path / "config.json"
    shape.write_text(json.dumps(MODEL))
    (first, curl, *others) = commands()
    assert first[:2] == ["kvferry", "serve-demo"]
    files = {"llama-3.1-8b": str(shape), "kvferry.yaml": str(tmp_path / "kvferry.yaml")}
    words = [files.get(word, word) for word in first[2:]]
    with DemoServer(tmp_path, *words, config={}) as server:
        assert "KV of 1024 bytes a token" in server.log
        if shutil.which("curl"):
            asked = [word.replace("localhost:8000", server.url) for word in curl]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=200)
            assert len(json.loads(done.stdout)["choices"][0]["text"]) == 8
        ran = []
        for command in others:
            if command[0] == "export":
                for pair in command[1:]:
                    name, _, value = pair.partition("=")
                    monkeypatch.setenv(name, value.replace("http://localhost:8000", server.url))
                continue
            more = SMALL[command[2]]
            if command[2] == "long-doc-qa":
                more = [*more, "--base-url", f"{server.url}/v1"]
            assert main([*command[1:], *more]) == 0
            ran.append(command[2])
        assert ran == ["long-doc-qa", "long-doc-qa", "tokens"]
        assert len(list(tmp_path.glob("result/kvferry-demo_550_4_*.json"))) == 2
