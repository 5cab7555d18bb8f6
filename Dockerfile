# The programs, built here and run on Debian by an unprivileged user.
#   docker build .               the service alone
#   docker build --target lab .  the service with the page's controls, and the load test, for docker-compose.yml
FROM rust:1.95-slim-bookworm AS builder
RUN apt-get update \
    && apt-get install -y --no-install-recommends protobuf-compiler libprotobuf-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build

# The dependencies first, with empty packages, so that a change to the source does not build them again.
COPY Cargo.toml Cargo.lock ./
COPY crates/fenced-lock/Cargo.toml crates/fenced-lock/
COPY crates/testkit/Cargo.toml crates/testkit/
COPY lab/Cargo.toml lab/
COPY loadtest/Cargo.toml loadtest/
RUN for package in . crates/fenced-lock crates/testkit lab loadtest; do mkdir -p $package/src; touch $package/src/lib.rs; done \
    && mkdir -p crates/fenced-lock/tests/it && touch crates/fenced-lock/tests/it/main.rs \
    && echo 'fn main() {}' | tee src/main.rs lab/src/main.rs > loadtest/src/main.rs \
    && cargo build --release --locked --workspace --bins

# The empty packages are newer than the source: without the clean, cargo would not build the source.
COPY . .
RUN cargo clean --release --workspace && cargo build --release --locked --workspace --bins

FROM debian:bookworm-slim AS runtime
# a number, so that an orchestrator can see that it is not root
USER 65532:65532
# inside a container no client reaches the loopback address
ENV FLASH_SALE_LISTEN=0.0.0.0:8080
EXPOSE 8080

# not for a real sale
FROM runtime AS lab
COPY --from=builder /build/target/release/flash-sale /build/target/release/loadtest \
    /build/target/release/lab /usr/local/bin/
ENTRYPOINT ["lab"]
CMD ["serve"]

FROM runtime AS service
COPY --from=builder /build/target/release/flash-sale /usr/local/bin/
ENTRYPOINT ["flash-sale"]
CMD ["serve"]
