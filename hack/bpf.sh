#!/usr/bin/env bash
# Compiles the programs of internal/linux/bpf. Needs clang 14, and the headers of linux and libbpf (Debian: clang-14
# llvm-14 libbpf-dev linux-libc-dev). The results are committed: nothing else needs them.
set -euo pipefail
cd "$(dirname "$0")/../internal/linux/bpf"

out=${1:-.} # a test compiles into another folder, and compares
clang=${CLANG:-clang-14}
strip=${STRIP:-llvm-strip-14}
flags=(-O2 -g -Wall -Werror "-I/usr/include/$(uname -m)-linux-gnu")
GOPACKAGE=bpf go run github.com/cilium/ebpf/cmd/bpf2go -go-package bpf -cc "$clang" -strip "$strip" -no-global-types -tags linux \
	-target bpfel -output-dir "$out" -cflags "${flags[*]}" sock programs/sock.c

if [[ $out == . ]]; then
	{
		sha256sum programs/sock.c sock_bpfel.go sock_bpfel.o
		"$clang" --version | head -n1
	} >sock.sum
fi
