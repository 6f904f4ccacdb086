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
	var chains Chains
	c := call{path: path, args: []string{"-t", table.Name}}
	c.output = func(r io.Reader) (err error) {
		chains, err = parseSave(r, table.Name)
		return err
	}
	if err := t.run(ctx, c); err != nil {
		return nil, fmt.Errorf("read table %s: %w", table.Name, err)
	}
	return chains, nil
}

// Restore gives input to PROGRAM-restore --noflush. The error is a RestoreError
// if the program refused it. Tables are committed one after the other, so a
// program that has begun is finished when the context ends, unless it takes
// longer than finishTime.
func (t *Tools) Restore(ctx context.Context, f Family, input []byte) error {
	return t.restore(ctx, f, input)
}

// Test has PROGRAM-restore check input without a change. It does not find what only the
// kernel refuses. The legacy variant creates the tables that are named.
func (t *Tools) Test(ctx context.Context, f Family, input []byte) error {
	return t.restore(ctx, f, input, "--test")
}

// In returns the same programs for another network namespace, by its file descriptor.
// No other program may use that: they do not wait for the lock of iptables, which all
// namespaces share.
func (t *Tools) In(netns int) *Tools {
	o := t.opts
	o.NetNS, o.Lock = netns, os.DevNull
	kernel := NewKernel(o)
	return &Tools{
		opts: o, kernel: kernel,
		variant: t.variant, reason: t.reason, programs: t.programs,
	}
}

func (t *Tools) restore(ctx context.Context, f Family, input []byte, more ...string) error {
	path, err := t.program(f, "-restore")
	if err != nil {
		return err
	}
	waited, err := t.awaitLock(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	seconds := int((t.opts.Wait - waited + time.Second - 1) / time.Second)
	c := call{path: path, args: append(more, "--noflush", "-w", strconv.Itoa(max(1, seconds))), input: input}
	c.started, c.finish = t.started, finishTime
	run := func() error { return t.run(ctx, c) }
	if w := t.legacy.Load(); w != nil {
		err = w.write(ctx, run)
	} else {
		err = run()
	}
	if err == nil {
		t.waits.Store(false)
	}
	failed, ok := errors.AsType[*failure](err)
	if !ok {
		return err
	}
	program := filepath.Base(path)
	switch {
	case strings.Contains(failed.stderr, "xtables lock"):
		holder, _ := lockHolder(t.opts.Lock)
		return fmt.Errorf("%s: lock %s: %s after %s", program, t.opts.Lock, holder, t.opts.Wait)
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

// started records that a program of this process runs, and logs if it waits for the lock.
// The returned function records its end.
func (t *Tools) started(pid int) func() {
	t.own.started(pid)
	stop := t.logWaiting(pid)
	return func() {
		stop()
		t.own.ended(pid)
	}
}

// awaitLock waits until the holder of the lock releases it or changes, until half
// of Options.Wait has passed, or until the context ends, and returns how long that
// took. The program itself waits for the rest.
func (t *Tools) awaitLock(ctx context.Context) (time.Duration, error) {
	if t.variant != Legacy {
		return 0, nil
	}
	began := time.Now()
	defer t.logWaiting(0)()
	err := waitForLock(ctx, t.opts.Lock, t.opts.Wait/2)
	return time.Since(began), err
}

// logWaiting logs, once until a restore succeeds, who else holds the lock after a
// while; the returned function ends that.
func (t *Tools) logWaiting(pid int) (stop func()) {
	if t.variant != Legacy {
		return func() {}
	}
	timer := time.AfterFunc(lockWaitQuiet, func() {
		holder, held := lockHolder(t.opts.Lock)
		if held && (pid == 0 || holder.PID != pid) && t.waits.CompareAndSwap(false, true) {
			t.opts.Log.Info("Waiting for the lock of iptables", "file", t.opts.Lock, "holder", holder.String())
		}
	})
	return func() { timer.Stop() }
}

// lockWaitQuiet is how long to wait for the lock before logging it.
const lockWaitQuiet = time.Second
