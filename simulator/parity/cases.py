"""Random cases for the comparison with vLLM. The case format is in this package's ``__init__``.

A case is a small engine under stress and the requests it gets: a forest of shared prefixes, answers quoted by later
turns, exact resends, bursts and gaps, pools just above one request's need. Families differ in what they stress:

basic        roomy pools; chunking, budgets, queue limits, hits, salts, adapters, aborts, resets
pressure     pools just above the longest request: preemption, eviction, hits on resumption
priority     the same under the priority policy, with ties
async        two batches in flight, with and without pressure or priority
speculation  drafts of every method, synchronous and asynchronous
edge         everything at once under heavy pressure: output in flight at preemption, victims ahead of the scan point

``large`` cases of a family have 500 requests and realistic sizes, for comparing speed.

A case follows from (family, seed, dialect, size) alone. The two dialects of a seed are the same case but for the
options which 0.23 lacks and the combinations in which it hangs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

FAMILIES = ("basic", "pressure", "priority", "async", "speculation", "edge")
DIALECTS = ("0.32", "0.23")
SIZES = ("small", "large")
FORMAT = "kvcast-case-1"

Case = dict[str, Any]
Runs = list[list[int | None]]


def generate_cases(
    family: str, num_cases: int, first_seed: int = 0, dialect: str = "0.32", size: str = "small"
) -> Iterator[Case]:
    """The cases of consecutive seeds."""
    for seed in range(first_seed, first_seed + num_cases):
        yield generate_case(family, seed, dialect, size)


def generate_case(family: str, seed: int, dialect: str = "0.32", size: str = "small") -> Case:
    """The case of a family and seed. Raises ValueError for an unknown family, dialect or size."""
    for word, known in ((family, FAMILIES), (dialect, DIALECTS), (size, SIZES)):
        if word not in known:
            raise ValueError(f"{word!r} is none of {', '.join(known)}")
    rng = random.Random(f"{family}/{seed}/{size}")  # noqa: S311 - nothing secret
    engine = _large_engine(rng, family) if size == "large" else _engine(rng, family)
    _restrict(engine, dialect)
    requests = _Workload(rng, family, engine, size).requests()
    return {
        "format": FORMAT,
        "family": family,
        "seed": seed,
        "dialect": dialect,
        "engine": engine,
        "requests": requests,
        "actions": _actions(rng, requests, engine, family, dialect),
    }


def _chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


def _engine(rng: random.Random, family: str) -> Case:
    block_size = rng.choice([2, 4, 4, 8, 8, 16])
    max_model_len = block_size * rng.randint(6, 20) + rng.randint(0, block_size - 1)
    need = -(-max_model_len // block_size)
    spare = {"basic": rng.randint(need // 2, 3 * need), "edge": rng.randint(0, need // 2)}.get(family)
    if spare is None:
        spare = rng.choice([rng.randint(0, need // 2), rng.randint(0, need), rng.randint(need, 2 * need)])
    max_num_seqs = rng.randint(2, 12)
    budget = rng.choice([rng.randint(block_size, 4 * block_size), max_model_len // 2, 2 * max_model_len])
    engine: Case = {
        "block_size": block_size,
        "num_gpu_blocks": 1 + need + spare,
        "max_model_len": max_model_len,
        "max_num_batched_tokens": max(budget, max_num_seqs),
        "max_num_seqs": max_num_seqs,
        "max_num_active_seqs": rng.randint(1, max_num_seqs) if _chance(rng, 0.15) else None,
        "long_prefill_token_threshold": rng.randint(block_size, max_model_len // 2) if _chance(rng, 0.25) else 0,
        "long_prefill_token_threshold_adaptive": _chance(rng, 0.4),
        "enable_chunked_prefill": _chance(rng, 0.85),
        "scheduler_reserve_full_isl": _chance(rng, 0.85),
        "watermark": rng.choice([0.02, 0.1, 0.3, 0.5]) if _chance(rng, 0.2) else 0.0,
        "enable_prefix_caching": _chance(rng, 0.95),
        "policy": _policy(rng, family),
        "async_scheduling": _chance(rng, {"async": 1.0, "speculation": 0.4, "edge": 0.7}.get(family, 0.0)),
        "max_loras": rng.randint(1, 3) if _chance(rng, 0.2) else 0,
        "speculative": None,
    }
    _speculate(rng, family, engine)
    if not engine["enable_chunked_prefill"]:
        # A prompt must fit the budget of one step, which a draft model lowers by a slot a request (0.23) or one (0.32).
        least = max_model_len + max_num_seqs
        engine["max_num_batched_tokens"] = max(engine["max_num_batched_tokens"], least)
    return engine


def _policy(rng: random.Random, family: str) -> str:
    probability = {"priority": 1.0, "edge": 0.7, "async": 0.3, "speculation": 0.2}.get(family, 0.0)
    return "priority" if _chance(rng, probability) else "fcfs"


def _speculate(rng: random.Random, family: str, engine: Case) -> None:
    """Add drafts to some engines, with room for them."""
    wanted = _chance(rng, {"speculation": 1.0, "edge": 0.3, "async": 0.15}.get(family, 0.0))
    method = rng.choice(["eagle", "eagle", "mtp", "draft_model", "ngram"])
    num_drafts = rng.randint(1, 5)
    if not wanted:
        return
    engine["speculative"] = {"method": method, "num_speculative_tokens": num_drafts}
    if method == "ngram" and family == "async":
        engine["speculative"]["method"] = "mtp"
    elif method == "ngram":
        engine["async_scheduling"] = False  # drafts come from the host, so vLLM switches it off
    # A padded admission needs 1 + K tokens at once, or it waits forever; a draft model takes one more slot a request.
    least = 1 + num_drafts + engine["max_num_seqs"]
    engine["max_num_batched_tokens"] = max(engine["max_num_batched_tokens"], least)
    # vLLM's own defect: a threshold below a padded admission trips an assertion.
    if engine["long_prefill_token_threshold"]:
        engine["long_prefill_token_threshold"] = max(engine["long_prefill_token_threshold"], num_drafts + 1)


def _large_engine(rng: random.Random, family: str) -> Case:
    engine = _engine(rng, family)
    pressed = family != "basic"
    engine.update(
        block_size=16,
        max_model_len=4096,
        num_gpu_blocks=rng.randint(600, 2500) if pressed else 20_000,
        max_num_batched_tokens=rng.choice([2048, 8192]),
        max_num_seqs=rng.choice([64, 128, 256]),
        max_num_active_seqs=None,
        long_prefill_token_threshold=0,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        scheduler_reserve_full_isl=True,
        watermark=0.0,
        max_loras=0,
    )
    return engine


def _restrict(engine: Case, dialect: str) -> None:
    if not engine["long_prefill_token_threshold"]:
        engine["long_prefill_token_threshold_adaptive"] = False
    if dialect == "0.23":
        engine.update(watermark=0.0, max_num_active_seqs=None, long_prefill_token_threshold_adaptive=False)


class _Workload:
    """The requests of a case, one after another; what was sent before shapes what follows."""

    def __init__(self, rng: random.Random, family: str, engine: Case, size: str) -> None:
        self.rng = rng
        self.engine = engine
        self.large = size == "large"
        self.pressed = family != "basic" and _chance(rng, 0.8)
        self.num_segments = 0
        self.sent: list[Case] = []
        self.longest_prompt = 1500 if self.large else max(2, engine["max_model_len"] - engine["block_size"])
        self.nodes: list[Runs] = [[]]
        self.nodes += [[self._new_run(self._length(0.4))] for _ in range(rng.randint(1, 4))]
        self.burst = rng.choice([0.2, 0.5, 0.8])
        self.gap = rng.choice([1.5, 4.0, 10.0]) / (10 if self.large else 1)
        self.tie = _chance(rng, 0.3)
        self.num_priorities = rng.choice([1, 2, 3, 5])
        self.num_adapters = rng.randint(1, engine["max_loras"] + 2) if engine["max_loras"] else 0
        if engine["async_scheduling"]:
            # vLLM's own defect: with batches in flight the adapter limit can be violated, which trips an assertion.
            self.num_adapters = min(self.num_adapters, engine["max_loras"])
        self.salts = rng.choice([0.0, 0.0, 0.3])
        # Short answers among long ones: with its last token in flight, a victim sits unscheduled before the scan point.
        self.short_answers = rng.choice([0.0, 0.3, 0.6]) if family == "edge" else 0.0

    def requests(self) -> list[Case]:
        """All requests in order of arrival."""
        rng = self.rng
        number = 500 if self.large else rng.randint(12, 36)
        ids = list(range(number))
        if _chance(rng, 0.3):
            rng.shuffle(ids)
        step = 0
        for request_id in ids:
            if not _chance(rng, self.burst):
                step += 1 + int(rng.expovariate(1 / self.gap))
                if not self.large and _chance(rng, 0.03):
                    step += rng.randint(50, 300)  # long enough for the engine to run idle
            self.sent.append(self._request(request_id, step))
        return self.sent

    def _request(self, request_id: int, step: int) -> Case:
        rng = self.rng
        prompt, output_segment, salt, lora = self._prompt(step)
        num_prompt_tokens = sum(length or 0 for _, _, length in prompt)
        max_tokens = self._max_tokens(num_prompt_tokens)
        number = rng.randint(1, max_tokens) if _chance(rng, 0.3) else max_tokens
        speculative = self.engine["speculative"]
        acceptance = None
        if speculative and _chance(rng, 0.95):
            mean = rng.random()
            draws = [sum(_chance(rng, mean) for _ in range(speculative["num_speculative_tokens"])) for _ in range(12)]
            acceptance = draws
        return {
            "id": request_id,
            "step": step,
            "prompt": prompt,
            "output_segment": output_segment,
            "max_tokens": max_tokens,
            "num_output_tokens": number,
            "priority": rng.randrange(self.num_priorities),
            "arrival_time": self._arrival_time(step),
            "salt": salt,
            "lora": lora,
            "skip_reading_prefix_cache": _chance(rng, 0.05),
            "acceptance": acceptance,
        }

    def _arrival_time(self, step: int) -> float:
        """Mostly the order of arrival, with ties, and sometimes an older stamp that arrives late."""
        if self.tie:
            return float(step // 4)
        number = len(self.sent)
        return float(max(0, number - self.rng.randint(0, 5))) if _chance(self.rng, 0.1) else float(number)

    def _prompt(self, step: int) -> tuple[Runs, int | None, str | None, int | None]:
        """The runs, and the answer's segment, salt and adapter."""
        rng = self.rng
        kind = rng.choices(["fresh", "shared", "resend", "turn"], [0.1, 0.45, 0.15, 0.3])[0]
        earlier = self._earlier(step) if kind in ("resend", "turn") else None
        salt = f"tenant{rng.randrange(3)}" if _chance(rng, self.salts) else None
        lora = rng.randint(1, self.num_adapters) if self.num_adapters and _chance(rng, 0.6) else None
        answer: int | None = self._new_segment()
        if earlier is not None and not _chance(rng, 0.1):
            salt, lora = earlier["salt"], earlier["lora"]
        if kind == "fresh":
            return [[None, 0, self._length(0.5)]], None, salt, lora
        if earlier is None:
            return self._shared(), answer, salt, lora
        if kind == "resend":
            if _chance(rng, 0.5):
                answer = earlier["output_segment"]  # the same question may get the same answer
            return [list(run) for run in earlier["prompt"]], answer, salt, lora
        quoted = earlier["num_output_tokens"] - (rng.randint(0, 2) if _chance(rng, 0.2) else 0)
        prompt = [list(run) for run in earlier["prompt"]]
        if quoted > 0 and earlier["output_segment"] is not None:
            prompt.append([earlier["output_segment"], 0, quoted])
        return self._cut([*prompt, self._new_run(self._length(0.15))]), answer, salt, lora

    def _earlier(self, step: int) -> Case | None:
        """A request to resend or to continue: usually one that has probably been answered."""
        answered = [r for r in self.sent if r["step"] + r["num_output_tokens"] + 2 <= step]
        if answered and not _chance(self.rng, 0.15):
            return self.rng.choice(answered[-8:])
        return self.rng.choice(self.sent) if self.sent else None

    def _shared(self) -> Runs:
        """A walk down the forest, possibly cut inside a run, possibly growing a new branch, with an own tail."""
        rng = self.rng
        node = [list(run) for run in rng.choice(self.nodes)]
        if node and _chance(rng, 0.25):
            node[-1][2] = rng.randint(1, node[-1][2] or 1)
        if _chance(rng, 0.25):
            node = self._cut([*node, self._new_run(self._length(0.3))])
            self.nodes.append(node)
        if not node or _chance(rng, 0.7):
            node = [*node, self._new_run(self._length(0.25))]
        return self._cut(node)

    def _cut(self, runs: Runs) -> Runs:
        """The runs cut to the longest prompt allowed."""
        room = self.longest_prompt
        kept: Runs = []
        for segment, start, length in runs:
            length = min(length or 0, room)
            if length:
                kept.append([segment, start, length])
            room -= length
        return kept

    def _length(self, share: float) -> int:
        """A length up to a share of the longest prompt; sometimes full blocks, where off-by-one errors live."""
        rng = self.rng
        block_size: int = self.engine["block_size"]
        length = rng.randint(1, max(1, int(share * self.longest_prompt)))
        if _chance(rng, 0.35):
            length = -(-length // block_size) * block_size + rng.choice([0, 0, 1])
        return min(length, self.longest_prompt)

    def _max_tokens(self, num_prompt_tokens: int) -> int:
        rng = self.rng
        room = self.engine["max_model_len"] - num_prompt_tokens
        speculative = self.engine["speculative"]
        if self.large:
            return rng.randint(20, 200)
        if speculative and (self.engine["async_scheduling"] or _chance(rng, 0.7)):
            # Away from the length limit: 0.23 with async drafts schedules a negative number of tokens there.
            room -= 2 * speculative["num_speculative_tokens"] + 2
        elif _chance(rng, 0.06):
            return room + rng.randint(1, 10)  # the length limit ends it first
        if self.short_answers and _chance(rng, self.short_answers):
            return rng.randint(1, max(1, min(room, 5)))
        longest = room if self.pressed else min(room, 3 * self.engine["block_size"])
        return rng.randint(1, max(1, min(longest, 60)))

    def _new_segment(self) -> int:
        self.num_segments += 1
        return self.num_segments

    def _new_run(self, length: int) -> list[int | None]:
        return [self._new_segment(), 0, length]


def _actions(rng: random.Random, requests: list[Case], engine: Case, family: str, dialect: str) -> list[Case]:
    actions: list[Case] = []
    # vLLM's own defect: 0.23 then drops a whole output for each draft in flight, and the request hangs.
    hangs = dialect == "0.23" and engine["async_scheduling"] and engine["speculative"] is not None
    last = requests[-1]["step"]
    if _chance(rng, 0.4):
        for _ in range(rng.randint(1, 4)):
            request = rng.choice(requests)
            step = request["step"] + rng.randint(0, 20)
            others = [r["id"] for r in requests if r["step"] <= step and r is not request]
            ids = [request["id"], *rng.sample(others, min(len(others), rng.choice([0, 0, 1, 2])))]
            actions.append({"step": step, "action": "abort", "when": rng.choice(["before", "during"]), "ids": ids})
    if _chance(rng, 0.5 if family == "edge" else 0.3):
        for _ in range(rng.randint(1, 2)):
            step = rng.randint(0, last + 30)
            actions.append({"step": step, "action": "reset", "reset_running": _chance(rng, 0.6) and not hangs})
    return sorted(actions, key=lambda action: action["step"])
