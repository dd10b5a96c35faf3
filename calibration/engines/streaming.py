"""An OpenAI-compatible server as its client sees it: streamed completions, and what it tells of itself."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from calibration.play import Served
from simulator.errors import InputError

_TIMEOUT_S = 600.0
_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Server:
    """One server. A connection a request, as most clients do. Times are those of ``time.perf_counter``."""

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        """Raises InputError unless ``url`` is http or https. ``key`` goes into the Authorization header."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--url {url}: expected a server such as http://host:8000")
        self.url = url
        self.model = model
        self._parts = parts
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def get(self, path: str) -> str | None:
        """The text there, None if there is no such thing. Raises InputError if the server does not answer."""
        return self._ask("GET", path)

    def post(self, path: str) -> bool:
        """Whether a call succeeded."""
        return self._ask("POST", path) is not None

    def complete(self, prompt: list[int], num_output_tokens: int) -> Served:
        """Stream a completion of token ids, greedy and without early end. Raises InputError if it is refused."""
        body = json.dumps(
            {
                "model": self.model, "prompt": prompt, "max_tokens": num_output_tokens, "temperature": 0,
                "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
            }
        )  # fmt: skip
        connection = self._connection()
        served = Served(len(prompt), num_output_tokens, begun_s=time.perf_counter(), submit_s=0.0)
        try:
            connection.request("POST", f"{self._parts.path.rstrip('/')}/v1/completions", body, self._headers)
            served.submit_s = time.perf_counter() - served.begun_s
            answer = connection.getresponse()
            if answer.status != 200:
                raise InputError(f"{self.url}: completion refused ({answer.status} {_short(answer.read())})")
            for event in _events(answer):
                _receive(served, event)
        except (OSError, http.client.HTTPException) as error:
            raise InputError(f"{self.url}: {type(error).__name__} while a completion was streamed ({error})") from None
        finally:
            connection.close()
        return served

    def metrics(self) -> dict[str, float]:
        """Every sample of ``/metrics`` by name, summed over its labels; empty where none are offered."""
        totals: dict[str, float] = {}
        for name, _, value in samples(self.get("/metrics") or ""):
            totals[name] = totals.get(name, 0.0) + value
        return totals

    def labels(self, name: str) -> dict[str, str]:
        """The labels of the first sample of that name."""
        return next((labels for found, labels, _ in samples(self.get("/metrics") or "") if found == name), {})

    def _ask(self, method: str, path: str) -> str | None:
        connection = self._connection()
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, headers=self._headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise InputError(f"{self.url}: no answer ({error})") from None
        finally:
            connection.close()
        return text if answer.status == 200 else None

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port, timeout=_TIMEOUT_S)


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of every line of the Prometheus text format."""
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found:
            yield found["name"], dict(_LABEL.findall(found["labels"] or "")), float(found["value"])


def _events(answer: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
    """The JSON of every server-sent event, up to ``[DONE]``."""
    for line in answer:
        data = line.strip().removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        if data.startswith(b"{"):
            event: dict[str, Any] = json.loads(data)
            if "error" in event:
                raise InputError(f"the server failed: {_short(data)}")
            yield event


def _receive(served: Served, event: Mapping[str, Any]) -> None:
    """One event: tokens (one an event where ids are not sent), the reason of the end, or the final usage."""
    now_s = time.perf_counter() - served.begun_s
    for choice in event.get("choices") or ():
        ids = choice.get("token_ids")
        num_new = len(ids) if ids is not None else int(bool(choice.get("text")))
        served.token_ids += ids or ()
        served.token_s += [now_s] * num_new
        served.finish_reason = choice.get("finish_reason") or served.finish_reason
    details = (event.get("usage") or {}).get("prompt_tokens_details")
    if details:
        served.num_cached_tokens = details.get("cached_tokens")


def _short(content: bytes) -> str:
    return " ".join(content.decode("utf-8", errors="replace").split())[:200]
