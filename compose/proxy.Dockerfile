# Debian's haproxy in front of the frontends. Build from the repository's root:
#   docker build -f compose/proxy.Dockerfile .
FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends haproxy \
 && rm -rf /var/lib/apt/lists/*
COPY compose/haproxy.cfg compose/no-frontend.json compose/lost-frontend.json /etc/haproxy/
USER haproxy
EXPOSE 8000 8404
# Finish what is under way, take nothing new.
STOPSIGNAL SIGUSR1
ENTRYPOINT ["haproxy", "-db", "-f", "/etc/haproxy/haproxy.cfg"]
