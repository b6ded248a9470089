# The device service, for the cpu and sim meshes. Build from the repository's root:
#   docker build -f compose/device-service.Dockerfile .
#
# Up to "From here on" this file is the same as frontend.Dockerfile, so that both
# images share these layers.
FROM debian:bookworm-slim AS python
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 ca-certificates \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/ttserve

FROM python AS builder
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1
COPY constraints.txt ./
COPY tools/install.py tools/
# First what is large and seldom changes, beside a project that is only a name.
RUN printf '[project]\nname = "ttserve"\nversion = "0"\n' > pyproject.toml \
 && python3 tools/install.py serve
# Then ours, in place: the names of its packages are enough, and of README and
# license that they exist.
COPY pyproject.toml ./
COPY device_service/__init__.py device_service/
COPY frontend/__init__.py frontend/
COPY ttserve/__init__.py ttserve/
RUN touch README.md LICENSE && python3 tools/install.py serve

FROM python AS runtime
RUN useradd --uid 10001 --create-home --home-dir /data ttserve
COPY --from=builder /opt/ttserve/.venv .venv
COPY ttserve ttserve

# From here on: the device service.
COPY device_service device_service
COPY compose/grpc_health.py .
USER ttserve
# Converted and downloaded models, and what vLLM remembers of them.
VOLUME /data
EXPOSE 50051 9101
ENTRYPOINT [".venv/bin/tt-device-service", "--listen", "0.0.0.0:50051"]
