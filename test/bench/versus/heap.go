//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// heap tells where the memory of Sluice is, by what allocated it.
func (n *node) heap(r *result) error {
	if !n.kind.ours() {
		return nil
	}
	profile, err := n.proxy.get("/debug/pprof/heap?gc=1")
	if err != nil {
		return err
	}
	path := filepath.Join(n.dir, "heap.pprof")
	if err := os.WriteFile(path, profile, 0o600); err != nil {
		return err
	}
	out, err := exec.Command("go", "tool", "pprof", "-top", "-sample_index=inuse_space", "-nodecount=20", n.program, path).Output()
	if err != nil {
		return fmt.Errorf("read the heap profile: %w", err)
	}
	r.Heap = table(string(out))
	return nil
}

// table is what pprof prints from the sum on: what is before names files.
func table(text string) string {
	if cut := strings.Index(text, "Showing nodes"); cut >= 0 {
		text = text[cut:]
	}
	return strings.TrimSpace(text)
}
