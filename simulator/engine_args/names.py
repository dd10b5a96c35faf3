"""vLLM's argument names (of 0.23 and 0.32) that kvcast does not model: those that change nothing, and those that would.

The modelled ones are the fields of ``EngineArgs``. A name on no list is a misspelling.
"""

from __future__ import annotations

# Names, addresses, logs, loading, parsing of finished text: neither what is scheduled when, nor how long a step takes.
HARMLESS = frozenset(
    """
    host port uds root_path api_key allow_credentials allowed_origins allowed_methods allowed_headers
    ssl_keyfile ssl_certfile ssl_ca_certs ssl_cert_reqs ssl_ciphers enable_ssl_refresh
    h11_max_incomplete_event_size h11_max_header_count disable_fastapi_docs enable_offline_docs
    enable_request_id_headers sse_keep_alive_interval enable_tokenizer_info_endpoint enable_scale_out
    enable_prompt_tokens_details enable_force_include_usage enable_per_request_metrics enable_server_load_tracking
    fingerprint_mode fingerprint_value response_role return_tokens_as_token_ids
    served_model_name trust_remote_code tokenizer tokenizer_mode tokenizer_revision revision code_revision
    hf_config_path hf_token config_format generation_config seed
    allowed_local_media_path allowed_media_domains
    chat_template chat_template_content_format default_chat_template_kwargs
    trust_request_chat_template trust_request_mm_kwargs
    enable_auto_tool_choice exclude_tools_when_tool_choice_none tool_call_parser tool_parser_plugin tool_strict_level
    reasoning_parser reasoning_parser_plugin reasoning_config structured_outputs_config
    cohere_format cohere_is_reasoning_model anthropic_disabled_thinking_effort
    max_logprobs logprobs_mode
    load_format download_dir safetensors_load_strategy safetensors_prefetch_num_threads
    safetensors_prefetch_block_size model_loader_extra_config ignore_patterns use_tqdm_on_load pt_load_map_location
    max_parallel_loading_workers allow_deprecated_quantization lora_modules
    disable_log_stats aggregate_engine_logging enable_log_requests enable_log_outputs enable_log_deltas max_log_len
    log_level logging_config log_config_file log_error_stack uvicorn_log_level disable_uvicorn_access_log
    disable_access_log_for_endpoints enable_logging_iteration_details show_hidden_metrics_for_version
    custom_histogram_buckets kv_cache_metrics kv_cache_metrics_sample cudagraph_metrics enable_mfu_metrics
    per_request_spec_decode_metrics jit_monitor_mode jit_monitor_verbose otlp_traces_endpoint
    distributed_timeout_seconds cpu_distributed_timeout_seconds master_addr master_port device_ids
    data_parallel_address data_parallel_rpc_port data_parallel_supervisor_port dp_supervisor_probe_interval_s
    dp_supervisor_probe_timeout_s dp_supervisor_probe_failure_threshold
    fail_on_environ_validation shutdown_timeout enable_sleep_mode sleep_mode_offload_cudagraph
    sleep_preserve_parameter_names
    """.split()
)

# Accepted and echoed, but never with their value.
SECRET = frozenset({"api_key", "hf_token"})

