"""BurstGPT: ChatGPT and GPT-4 through Azure OpenAI (Wang et al., arXiv 2401.17644). Lengths only.

Format: HPMLL/BurstGPT, releases 1.1 and 2.0. Columns ``Timestamp`` (seconds, not from 0), ``Model``, ``Request
tokens``, ``Response tokens`` and, in the later files, ``Session ID``; others are ignored. A response of 0 tokens is a
request that failed: unusable. The model stands as the tenant.
"""

from __future__ import annotations

from simulator.workload.readers.columns import ColumnTrace, RowParser, column_number, column_tokens
from simulator.workload.readers.reading import Unusable
from simulator.workload.records import Record


class BurstGpt(ColumnTrace):
    """See the module."""

    format = "burstgpt"
    description = "BurstGPT's CSV: Timestamp (s), Request tokens, Response tokens, Session ID (lengths only)"
    columns = ("Timestamp", "Request tokens", "Response tokens")
    optional_columns = ("Model", "Session ID")
    may_have_sessions = True

    def _row_parser(self, places: tuple[int, ...]) -> RowParser[Record]:
        time_at, prompt_at, output_at, model_at, session_at = places
        first: float | None = None

        def parse(row: list[str]) -> Record:
            nonlocal first
            time_s = column_number("Timestamp", row[time_at])
            num_prompt = column_tokens("Request tokens", row[prompt_at])
            if row[output_at].strip() in ("0", "0.0"):
                raise Unusable("Response tokens is 0: the request failed, expected at least one token")
            num_output = column_tokens("Response tokens", row[output_at])
            if first is None:
                first = time_s
            session = row[session_at].strip() if session_at >= 0 else ""
            model = row[model_at].strip() if model_at >= 0 else ""
            return Record(time_s - first, num_prompt, num_output, session=session or None, tenant=model or None)

        return parse
