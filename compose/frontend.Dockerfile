# A frontend. Build from the repository's root:
#   docker build -f compose/frontend.Dockerfile .
#
# Up to "From here on" this file is the same as device-service.Dockerfile, so that
# both images share these layers.
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

# From here on: a frontend.
COPY frontend frontend
USER ttserve
EXPOSE 8000 9100
ENTRYPOINT [".venv/bin/tt-frontend", "--host", "0.0.0.0", "--port", "8000", "--metrics-port", "9100"]
