"""What a request asks for, and the sentence where that cannot be had."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvferry.testing.transformer import BOS, VOCABULARY, encode

__all__ = ["AskedCompletion", "BadRequest", "asked_of", "text_of"]

# As OpenAI's completions; a model that knows no end needs some number in a chat as well.
_COMPLETION_TOKENS, _CHAT_TOKENS = 16, 64
_PROMPTS_MAX = 128
# Fields that would change the answer, and the values with which they do not.
_PLAIN: Mapping[str, Sequence[Any]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "logprobs": (None, False, 0),
    "prompt_logprobs": (None, 0),
    "suffix": (None, ""),
    "stop": (None, "", []),
    "stop_token_ids": (None, []),
    "tools": (None, []),
    "response_format": (None, {"type": "text"}),
}


class BadRequest(Exception):
    """What the body of an error of OpenAI says."""

    def __init__(
        self, text: str, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(text)
        self.param = param
        self.code = code
        self.status = status


@dataclass(frozen=True, kw_only=True)
class AskedCompletion:
    """One request; each prompt gets an answer of its own."""

    model: str
    chat: bool
    prompts: list[array[int]]
    new_tokens: int
    stream: bool
    include_usage: bool

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(map(len, self.prompts))


def asked_of(
    body: Mapping[str, Any], *, chat: bool, models: str, length_max: int
) -> AskedCompletion:
    """Read a body of /v1/completions or /v1/chat/completions.

    Sampling parameters are taken and have no effect: decoding is greedy.

    Args:
        body: As JSON.
        chat: Which of both.
        models: The name of the one model that is here.
        length_max: Of prompt and answer, in tokens.

    Raises:
        BadRequest: It cannot be answered.
    """
    model = body.get("model", models)
    if model != models:
        text = f"The model `{model}` does not exist; this server has `{models}`."
        raise BadRequest(text, "model", "model_not_found", 404)
    for name, plain in _PLAIN.items():
        if body.get(name) not in plain:
            raise BadRequest(f"This server does not support `{name}` other than its default.", name)
    prompts = [_chat(body.get("messages"))] if chat else _prompts(body.get("prompt"))
    default = _CHAT_TOKENS if chat else _COMPLETION_TOKENS
    name = "max_completion_tokens" if body.get("max_completion_tokens") else "max_tokens"
    new_tokens = body.get(name)
    new_tokens = default if new_tokens is None else new_tokens
    if not _is_whole(new_tokens) or new_tokens < 1:
        raise BadRequest(f"`{name}` must be a whole number from 1.", name)
    longest = max(map(len, prompts))
    if longest + new_tokens > length_max:
        text = (
            f"This model's maximum context length is {length_max} tokens. However, you requested "
            f"{longest + new_tokens} tokens ({longest} in the prompt, {new_tokens} in the answer)."
        )
        raise BadRequest(text, "messages" if chat else "prompt", "context_length_exceeded")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("`stream_options` must be an object.", "stream_options")
    stream = bool(body.get("stream"))
    if options and not stream:
        raise BadRequest("`stream_options` needs `stream`.", "stream_options")
    return AskedCompletion(
        model=models,
        chat=chat,
        prompts=prompts,
        new_tokens=new_tokens,
        stream=stream,
        include_usage=bool(options.get("include_usage")),
    )


def text_of(token: int) -> str:
    """One printable character for a token: a byte of Latin-1, or a picture of what has none."""
    if 0x20 <= token < 0x7F or (0xA1 <= token < 0x100 and token != 0xAD):
        return chr(token)
    return chr(0x2400 + token) if token < 0x20 else chr(0x2800 + token % 0x100)


def _prompts(given: Any) -> list[array[int]]:
    """A text, tokens, or a list of either."""
    if isinstance(given, str):
        return [array("I", encode(given))]
    if isinstance(given, list) and given and len(given) <= _PROMPTS_MAX:
        if all(isinstance(one, str) for one in given):
            return [array("I", encode(one)) for one in given]
        if all(isinstance(one, list) for one in given):
            return [_tokens(one) for one in given]
    if isinstance(given, list) and given and not isinstance(given[0], str | list):
        return [_tokens(given)]
    text = f"`prompt` must be a text, a list of tokens, or a list of up to {_PROMPTS_MAX} of them."
    raise BadRequest(text, "prompt")


def _tokens(given: list[Any]) -> array[int]:
    if not given or not all(_is_whole(token) and 0 <= token < VOCABULARY for token in given):
        text = f"Tokens are whole numbers from 0 to {VOCABULARY - 1} here: bytes, and {BOS} before."
        raise BadRequest(text, "prompt")
    return array("I", given)


def _chat(messages: Any) -> array[int]:
    """The messages of a chat as one prompt."""
    parts = []
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest("A message is an object with `role` and `content`.", "messages")
        parts.append(f"<|{message['role']}|>\n{_content(message.get('content'))}\n")
    if not parts:
        raise BadRequest("`messages` must be a list of at least one message.", "messages")
    return array("I", encode("".join([*parts, "<|assistant|>\n"])))


def _content(content: Any) -> str:
    """A text, or parts that are texts."""
    parts = content if isinstance(content, list) else [{"text": "" if content is None else content}]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest("The content of a message is text, or a list of texts.", "messages")
    return "".join(map(str, texts))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
