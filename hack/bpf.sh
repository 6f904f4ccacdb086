#!/usr/bin/env bash
# Compiles the programs of internal/kernel/bpf. Needs clang 14, and the headers of linux and libbpf (Debian: clang-14
# llvm-14 libbpf-dev linux-libc-dev). The results are committed: nothing else needs them.
set -euo pipefail
cd "$(dirname "$0")/../internal/kernel/bpf"

out=${1:-.} # a test compiles into another folder, and compares
clang=${CLANG:-clang-14}
strip=${STRIP:-llvm-strip-14}
flags=(-O2 -g -Wall -Werror "-I/usr/include/$(uname -m)-linux-gnu")
GOPACKAGE=bpf go run github.com/cilium/ebpf/cmd/bpf2go -go-package bpf -cc "$clang" -strip "$strip" -no-global-types -tags linux \
	-target bpfel -output-dir "$out" -cflags "${flags[*]}" sock programs/sock.c

# A version whose maps have other keys, values, sizes and types, for tests of upgrades and downgrades.
field() { # struct, field at its end
	grep -q "^struct $1 {" "$source"
	sed -i "/^struct $1 {/,/^};/s/^};/\t$2;\n};/" "$source"
}
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
source=$work/sock.c
cp programs/sock.c "$source"
field frontend '__u32 other'
field slot '__u32 other'
field member_key '__u32 other'
field client_key '__u64 other'
field connected '__u64 other'
field flow_key '__u64 other'
grep -q 'newest = 65536' "$source"
sed -i 's/newest = 65536/newest = 32768/; s/BPF_MAP_TYPE_LRU_PERCPU_HASH/BPF_MAP_TYPE_PERCPU_HASH/' "$source"
mkdir -p "$out/testdata"
(cd "$work" && "$clang" "${flags[@]}" -fdebug-compilation-dir=. -target bpfel -mcpu=v1 -c sock.c -o other.o && "$strip" -g other.o)
cp "$work/other.o" "$out/testdata/other.o"

if [[ $out == . ]]; then
	{
		sha256sum programs/sock.c sock_bpfel.go sock_bpfel.o testdata/other.o
		"$clang" --version | head -n1
	} >sock.sum
fi
