"""vllm.grpc.engine.VllmEngine, the protocol that other gateways speak to an engine.

It stands beside `ttserve.v1.Device`, over the same admission, and only where
`--enable-vllm-grpc` asks for it: its messages come from the package
smg-grpc-proto, which nothing else needs.
"""

SERVICE = "vllm.grpc.engine.VllmEngine"
"""Full name, as the health service and reflection know it."""
