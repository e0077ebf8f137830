"""The hashes of a request: kvferry's own chain, and all that changes KV folded in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.chunks.keys import DIGEST_BYTES, chunk_hashes
from kvferry.integrations.vllm.connector.request_hashes import request_hashes, request_salt
from kvferry.integrations.vllm.lora_adapters import Adapters, LoadedAdapter, _Look
from kvferry.integrations.weights import fingerprint

SIZE = 8
TOKENS = [(7 * i * i + 3) % 50_000 for i in range(100)]


@dataclass
class Request:
    """What a request of vLLM's has, as far as hashes need it."""

    prompt_token_ids: list[int] | None = field(default_factory=lambda: list(TOKENS))
    prompt_embeds: Any = None
    cache_salt: str | None = None
    lora_request: Any = None
    mm_features: list[Any] = field(default_factory=list)
    resumable: bool = False


def image(identifier: str | None, offset: int, length: int, modality: str = "image") -> Any:
    place = SimpleNamespace(offset=offset, length=length)
    return SimpleNamespace(identifier=identifier, mm_position=place, modality=modality)


class Named(Adapters):
    """Adapters whose content is what their path says."""

    def of(self, lora: Any) -> LoadedAdapter:
        path = str(lora.lora_path)
        return LoadedAdapter(f"digest of {path}", path, 1, _Look("", ()), self, "")


def hashes_of(request: Request, tokens: list[int] | None = None) -> bytes:
    made = request_hashes(request, SIZE, adapters=Named())
    assert made is not None
    return made.of(TOKENS if tokens is None else tokens)


def shared_chunks(a: bytes, b: bytes) -> int:
    """How many leading chunks have equal hashes."""
    count = 0
    while count * DIGEST_BYTES < min(len(a), len(b)):
        part = slice(count * DIGEST_BYTES, (count + 1) * DIGEST_BYTES)
        if a[part] != b[part]:
            break
        count += 1
    return count


def lora(name: str, path: str) -> Any:
    return SimpleNamespace(lora_name=name, lora_path=path, lora_int_id=1)


def test_a_plain_request_has_the_chain_of_its_tokens() -> None:
    assert hashes_of(Request()) == b"".join(chunk_hashes(TOKENS, SIZE))


def test_tokens_that_come_later_are_hashed_alone_and_give_the_same() -> None:
    made = request_hashes(Request(), SIZE)
    assert made is not None
    grown: list[int] = []
    for token in TOKENS:
        grown.append(token)
        assert made.of(grown) == b"".join(chunk_hashes(grown, SIZE))


def test_only_full_chunks_of_the_tokens_that_count_have_hashes() -> None:
    made = request_hashes(Request(), SIZE)
    assert made is not None
    whole = made.of(TOKENS)
    assert made.of(TOKENS, 3 * SIZE - 1) == whole[: 2 * DIGEST_BYTES]
    assert made.of(TOKENS, SIZE - 1) == b""
    assert made.of(TOKENS, 10_000) == whole


@pytest.mark.parametrize(
    "changed",
    [
        Request(cache_salt="a"),
        Request(cache_salt="b"),
        Request(lora_request=lora("x", "/a")),
        Request(lora_request=lora("y", "/a")),
        Request(lora_request=lora("x", "/b")),
        Request(cache_salt="a", lora_request=lora("x", "/a")),
        Request(mm_features=[image("cat", 0, 4)]),
    ],
)
def test_what_changes_all_kv_leaves_no_chunk_shared(changed: Request) -> None:
    assert shared_chunks(hashes_of(changed), hashes_of(Request())) == 0
    assert hashes_of(changed) == hashes_of(changed)


def test_salts_cannot_imitate_each_other() -> None:
    salts = {
        request_salt(Request()),
        request_salt(Request(cache_salt="a")),
        request_salt(Request(cache_salt="a\0lora\0b")),
        request_salt(Request(cache_salt="a", lora_request=lora("b", "c")), "c"),
        request_salt(Request(lora_request=lora("ab", "c")), "c"),
        request_salt(Request(lora_request=lora("a", "bc")), "bc"),
    }
    assert len(salts) == 6


def test_an_adapter_whose_files_change_is_another_one() -> None:
    request = Request(lora_request=lora("x", "/a"))
    assert request_salt(request, "one") != request_salt(request, "two")


