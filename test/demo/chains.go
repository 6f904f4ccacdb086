//go:build linux

package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/test/lab"
)

// chains are those of iptables on a host, seen through its programs.
type chains struct {
	on      *lab.Host
	program string // for IPv4: "iptables-nft"
}

// chains finds the programs that sluice uses in mode iptables; an error says why
// it cannot.
func (t *tour) chains() (*chains, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := lacks(probe.Iptables(ctx, probe.Options{NetNS: t.NodeA.NetNSFD()})); err != nil {
		return nil, err
	}
	tools, err := iptables.Open(ctx, iptables.Options{NetNS: t.NodeA.NetNSFD()})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tools.Close() }() // all is answered
	c := &chains{on: t.NodeA, program: "iptables-" + string(tools.Variant())}
	if _, err := find(c.program); err != nil {
		c.program = "iptables" // there is but one variant
	}
	return c, nil
}

// lacks says what a probe found missing, in one line.
func lacks(found probe.Support, err error) error {
	switch {
	case errors.Is(err, iptables.ErrMissing):
		return errors.New("there is no iptables; install the package iptables")
	case err != nil:
		line, _, _ := strings.Cut(err.Error(), "\n")
		return errors.New(line)
	case !found.IPv6:
		return errors.New(strings.Join(append(found.Notes, "there is no IPv6"), "; "))
	}
	return nil
}

// find returns the path of a program, also for users whose path has no folder
// for administrators.
func find(program string) (path string, err error) {
	for _, folder := range []string{"", "/usr/sbin", "/sbin"} {
		if path, err = exec.LookPath(filepath.Join(folder, program)); err == nil {
			return path, nil
		}
	}
	return "", err
}

func (c *chains) run(program string, args ...string) (string, error) {
	path, err := find(program)
	if err != nil {
		return "", err
	}
	return c.on.Run("", append([]string{path}, args...)...)
}

// rules returns those of the table nat in IPv4, sorted. Chains have no fixed
// order.
func (c *chains) rules() ([]string, error) {
	out, err := c.run(c.program+"-save", "-t", "nat")
	return linesWith(out, "-A "), err
}

// left returns every line about a chain with a name of kube-proxy's, in both
// families, but for the one that is kubelet's too.
func (c *chains) left() ([]string, error) {
	var found []string
	for _, program := range []string{c.program, "ip6" + strings.TrimPrefix(c.program, "ip")} {
		out, err := c.run(program + "-save")
		if err != nil {
			return nil, err
		}
		found = append(found, linesWith(out, "KUBE-")...)
	}
	return slices.DeleteFunc(found, func(line string) bool { return strings.Contains(line, "KUBE-FIREWALL") }), nil
}

// linesWith returns the lines that have a word, sorted.
func linesWith(text, word string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	slices.Sort(found)
	return found
}
