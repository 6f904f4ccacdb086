#!/usr/bin/env bash
# Compiles the programs of internal/linux/bpf. Needs clang 14, and the headers of linux and libbpf (Debian: clang-14
# llvm-14 libbpf-dev linux-libc-dev). The result is committed: nothing else needs them.
set -euo pipefail
cd "$(dirname "$0")/../internal/linux/bpf"

out=${1:-.} # a test compiles into another folder, and compares
clang=${CLANG:-clang-14}
strip=${STRIP:-llvm-strip-14}
# Instructions that every kernel has, the fields of structs (BTF), and nothing that depends on this machine
flags=(-O2 -mcpu=v1 -g -Wall -Werror -target bpfel -fno-ident -fdebug-compilation-dir .
	"-I/usr/include/$(uname -m)-linux-gnu")
"$clang" "${flags[@]}" -c programs/sock.c -o "$out/sock_bpfel.o"
"$strip" -g "$out/sock_bpfel.o"

if [[ $out == . ]]; then
	{
		sha256sum programs/sock.c sock_bpfel.o
		"$clang" --version | head -n1
	} >sock.sum
fi
