"""Which command owns which flag, and how many values follow it.

Written by tools/flag_table.py from the parsers themselves; do not edit.
"""

TABLE: dict[tuple[str, str], str] = {
    ("device", "maybe"): """
--hf-token
""",
    ("device", "none"): """
--aggregate-engine-logging --allow-deprecated-quantization --async-scheduling
--check --cudagraph-metrics --data-parallel-external-lb --data-parallel-hybrid-lb
--data-parallel-multi-port-external-lb --dcp-q-replicate --disable-cascade-attn
--disable-chunked-mm-input --disable-custom-all-reduce
--disable-hybrid-kv-cache-manager --disable-nccl-for-dp-synchronization
--disable-sliding-window --enable-batch-sharded-sampling --enable-chunked-prefill
--enable-cumem-allocator --enable-dbo --enable-elastic-ep --enable-ep-weight-filter
--enable-eplb --enable-expert-parallel --enable-fault-tolerance
--enable-flashinfer-autotune --enable-layerwise-nvtx-tracing
--enable-logging-iteration-details --enable-lora
--enable-mamba-cache-stochastic-rounding --enable-mamba-fine-grained-prefix-cache
--enable-mfu-metrics --enable-mixed-moe-lora-format --enable-mm-embeds
--enable-moe-shared-loras --enable-nccl-comm-suspend --enable-prefix-caching
--enable-prompt-embeds --enable-return-routed-experts --enable-sleep-mode
--enable-step-control --enable-tower-connector-lora --enable-trace-replay
--enable-vllm-grpc --enforce-eager --fail-on-environ-validation
--fully-sharded-loras --interleave-mm-strings --jit-monitor-verbose
--kv-cache-metrics --kv-sharing-fast-prefill --language-model-only
--mm-device-do-normalize --mm-encoder-only --no-allow-deprecated-quantization
--no-async-scheduling --no-cudagraph-metrics --no-data-parallel-external-lb
--no-data-parallel-hybrid-lb --no-dcp-q-replicate --no-disable-cascade-attn
--no-disable-chunked-mm-input --no-disable-custom-all-reduce
--no-disable-hybrid-kv-cache-manager --no-disable-nccl-for-dp-synchronization
--no-disable-sliding-window --no-enable-batch-sharded-sampling
--no-enable-chunked-prefill --no-enable-cumem-allocator --no-enable-dbo
--no-enable-elastic-ep --no-enable-ep-weight-filter --no-enable-eplb
--no-enable-expert-parallel --no-enable-fault-tolerance
--no-enable-flashinfer-autotune --no-enable-layerwise-nvtx-tracing
--no-enable-logging-iteration-details --no-enable-lora
--no-enable-mamba-cache-stochastic-rounding
--no-enable-mamba-fine-grained-prefix-cache --no-enable-mfu-metrics
--no-enable-mixed-moe-lora-format --no-enable-mm-embeds --no-enable-moe-shared-loras
--no-enable-nccl-comm-suspend --no-enable-prefix-caching --no-enable-prompt-embeds
--no-enable-return-routed-experts --no-enable-sleep-mode
--no-enable-tower-connector-lora --no-enable-trace-replay --no-enforce-eager
--no-fail-on-environ-validation --no-fully-sharded-loras --no-interleave-mm-strings
--no-jit-monitor-verbose --no-kv-cache-metrics --no-kv-sharing-fast-prefill
--no-language-model-only --no-mm-device-do-normalize --no-mm-encoder-only
--no-numa-bind --no-ray-workers-use-nsight --no-return-sampling-mask
--no-scheduler-reserve-full-isl --no-skip-mm-profiling --no-skip-tokenizer-init
--no-specialize-active-lora --no-trust-remote-code --no-use-fp64-gumbel
--no-use-replayssm --no-use-tqdm-on-load --numa-bind --ray-workers-use-nsight
--return-sampling-mask --scheduler-reserve-full-isl --skip-mm-profiling
--skip-tokenizer-init --specialize-active-lora --trust-remote-code --use-fp64-gumbel
--use-replayssm --use-tqdm-on-load -dpe -dph -dpm -ep
""",
    ("device", "one"): """
--additional-config --all2all-backend --allowed-local-media-path --attention-backend
--attention-config --block-size --code-revision --compilation-config --config
--config-format --convert --cp-kv-cache-interleave-size
--cpu-distributed-timeout-seconds --cpu-offload-gb --data-parallel-address
--data-parallel-backend --data-parallel-rank --data-parallel-rpc-port
--data-parallel-size --data-parallel-size-local --data-parallel-start-rank
--dbo-decode-token-threshold --dbo-prefill-token-threshold --dcp-comm-backend
--dcp-kv-cache-interleave-size --decode-context-parallel-size --default-mm-loras
--device-ids --diffusion-config --distributed-executor-backend
--distributed-timeout-seconds --download-dir --dp-sync-interval --dtype
--ec-manager-config --ec-transfer-config --elastic-ep-max-dp-size --engram-config
--eplb-config --expert-placement-strategy --fault-tolerance-config
--gdn-prefill-backend --generation-config --gpu-memory-utilization --grpc-tls-cert
--grpc-tls-client-ca --grpc-tls-key --grpc-token-file --heartbeat-timeout
--hf-config-path --hf-overrides --inspector-token-file --io-processor-plugin
--ir-op-priority --jit-monitor-mode --kda-decode-backend --kda-prefill-backend
--kernel-config --kv-cache-dtype --kv-cache-fraction --kv-cache-memory-bytes
--kv-cache-metrics-sample --kv-events-config --kv-offloading-backend
--kv-offloading-size --kv-transfer-config --limit-mm-per-prompt --linear-backend
--listen --load-format --logprobs-mode --long-prefill-token-threshold --lora-dtype
--mamba-backend --mamba-block-size --mamba-cache-dtype --mamba-cache-mode
--mamba-cache-philox-rounds --mamba-ssm-cache-dtype --mamba-ssu-algorithm
--master-addr --master-port --max-cpu-loras --max-cudagraph-capture-size
--max-logprobs --max-lora-rank --max-loras --max-model-len --max-num-batched-tokens
--max-num-queued-reqs --max-num-queued-tokens --max-num-scheduled-tokens
--max-num-seqs --max-parallel-loading-workers --max-queued-requests
--media-io-kwargs --mesh --metrics-host --mm-encoder-attn-backend
--mm-encoder-attn-dtype --mm-encoder-fp8-scale-path
--mm-encoder-fp8-scale-save-margin --mm-encoder-fp8-scale-save-path
--mm-encoder-tp-mode --mm-hasher-algorithm --mm-ipc-gpu-memory-gb
--mm-processor-cache-gb --mm-processor-cache-type --mm-processor-device
--mm-processor-kwargs --mm-shm-cache-max-object-size-mb --mm-tensor-ipc --model
--model-class-overrides --model-impl --model-loader-extra-config --moe-backend
--nnodes --node-rank --num-gpu-blocks-override --offload-backend
--offload-group-size --offload-num-in-group --offload-prefetch-step
--optimization-level --override-generation-config --per-request-spec-decode-metrics
--performance-mode --pipeline-parallel-size --plan --pooler-config
--prefill-context-parallel-size --prefill-schedule-interval
--prefix-cache-retention-interval --prefix-caching-hash-algo --prefix-match-unit
--profiler-config --pt-load-map-location --quantization --quantization-config
--reasoning-config --reasoning-parser --reasoning-parser-plugin --recording-dir
--replayssm-buffer-len --revision --runner --safetensors-load-strategy
--safetensors-prefetch-block-size --safetensors-prefetch-num-threads --scheduler-cls
--scheduling-policy --seed --shutdown-grace --sparse-indexer-topk-backend
--spec-method --spec-model --spec-tokens --speculative-config
--step-control-token-file --step-ring --structured-outputs-config
--tensor-parallel-size --threads --tokenizer --tokenizer-mode --tokenizer-revision
--ubatch-size --video-pruning-method --video-pruning-rate --watermark
--watermark-config --weight-transfer-config --worker-cls --worker-extension-cls -ac
-cc -dc -dcp -dp -dpa -dpb -dpl -dpn -dpp -dpr -n -pcp -pp -q -r -sc -tp
""",
    ("device", "some"): """
--allowed-media-domains --collect-detailed-traces --cpu-offload-params
--cudagraph-capture-sizes --ignore-patterns --kv-cache-dtype-skip-layers
--logits-processors --lora-target-modules --numa-bind-cpus --numa-bind-nodes
--offload-params --served-model-name
""",
    ("frontend", "none"): """
--allow-credentials --cohere-is-reasoning-model --disable-fastapi-docs
--disable-inspect-page --disable-log-stats --disable-uvicorn-access-log
--enable-auto-tool-choice --enable-flash-late-interaction
--enable-force-include-usage --enable-log-deltas --enable-log-outputs
--enable-log-requests --enable-offline-docs --enable-per-request-metrics
--enable-prompt-tokens-details --enable-request-id-headers --enable-scale-out
--enable-server-load-tracking --enable-ssl-refresh --enable-tokenizer-info-endpoint
--exclude-tools-when-tool-choice-none --grpc --headless --help --log-error-stack
--no-allow-credentials --no-cohere-is-reasoning-model --no-disable-fastapi-docs
--no-disable-uvicorn-access-log --no-enable-auto-tool-choice
--no-enable-flash-late-interaction --no-enable-force-include-usage
--no-enable-log-deltas --no-enable-log-outputs --no-enable-log-requests
--no-enable-offline-docs --no-enable-per-request-metrics
--no-enable-prompt-tokens-details --no-enable-request-id-headers
--no-enable-scale-out --no-enable-server-load-tracking --no-enable-ssl-refresh
--no-enable-tokenizer-info-endpoint --no-exclude-tools-when-tool-choice-none
--no-log-error-stack --no-return-tokens-as-token-ids --no-tokens-only
--no-trust-request-chat-template --return-tokens-as-token-ids --tokens-only
--trust-request-chat-template --version -h
""",
    ("frontend", "one"): """
--accept-when-ready --allowed-headers --allowed-methods --allowed-origins
--api-key-file --api-server-count --chat-template --chat-template-content-format
--cohere-format --data-parallel-supervisor-port --default-chat-template-kwargs
--device-inspector-token-file --device-service --device-timeout --device-tls-ca
--device-tls-cert --device-tls-key --device-tls-server-name --device-token-file
--disable-access-log-for-endpoints --dp-supervisor-probe-failure-threshold
--dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s --drain-delay --fd
--fingerprint-mode --fingerprint-value --h11-max-header-count
--h11-max-incomplete-event-size --host --log-config-file --log-format --lost-after
--max-body-bytes --max-connections --max-log-len --metrics-port --middleware --name
--otlp-traces-endpoint --ping-interval --port --renderer-num-workers --response-role
--root-path --show-hidden-metrics-for-version --shutdown-timeout
--sse-keep-alive-interval --ssl-ca-certs --ssl-cert-reqs --ssl-certfile
--ssl-ciphers --ssl-keyfile --stream-interval --tool-call-parser
--tool-parser-plugin --tool-server --uds --uvicorn-log-level -asc
""",
    ("frontend", "some"): """
--api-key --lora-modules
""",
}