_GROUPS = {
    "the profile was measured with one kernel, graph and number format": """
        quantization quantization_config kv_cache_dtype kv_cache_dtype_skip_layers calculate_kv_scales enforce_eager
        override_attention_dtype compilation_config cudagraph_capture_sizes max_cudagraph_capture_size
        optimization_level performance_mode attention_backend attention_config kernel_config ir_op_priority moe_backend
        linear_backend sparse_indexer_topk_backend gdn_prefill_backend kda_prefill_backend kda_decode_backend
        enable_flashinfer_autotune disable_cascade_attn use_fp64_gumbel model_impl engram_config
        enable_cumem_allocator worker_cls worker_extension_cls additional_config hf_overrides model_class_overrides
        numa_bind numa_bind_nodes numa_bind_cpus enable_layerwise_nvtx_tracing ray_workers_use_nsight profiler_config
        collect_detailed_traces disable_custom_all_reduce""",
    "only tensor and pipeline parallel engines, as measured by the profile, are simulated": """
        data_parallel_size data_parallel_size_local data_parallel_rank data_parallel_start_rank data_parallel_backend
        data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb dp_sync_interval
        prefill_schedule_interval prefill_context_parallel_size decode_context_parallel_size dcp_comm_backend
        dcp_q_replicate dcp_kv_cache_interleave_size cp_kv_cache_interleave_size enable_hc_sp enable_expert_parallel
        enable_batch_sharded_sampling enable_ep_weight_filter all2all_backend enable_dbo ubatch_size
        dbo_decode_token_threshold dbo_prefill_token_threshold enable_elastic_ep elastic_ep_max_dp_size enable_eplb
        eplb_config expert_placement_strategy nnodes node_rank headless distributed_executor_backend
        disable_nccl_for_dp_synchronization enable_nccl_comm_suspend enable_shm_tensor_arena enable_fault_tolerance
        fault_tolerance_config""",
    "the overhead before a request reaches the engine was measured with vLLM's default server": """
        api_server_count renderer_num_workers grpc grpc_port tokens_only middleware prefix_caching_hash_algo
        stream_interval tool_server io_processor_plugin skip_tokenizer_init""",
    "only the default scheduler is simulated": """
        scheduler_cls max_num_scheduled_tokens max_num_queued_reqs max_num_queued_tokens max_num_partial_prefills
        max_long_partial_prefills disable_chunked_mm_input""",
    "one pool of full-attention blocks is simulated": """
        prefix_cache_retention_interval prefix_match_unit disable_hybrid_kv_cache_manager disable_sliding_window
        kv_sharing_fast_prefill swa_bounded_replay mamba_backend mamba_ssu_algorithm mamba_cache_dtype
        mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode enable_mamba_cache_stochastic_rounding
        mamba_cache_philox_rounds enable_mamba_shared_prefix_checkpoint replayssm_buffer_len use_replayssm""",
    "KV transfer and offloading are not simulated": """
        kv_transfer_config kv_events_config ec_transfer_config ec_manager_config kv_offloading_size
        kv_offloading_backend offload_backend cpu_offload_gb cpu_offload_params offload_group_size offload_num_in_group
        offload_prefetch_step offload_params weight_transfer_config""",
    "speculative decoding is stated in speculative_config": "spec_method spec_model spec_tokens",
    "what LoRA adapters cost, and loading them, is not simulated": """
        max_lora_rank lora_dtype enable_tower_connector_lora max_cpu_loras fully_sharded_loras lora_target_modules
        default_mm_loras specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras
        max_lora_cls_labels""",
    "multimodal input is not simulated": """
        language_model_only limit_mm_per_prompt enable_mm_embeds enable_prompt_embeds media_io_kwargs
        mm_processor_kwargs mm_processor_cache_gb mm_processor_cache_type mm_hasher_algorithm
        mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode mm_encoder_attn_backend
        mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path
        mm_encoder_fp8_scale_save_margin interleave_mm_strings skip_mm_profiling video_pruning_rate
        video_pruning_method mm_tensor_ipc mm_processor_device mm_ipc_gpu_memory_gb mm_device_do_normalize""",
    "only text generation, token by token, is simulated": """
        runner convert pooler_config enable_flash_late_interaction diffusion_config""",
    "what a request asks for and how long its answer is stands in the workload": """
        override_generation_config logits_processors enable_return_routed_experts return_sampling_mask
        aux_output_config enable_trace_replay watermark_config""",
    "its arguments belong into the scenario": "config",
}

# Refused unless the value is vLLM's default, which asks for nothing.
NOT_MODELLED = {name: reason for reason, names in _GROUPS.items() for name in names.split()}

# Those defaults; everywhere else null, false, "auto" and an empty list or mapping are the default.
DEFAULTS: dict[str, object] = {
    "data_parallel_size": 1, "data_parallel_rank": 0, "prefill_context_parallel_size": 1,
    "decode_context_parallel_size": 1, "dcp_kv_cache_interleave_size": 1, "cp_kv_cache_interleave_size": 1,
    "prefill_schedule_interval": 1, "nnodes": 1, "node_rank": 0, "ubatch_size": 0, "dp_sync_interval": 16,
    "all2all_backend": "allgather_reducescatter", "dbo_decode_token_threshold": 32, "dbo_prefill_token_threshold": 512,
    "expert_placement_strategy": "linear", "data_parallel_backend": "mp",
    "api_server_count": 1, "renderer_num_workers": 1, "prefix_caching_hash_algo": "sha256", "stream_interval": 1,
    "max_num_partial_prefills": 1, "max_long_partial_prefills": 1, "prefix_cache_retention_interval": 0,
    "swa_bounded_replay": True, "optimization_level": 2, "performance_mode": "balanced",
    "kv_offloading_backend": "native", "cpu_offload_gb": 0, "offload_group_size": 0, "offload_num_in_group": 1,
    "offload_prefetch_step": 1, "max_lora_rank": 16, "enable_flash_late_interaction": True,
    "mm_processor_cache_gb": 4, "mamba_cache_mode": "none", "mamba_backend": "triton",
}  # fmt: skip

