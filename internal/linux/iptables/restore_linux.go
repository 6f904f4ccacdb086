package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Read returns the chains of a table, with rules in the spelling of Canonical. A table
// that does not exist has none, and is not created.
func (t *Tools) Read(ctx context.Context, table Table) (Chains, error) {
	path, err := t.program(table.Family, "-save")
	if err != nil {
		return nil, err
	}
	there, err := t.kernel.Exists(ctx, t.id(table))
	if err != nil {
		return nil, err
	}
	if !there {
		return Chains{}, nil
	}
	var tables map[string]Chains
	c := call{path: path, args: []string{"-t", table.Name}}
	c.output = func(r io.Reader) (err error) {
		tables, err = parse(r)
		return err
	}
	if err := t.run(ctx, c); err != nil {
		return nil, fmt.Errorf("read table %s: %w", table.Name, err)
	}
	chains, printed := tables[table.Name]
	if !printed {
		return nil, fmt.Errorf("read table %s: %w", table.Name, io.ErrUnexpectedEOF)
	}
	return chains, nil
}

// Restore gives input to PROGRAM-restore --noflush. The error is a RestoreError if the program refused it. Tables are
// committed one after the other, so a program that has begun is finished when the context ends, unless it takes longer
// than finishTime. The legacy variant waits for its lock, for Options.Wait.
func (t *Tools) Restore(ctx context.Context, f Family, input []byte) error {
	return t.restore(ctx, f, input)
}

// Test has PROGRAM-restore check input without a change. It does not find what only the
// kernel refuses. The legacy variant creates the tables that are named.
func (t *Tools) Test(ctx context.Context, f Family, input []byte) error {
	return t.restore(ctx, f, input, "--test")
}

// In returns the same programs for another network namespace, by its file descriptor. No other program may use that:
// they do not wait for the lock of iptables, which all namespaces share.
func (t *Tools) In(netns int) *Tools {
	o := t.opts
	o.NetNS, o.Lock = netns, os.DevNull
	return &Tools{opts: o, kernel: NewKernel(o), variant: t.variant, reason: t.reason, programs: t.programs}
}

func (t *Tools) restore(ctx context.Context, f Family, input []byte, more ...string) error {
	path, err := t.program(f, "-restore")
	if err != nil {
		return err
	}
	seconds := strconv.Itoa(int(t.opts.Wait / time.Second))
	c := call{path: path, args: append(more, "--noflush", "-w", seconds), input: input}
	c.started, c.finish = t.own.Program, finishTime
	run := func() error { return t.run(ctx, c) }
	if w := t.legacy.Load(); w != nil {
		err = w.write(ctx, run)
	} else {
		err = run()
	}
	failed, ok := errors.AsType[*failure](err)
	if !ok {
		return err
	}
	program := filepath.Base(path)
	switch {
	case strings.Contains(failed.stderr, "xtables lock"):
		return fmt.Errorf("%s: lock %s: held by %s after %s", program, t.opts.Lock, lockHolder(t.opts.Lock), t.opts.Wait)
	case strings.Contains(failed.stderr, "lock file"):
		return err
	case strings.Contains(failed.stderr, "you must be root"):
		return fmt.Errorf("%w: run as root, or grant CAP_NET_ADMIN and CAP_NET_RAW", err)
	case strings.Contains(failed.stderr, "unable to initialize table"): // legacy; it does not say why
		return fmt.Errorf("%w: run as root, or grant CAP_NET_ADMIN and CAP_NET_RAW; or the kernel does not have the table",
			err)
	}
	return refused(program, string(input), failed.stderr)
}

// program returns the path of a program of the variant.
func (t *Tools) program(f Family, suffix string) (string, error) {
	p := t.programs[f]
	path := p.save
	if suffix == "-restore" {
		path = p.restore
	}
	if path == "" {
		return "", fmt.Errorf("%s is %w", f.Program()+"-"+string(t.variant)+suffix, ErrMissing)
	}
	return path, nil
}

func (t *Tools) id(table Table) TableID {
	return TableID{Variant: t.variant, Family: table.Family, Name: table.Name}
}

// lockHolder names the process that holds a lock file: "iptables (process 812)". It does not know a process in
// another PID namespace, which /proc/locks does not show (proc(5)).
func lockHolder(path string) string {
	pid := 0
	var file unix.Stat_t
	if locks, err := os.ReadFile("/proc/locks"); err == nil && unix.Stat(path, &file) == nil {
		pid = locker(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(file.Dev), unix.Minor(file.Dev), file.Ino))
	}
	if pid == 0 {
		return "another process"
	}
	program, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("%s (process %d)", strings.TrimSpace(string(program)), pid)
}

// locker returns the process that has locked a file, given by device and inode; 0 if it is not listed. A line is "1:
// FLOCK ADVISORY WRITE 52 00:1a:7 0 EOF", with "->" after the number if the process waits.
func locker(locks, file string) int {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}
