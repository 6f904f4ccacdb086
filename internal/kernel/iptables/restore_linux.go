package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/xtables"
)

// Read returns what a table holds, with rules that Canonical has spelled. A
// table that does not exist holds nothing, and is not made.
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
// if the program refused it.
func (t *Tools) Restore(ctx context.Context, f Family, input []byte) error {
	path, err := t.program(f, "-restore")
	if err != nil {
		return err
	}
	seconds := int((t.opts.Wait + time.Second - 1) / time.Second)
	c := call{path: path, args: []string{"--noflush", "-w", strconv.Itoa(seconds)}, input: input}
	c.started = t.started
	err = t.run(ctx, c)
	failed, ok := errors.AsType[*failure](err)
	if !ok {
		return err
	}
	program := filepath.Base(path)
	switch {
	case strings.Contains(failed.said, "xtables lock"):
		holder, _ := xtables.LockHolder(t.opts.Lock)
		return fmt.Errorf("%s: lock %s: %s after %s", program, t.opts.Lock, holder, t.opts.Wait)
	case strings.Contains(failed.said, "you must be root"):
		return fmt.Errorf("%w: run as root, or grant CAP_NET_ADMIN and CAP_NET_RAW", err)
	}
	return refused(program, string(input), failed.said)
}

// program returns the path of a program of the variant.
func (t *Tools) program(f Family, suffix string) (string, error) {
	p := t.programs[f]
	path := p.save
	if suffix == "-restore" {
		path = p.restore
	}
	if path == "" {
		return "", fmt.Errorf("%s is %w", programName(f, "-"+string(t.variant), suffix), ErrMissing)
	}
	return path, nil
}

func (t *Tools) id(table Table) xtables.TableID {
	return xtables.TableID{Variant: t.variant, Family: table.Family, Name: table.Name}
}

// started watches over a program while it waits for the lock.
func (t *Tools) started(pid int) func() {
	if t.variant != xtables.Legacy {
		return func() {}
	}
	timer := time.AfterFunc(patient, func() {
		if holder, held := xtables.LockHolder(t.opts.Lock); held && holder.PID != pid {
			t.opts.Log.Info("waiting for the lock of iptables", "file", t.opts.Lock, "holder", holder.String())
		}
	})
	return func() { timer.Stop() }
}

// patient is how long waiting for the lock is nothing to speak of.
const patient = time.Second
