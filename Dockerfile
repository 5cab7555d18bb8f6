# Both programs, built here and run on Debian by a user without rights. docker-compose.yml uses it.
FROM rust:1.95-slim-bookworm AS builder
RUN apt-get update \
    && apt-get install -y --no-install-recommends protobuf-compiler libprotobuf-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build

# The dependencies first, with empty programs, so that a change to the source does not build them again.
COPY Cargo.toml Cargo.lock ./
RUN mkdir src loadtest \
    && echo 'fn main() {}' | tee src/main.rs > loadtest/main.rs \
    && touch src/lib.rs \
    && cargo build --release --locked \
    && rm -r src loadtest

# The empty programs are younger than the source: without the clean, cargo would take them for up to date.
COPY . .
RUN cargo clean --release --package flash-sale && cargo build --release --locked --bins

FROM debian:bookworm-slim
COPY --from=builder /build/target/release/flash-sale /build/target/release/loadtest /usr/local/bin/
# a number, so that an orchestrator can see that it is not root
USER 65532:65532
# inside a container the loopback address would be reachable by nobody
ENV FLASH_SALE_LISTEN=0.0.0.0:8080
EXPOSE 8080
ENTRYPOINT ["flash-sale"]
CMD ["serve"]
