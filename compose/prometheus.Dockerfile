# Debian's Prometheus, told where the frontends are. Build from the repository's root:
#   docker build -f compose/prometheus.Dockerfile .
FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends prometheus \
 && rm -rf /var/lib/apt/lists/* \
 && chown -R prometheus: /var/lib/prometheus
COPY compose/prometheus.yml /etc/prometheus/prometheus.yml
USER prometheus
VOLUME /var/lib/prometheus
EXPOSE 9090
ENTRYPOINT ["prometheus", \
  "--config.file=/etc/prometheus/prometheus.yml", \
  "--storage.tsdb.path=/var/lib/prometheus", \
  "--storage.tsdb.retention.time=15d"]
