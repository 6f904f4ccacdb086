# The image: one static binary, under its own name and as kube-proxy, so that the
# command of kubeadm's DaemonSet works with it unchanged.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 .

FROM --platform=$BUILDPLATFORM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY internal internal
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=v0.0.0-dev
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
      -ldflags "-s -w -X github.com/sluice-proxy/sluice/internal/cli.stamp=$VERSION" \
      -o /out/usr/local/bin/sluice ./cmd/sluice \
 && ln -s sluice /out/usr/local/bin/kube-proxy

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