def test_an_adapter_is_known_by_its_files_and_not_by_where_they_lie(tmp_path: Any) -> None:
    salts = []
    for place, content in (("one", b"same"), ("two", b"same"), ("three", b"else")):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "adapter_config.json").write_bytes(b"{}")
        (folder / "adapter_model.safetensors").write_bytes(content)
        request = Request(lora_request=lora("x", str(folder)))
        salts.append(request_salt(request, fingerprint(str(folder))))
    assert salts[0] == salts[1] != salts[2]


def test_an_adapter_whose_files_cannot_be_read_is_not_cached_until_they_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name and path are no sign of what the engine has loaded."""
    folder = tmp_path / "adapter"
    request, adapters = Request(lora_request=lora("x", str(folder))), Adapters()
    assert request_hashes(request, SIZE, adapters=adapters) is None
    assert request_hashes(request, SIZE, adapters=adapters) is None
    assert caplog.text.count("its requests are not cached") == 1
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"now")
    made = request_hashes(request, SIZE, adapters=adapters)
    assert made is not None
    first = made.of(TOKENS)
    (folder / "adapter_model.safetensors").write_bytes(b"another one")
    assert request_hashes(request, SIZE, adapters=adapters) is None, (
        "the engine has the old one in its memory"
    )
    assert caplog.text.count("not those that were loaded: its requests are not cached") == 1
    request.lora_request.lora_int_id = 2  # loaded anew
    again = request_hashes(request, SIZE, adapters=adapters)
    assert again is not None
    assert shared_chunks(first, again.of(TOKENS)) == 0


def test_an_adapter_is_read_once_as_long_as_its_files_do_not_change(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"large")
    read: list[str] = []

    def counted(path: str) -> str:
        read.append(path)
        return fingerprint(path)

    adapters = Adapters(counted)
    for _ in range(3):
        request_hashes(Request(lora_request=lora("x", str(tmp_path))), SIZE, adapters=adapters)
    assert len(read) == 1


def test_text_before_an_image_is_shared_and_nothing_behind_it() -> None:
    plain = hashes_of(Request())
    cat = hashes_of(Request(mm_features=[image("cat", 20, 10)]))
    dog = hashes_of(Request(mm_features=[image("dog", 20, 10)]))
    assert shared_chunks(cat, plain) == shared_chunks(cat, dog) == 20 // SIZE


@pytest.mark.parametrize(
    "other",
    [
        image("cat", 21, 10),
        image("cat", 20, 11),
        image("cat", 20, 10, "video"),
        image("car", 20, 10),
    ],
)
def test_the_place_the_length_and_the_kind_of_an_input_count(other: Any) -> None:
    one = hashes_of(Request(mm_features=[image("cat", 20, 10)]))
    two = hashes_of(Request(mm_features=[other]))
    assert shared_chunks(one, two) == 20 // SIZE


def test_inputs_count_in_every_chunk_that_they_lie_in() -> None:
    long = image("film", 0, 64)
    one = hashes_of(Request(mm_features=[long, image("cat", 80, 2)]))
    two = hashes_of(Request(mm_features=[long, image("dog", 80, 2)]))
    assert shared_chunks(one, two) == 80 // SIZE
    swapped = hashes_of(Request(mm_features=[image("cat", 80, 2), long]))
    assert swapped == one  # the order in which they are named does not matter


def test_hashes_with_inputs_are_the_same_however_the_tokens_came() -> None:
    request = Request(mm_features=[image("cat", 20, 30), image("dog", 60, 9)])
    made = request_hashes(request, SIZE)
    assert made is not None
    for count in range(0, len(TOKENS), 5):
        made.of(TOKENS[:count])
    assert made.of(TOKENS) == hashes_of(request)


@pytest.mark.parametrize(
    "request_",
    [
        Request(prompt_embeds=object()),
        Request(prompt_token_ids=None),
        Request(prompt_token_ids=[]),
        Request(resumable=True),
        Request(mm_features=[image(None, 0, 4)]),
        Request(mm_features=[image("", 0, 4)]),
    ],
)
def test_requests_whose_kv_the_tokens_do_not_tell_are_not_cached(request_: Request) -> None:
    assert request_hashes(request_, SIZE) is None
