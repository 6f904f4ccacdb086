package main

import (
	"os"

	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
)

// self is the binary of this process, also if the file was replaced.
const self = "/proc/self/exe"

// client returns the task of a process that a self-test has started; nil: this is none.
func client() func() error {
	if !bpf.IsClient(os.Args) {
		return nil
	}
	return func() error { return bpf.Client(os.Args, os.Stdout) }
}
