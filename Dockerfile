# The images, which differ in what a mode needs:
#
#   sluice:VERSION           mode nftables: one static binary
#   sluice:VERSION-iptables  mode iptables: with the programs of iptables, too
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 -t sluice:v0.1.0 .
#   docker buildx build ... --target iptables -t sluice:v0.1.0-iptables .
#
# `make image` writes both without a container engine, with the same files.
#
# The binary is there under its own name and as kube-proxy, so that the command of
# kubeadm's DaemonSet works with it unchanged.

FROM --platform=$BUILDPLATFORM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY internal internal
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=v0.0.0-dev
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X github.com/sluice-proxy/sluice/internal/cli.stamp=$VERSION" \
      -o /out/usr/local/bin/sluice ./cmd/sluice \
 && ln -s sluice /out/usr/local/bin/kube-proxy

# The programs of iptables, from the Debian packages that are pinned in hack/image.
FROM --platform=$BUILDPLATFORM golang:1.26.8 AS programs
WORKDIR /src
COPY go.mod go.sum ./
COPY hack/image hack/image
ARG TARGETARCH
RUN mkdir /out \
 && hack/image/debian.sh $TARGETARCH /packages/$TARGETARCH \
 && go run -trimpath ./hack/image -packages /packages -files $TARGETARCH | tar -x -C /out

FROM scratch AS iptables
ARG VERSION=v0.0.0-dev
LABEL org.opencontainers.image.title="Sluice" \
      org.opencontainers.image.description="A Kubernetes service proxy, a drop-in for kube-proxy, with iptables" \
      org.opencontainers.image.source="https://github.com/sluice-proxy/sluice" \
      org.opencontainers.image.licenses="Apache-2.0 AND GPL-2.0-or-later" \
      org.opencontainers.image.version="$VERSION"
COPY --from=programs /out /
COPY --from=build /out /
ENV PATH=/usr/local/bin:/usr/sbin
# NET_ADMIN, as below; and NET_RAW for the legacy variant, which opens a raw
# socket and writes /run/xtables.lock, the host's.
USER 0:0
ENTRYPOINT ["sluice"]

FROM scratch
ARG VERSION=v0.0.0-dev
LABEL org.opencontainers.image.title="Sluice" \
      org.opencontainers.image.description="A Kubernetes service proxy, a drop-in for kube-proxy" \
      org.opencontainers.image.source="https://github.com/sluice-proxy/sluice" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /out /
ENV PATH=/usr/local/bin
# Root, because container runtimes give nobody else the capability it needs,
# NET_ADMIN. It needs no other and no writable file.
USER 0:0
ENTRYPOINT ["sluice"]
