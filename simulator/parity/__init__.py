"""Parity with vLLM: the same case is played to the real scheduler and to ours, and every record must be equal.

``cases`` makes random cases (no dependency but the standard library). ``engine_harness`` runs in an interpreter that
has vLLM; it drives vLLM's own ``Scheduler`` or ``AsyncScheduler`` with its own ``KVCacheManager`` and no model
(``vllm_engine`` builds them). ``replay`` plays the same cases to our scheduler and writes the same records, which are
compared for equality: there is no tolerance anywhere.

Case
----
One JSON object, format ``kvcast-case-1``, with ``family``, ``seed``, ``dialect`` (``"0.32"`` or ``"0.23"``) and:

``engine``: block_size, num_gpu_blocks (the null block included: one fewer is usable), max_model_len,
    max_num_batched_tokens, max_num_seqs, max_num_active_seqs (or null), long_prefill_token_threshold (0 = none),
    long_prefill_token_threshold_adaptive, enable_chunked_prefill, scheduler_reserve_full_isl, watermark,
    enable_prefix_caching, policy (``fcfs`` | ``priority``), async_scheduling, max_loras (0 = no LoRA),
    speculative (null or {method: eagle | mtp | draft_model | ngram, num_speculative_tokens}).
    All are vLLM's names. 0.23 has no watermark, max_num_active_seqs and adaptive threshold; its cases leave them
    neutral, and the harness refuses others.

``requests``: in order of arrival; id (int, ties of the priority order fall to the smaller one), step, prompt
    (runs ``[segment, start, length]``, segment null = tokens that occur nowhere else), output_segment (int; null =
    tokens that occur nowhere else), max_tokens, num_output_tokens (the true length; if below max_tokens its last token
    is a stop token), priority, arrival_time, salt (string or null), lora (int from 1, or null),
    skip_reading_prefix_cache, acceptance (list or null).
    Equal (segment, position) means equal token; token i of an answer is (output_segment, i), so a later prompt may
    quote it. The stop token is that very token, so quoting is unaffected.

``actions``: in order of step; {step, action: "abort", when: "before" | "during", ids} or
    {step, action: "reset", reset_running}.

Iterations
----------
A step index counts iterations of the engine loop. Iteration i does, in this order:

1. arrivals of step <= i, in the order of ``requests``;
2. actions of step <= i which are resets or have ``when: "before"``, in the order of ``actions``; the ids of one abort
   are aborted one by one in the order given (vLLM walks a set, whose order is not defined);
3. if the scheduler has requests (unfinished ones, or finished ones it has not told the workers about yet):
   ``schedule()``; the batch is put into the queue of launched batches, even if it is empty;
4. aborts ``when: "during"`` of step <= i;
5. update with the oldest launched batch. Synchronous: always the one just scheduled. Asynchronous (depth 2): skipped if
   a schedule took place, fewer than 2 batches are launched, and the new batch has tokens or the scheduler has requests;
6. synchronous with drafts: every request of the batch proposes num_speculative_tokens drafts (vLLM ignores those of
   finished requests and of prefill chunks).

If afterwards the scheduler has no requests and nothing is launched, i jumps to the smallest step of a remaining arrival
or action, or to i + 1 if that is larger; with none remaining the case ends. An iteration without a schedule, an update,
a reset or an abort that found its request has no record.

The worker: when a batch is launched, a request in it that is no prefill chunk (computed >= known tokens + placeholders
after ``schedule``) will deliver 1 + a tokens. a = 0 without drafts. A request admitted in this very step has dummy
drafts only (vLLM's padding): a = 0. Else a = min(acceptance[k mod len], number of scheduled drafts), where k counts
this request's launches of this kind, including those whose output is later dropped; acceptance null or empty = 0.
Delivered tokens are the next ones of the answer, counted from what the request has at that update.

Records
-------
The harness prints one line a case: {"case": <the case>, "records": [...], "summary": {...}}. A record is

``index``       the iteration
``aborted``     [[id, num_output_tokens], ...] of all aborts in this iteration that found their request, in order
``resets``      [true | false, ...] results of the resets in order
``schedule``    null, or
    ``scheduled``  [[id, num_tokens, num_drafts], ...] in the order of ``num_scheduled_tokens``
    ``computed``   [num_computed_tokens after schedule(), ...] of the same requests
    ``admitted``   [[id, num_computed_tokens at admission (the hit), resumed], ...] in order
    ``preempted``  [id, ...] in order of preemption (those of a reset_running included, since the previous schedule)
    ``running``    [id, ...] running list
    ``waiting``    [id, ...] waiting queue in the order in which it would be served
    ``skipped``    [id, ...] 0.23: queue of skipped requests. 0.32: queue of waiting requests that hold blocks (here [])
    ``num_free``   free blocks
``update``      null, or
    ``of``         iteration whose batch this is
    ``delivered``  [[id, number of tokens], ...] in order, only requests that delivered something
    ``first``      [[id, num_cached_tokens], ...] reported with a first output
    ``finished``   [[id, num_output_tokens, "stop" | "length"], ...] in order
    ``running``, ``waiting``, ``skipped``, ``num_free``   as above, after the update
    ``prefix``     since the last update: [requests, queries, hits, preempted_requests, preempted_queries,
                   preempted_hits]
    ``events``     KV events published by this update: ["S", label] stored, ["R", label] removed, ["C"] all cleared
    ``free``       [[block id, label or null], ...] the free list, head first

``label`` is a small integer: block hashes are numbered from 0 in the order of their first "S" in the case.

If vLLM raises an AssertionError (a defect of its own), the case ends with the record {"index", "assertion": "schedule"
| "update" | "reset", "message"}. More than 1000 schedules in a row that schedule nothing end it with {"index",
"stalled": true}. The iteration in which it happened has no other record.

With ``--digest`` every record is {"index", "digest"}: the first 16 hex digits of the SHA-256 of the record's JSON text
(sorted keys, no spaces). With ``--time-only`` there are no records, and KV events are off, as is vLLM's default.

``summary``: seconds (inside schedule() and update_from_output() only), num_records, num_steps (schedule calls),
num_request_steps (scheduled requests summed over steps), num_preemptions, num_evictions ("R" events), num_resumed_hits
(resumed admissions with a hit), num_scheduled_victims (victims whose tokens of the same step were taken back),
num_hit_tokens (at admissions), assertion, stalled. With ``--time-only`` what needs records or events stays 0.
"""
