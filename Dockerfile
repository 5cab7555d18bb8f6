# The programs, built here and run on Debian by an unprivileged user.
#   docker build .                the service alone
#   docker build --target demo .  the service with the page's controls, and the load test, for docker-compose.yml
# With --build-arg GIT_COMMIT=$(git rev-parse --short HEAD), /version names the commit.
FROM rust:1.95-slim-bookworm AS source
RUN apt-get update \
    && apt-get install -y --no-install-recommends protobuf-compiler libprotobuf-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .

FROM source AS build-demo
ARG GIT_COMMIT
RUN cargo build --release --locked --package demo --package flash-sale --package loadtest

FROM debian:bookworm-slim AS runtime
# for etcd and Redis whose certificates a public authority signed
COPY --from=source /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
# a number, so that an orchestrator can see that it is not root
USER 65532:65532
# inside a container no client reaches the loopback address
ENV FLASH_SALE_LISTEN=0.0.0.0:8080
EXPOSE 8080

# not for a real sale
FROM runtime AS demo
COPY --from=build-demo /build/target/release/flash-sale /build/target/release/loadtest \
    /build/target/release/demo /usr/local/bin/
ENTRYPOINT ["demo"]
CMD ["serve"]

FROM source AS build-service
ARG GIT_COMMIT
RUN cargo build --release --locked --package flash-sale

FROM runtime AS service
COPY --from=build-service /build/target/release/flash-sale /usr/local/bin/
ENTRYPOINT ["flash-sale"]
CMD ["serve"]
