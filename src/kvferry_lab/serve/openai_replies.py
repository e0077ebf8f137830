"""Answers as OpenAI's API writes them: objects, chunks of a stream, errors."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvferry_lab.serve.asked import AskedCompletion

__all__ = ["DONE", "Reply", "error_body", "event"]

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def error_body(text: str, status: int, param: str | None, code: str | None) -> dict[str, Any]:
    """The body of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


@dataclass
class Reply:
    """The answer to one request, as far as it has come.

    Attributes:
        texts: Of each prompt.
        output_tokens: Of all of them.
        cached_tokens: Of their prompts.
    """

    asked: AskedCompletion
    texts: list[str] = field(init=False)
    output_tokens: int = 0
    cached_tokens: int = 0
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.texts = [""] * len(self.asked.prompts)

    def whole(self) -> dict[str, Any]:
        """All of it, in one object."""
        choices: list[dict[str, Any]] = []
        for index, text in enumerate(self.texts):
            if self.asked.chat:
                said: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
            else:
                said = {"text": text}
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": "length"})
        return {**self._head(choices, ""), "usage": self._usage()}

    def first(self) -> list[dict[str, Any]]:
        """What a stream begins with: in a chat, who speaks."""
        if not self.asked.chat:
            return []
        indexes = range(len(self.texts))
        return [self._chunk(i, {"role": "assistant", "content": ""}, None) for i in indexes]

    def piece(self, index: int, text: str, *, last: bool) -> dict[str, Any]:
        """A piece of the answer to one prompt."""
        reason = "length" if last else None
        return self._chunk(index, {"content": text} if self.asked.chat else text, reason)

    def usage(self) -> dict[str, Any]:
        """What a stream ends with where the usage was asked for."""
        return {**self._head([], ".chunk"), "usage": self._usage()}

    def _chunk(self, index: int, said: Any, reason: str | None) -> dict[str, Any]:
        name = "delta" if self.asked.chat else "text"
        choice = {"index": index, name: said, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self.asked.include_usage else {}
        return {**self._head([choice], ".chunk"), **usage}

    def _head(self, choices: Sequence[Any], kind: str) -> dict[str, Any]:
        chat = self.asked.chat
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self._id}",
            "object": f"chat.completion{kind}" if chat else "text_completion",
            "created": self._created,
            "model": self.asked.model,
            "choices": list(choices),
        }

    def _usage(self) -> dict[str, Any]:
        prompt = self.asked.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.output_tokens,
            "total_tokens": prompt + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
