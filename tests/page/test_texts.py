"""A text is looked up by the tokens that a real tokenizer makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvferry import _native
from kvferry.base.errors import ConfigError
from kvferry.sharing.controller.controller import Controller
from support.holdings import CHUNK, config
from support.page_cluster import page_cluster
from support.stamps import until
from support.views import ask

tokenizers = pytest.importorskip("tokenizers", reason="pip install tokenizers")
TEXT = "a cache may be slow to remember " * CHUNK


@pytest.fixture
def file(tmp_path: Path) -> Path:
    words = {word: number for number, word in enumerate(sorted({*TEXT.split(), "?"}))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_text_is_looked_up_and_explained_by_its_tokens(file: Path) -> None:
    ids = tokenizers.Tokenizer.from_file(str(file)).encode(TEXT).ids
    assert len(ids) == 7 * CHUNK
    with page_cluster(tokenizer_file=str(file)) as cluster:
        cluster.caches[0].add(_native.hash_chunks(ids, CHUNK)[: 5 * 16])

        def held() -> list[int]:
            status, found = ask(f"{cluster.url}/v1/lookup", "POST", {"text": TEXT})
            assert status == 200, found
            return [one["chunks"] for one in found["instances"]]

        until(lambda: held() == [5], 30.0)
        _, found = ask(f"{cluster.url}/v1/explain", "POST", {"text": TEXT, "identity": "tiny"})
        assert [bool(one["holders"]) for one in found["chunks"]] == [True] * 5 + [False] * 2
        both = {"text": TEXT, "tokens": [1]}
        assert ask(f"{cluster.url}/v1/lookup", "POST", both)[0] == 400


def test_without_a_tokenizer_a_text_is_answered_with_what_to_do() -> None:
    with page_cluster() as cluster:
        status, said = ask(f"{cluster.url}/v1/explain", "POST", {"text": TEXT})
        assert status == 400
        assert "--tokenizer-file" in said["error"]["text"]


def test_a_file_that_is_no_tokenizer_is_found_at_the_start(tmp_path: Path) -> None:
    wrong = tmp_path / "tokenizer.json"
    wrong.write_text("{}")
    with pytest.raises(ConfigError, match="is no tokenizer"):
        Controller(config(tokenizer_file=str(wrong)))