# Names that take no value on the command line, and those that take several.
SWITCHES = frozenset(
    """
    aggregate_engine_logging allow_credentials allow_deprecated_quantization async_scheduling calculate_kv_scales
    cohere_is_reasoning_model cudagraph_metrics data_parallel_external_lb data_parallel_hybrid_lb
    data_parallel_multi_port_external_lb dcp_q_replicate disable_cascade_attn disable_chunked_mm_input
    disable_custom_all_reduce disable_fastapi_docs disable_hybrid_kv_cache_manager disable_log_stats
    disable_nccl_for_dp_synchronization disable_sliding_window disable_uvicorn_access_log enable_auto_tool_choice
    enable_batch_sharded_sampling enable_chunked_prefill enable_cumem_allocator enable_dbo enable_elastic_ep
    enable_ep_weight_filter enable_eplb enable_expert_parallel enable_fault_tolerance enable_flash_late_interaction
    enable_flashinfer_autotune enable_force_include_usage enable_hc_sp enable_layerwise_nvtx_tracing enable_log_deltas
    enable_log_outputs enable_log_requests enable_logging_iteration_details enable_lora
    enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint enable_mfu_metrics
    enable_mixed_moe_lora_format enable_mm_embeds enable_moe_shared_loras enable_nccl_comm_suspend enable_offline_docs
    enable_per_request_metrics enable_prefix_caching enable_prompt_embeds enable_prompt_tokens_details
    enable_request_id_headers enable_return_routed_experts enable_scale_out enable_server_load_tracking
    enable_shm_tensor_arena enable_sleep_mode enable_ssl_refresh enable_tokenizer_info_endpoint
    enable_tower_connector_lora enable_trace_replay enforce_eager exclude_tools_when_tool_choice_none
    fail_on_environ_validation fully_sharded_loras grpc headless interleave_mm_strings jit_monitor_verbose
    kv_cache_metrics kv_sharing_fast_prefill language_model_only log_error_stack long_prefill_token_threshold_adaptive
    mm_device_do_normalize mm_encoder_only numa_bind ray_workers_use_nsight return_sampling_mask
    return_tokens_as_token_ids scheduler_reserve_full_isl skip_mm_profiling skip_tokenizer_init
    sleep_mode_offload_cudagraph specialize_active_lora swa_bounded_replay tokens_only trust_remote_code
    trust_request_chat_template trust_request_mm_kwargs use_fp64_gumbel use_replayssm use_tqdm_on_load
    """.split()
)
LISTS = frozenset(
    """
    allowed_media_domains api_key collect_detailed_traces cpu_offload_params cudagraph_capture_sizes ignore_patterns
    kv_cache_dtype_skip_layers logits_processors lora_modules lora_target_modules numa_bind_cpus numa_bind_nodes
    offload_params served_model_name sleep_preserve_parameter_names
    """.split()
)
SHORT = {
    "-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-dp": "data_parallel_size", "-n": "nnodes",
    "-r": "node_rank", "-dpn": "data_parallel_rank", "-dpr": "data_parallel_start_rank",
    "-dpl": "data_parallel_size_local", "-dpa": "data_parallel_address", "-dpp": "data_parallel_rpc_port",
    "-dpb": "data_parallel_backend", "-dph": "data_parallel_hybrid_lb", "-dpe": "data_parallel_external_lb",
    "-dpm": "data_parallel_multi_port_external_lb", "-ep": "enable_expert_parallel", "-q": "quantization",
    "-pcp": "prefill_context_parallel_size", "-dcp": "decode_context_parallel_size", "-asc": "api_server_count",
    "-ac": "attention_config", "-cc": "compilation_config", "-sc": "speculative_config", "-dc": "diffusion_config",
    "-O": "optimization_level",
}  # fmt: skip
