//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "The demo cannot run here: it needs Linux, with its network namespaces and nftables.")
	os.Exit(2)
}
