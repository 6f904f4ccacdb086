# The images, which differ in what a mode needs:
#
#   sluice:VERSION           mode nftables: one static binary
#   sluice:VERSION-iptables  mode iptables: with the programs of iptables, too
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 -t sluice:v0.1.0 .
#   docker buildx build ... --target iptables -t sluice:v0.1.0-iptables .
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
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
      -ldflags "-s -w -X github.com/sluice-proxy/sluice/internal/cli.stamp=$VERSION" \
      -o /out/usr/local/bin/sluice ./cmd/sluice \
 && ln -s sluice /out/usr/local/bin/kube-proxy

# iptables of both variants, and of Debian only what these programs need: their
# extensions, shared libraries, names of protocols; and for scanners and lawyers
# which packages that is. There is no plain iptables-save: it would have to know
# which variant the node uses.
FROM debian:bookworm-slim AS programs
RUN apt-get update \
 && apt-get install -y --no-install-recommends iptables
RUN mkdir -p /out/var/lib/dpkg/status.d \
 && cp -a --parents /usr/sbin/xtables-*-multi /usr/sbin/ip*tables-nft* /usr/sbin/ip*tables-legacy* /out \
 && cp -a --parents /usr/lib/*/xtables/lib[ix]*.so /etc/protocols /out \
 && ldd /usr/sbin/xtables-*-multi /usr/lib/*/xtables/lib[ix]*.so >/libraries \
 && for library in $(sed -n 's,^\t[^/]*\(/[^ ]*\) (0x.*,\1,p' /libraries | sort -u); do cp -L --parents $library /out || exit; done \
 && for package in iptables $(dpkg-query -W -f '${Depends}' iptables | sed 's/ *([^)]*)//g; s/,//g'); do \
      dpkg-query -s $package >/out/var/lib/dpkg/status.d/$package && cp -L --parents /usr/share/doc/$package/copyright /out || exit; \
    done

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
