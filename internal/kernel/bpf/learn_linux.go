package bpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
)

// Learn attaches the program that learns the addresses of clients by their TCP connections, and detaches it when no client that connects
// to a Service has been unknown for some time. Unknown clients attach it again. It runs until the context ends, and returns nil then. It
// calls failed with errors of the kernel; the next report of an unknown client, within a second, repeats what has failed.
func (c *Conn) Learn(ctx context.Context, quiet time.Duration, failed func(error)) error {
	return c.reading(ctx, sockMapUnknownClients, func(reports *ringbuf.Reader) error { return c.learn(reports, quiet, failed) })
}

// learn is Learn with a reader of the reports. It returns the error of the reader.
func (c *Conn) learn(reports *ringbuf.Reader, quiet time.Duration, failed func(error)) (err error) {
	var learning link.Link // nil: not attached
	defer func() { _ = closeLink(learning) }()
	for unknown := true; ; { // at first all clients may be
		if unknown {
			reports.SetDeadline(time.Now().Add(quiet))
			if learning == nil {
				learning, err = c.attachLearn()
			}
		} else {
			reports.SetDeadline(time.Time{})
			err = closeLink(learning)
			learning = nil
		}
		if err != nil {
			failed(err)
		}
		if unknown, err = next(reports); err != nil {
			return err
		}
	}
}

// next waits for a report. It returns false if there is none until the deadline.
func next(reports *ringbuf.Reader) (bool, error) {
	_, err := reports.Read()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}

// attachLearn attaches the program that learns addresses. It is detached when the link is closed, also by the end of the process.
func (c *Conn) attachLearn() (link.Link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(); err != nil {
		return nil, err
	}
	spec := c.spec.Copy()
	if err := spec.Variables[sockVarNodeNetns].Set(c.cookie); err != nil {
		return nil, err
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return name != sockProgSluiceLearn })
	used := map[string]*ebpf.Map{}
	for _, name := range mapsOf(spec.Programs[sockProgSluiceLearn]) {
		used[name] = c.maps[name]
	}
	maps.DeleteFunc(spec.Maps, func(name string, _ *ebpf.MapSpec) bool { return used[name] == nil && !isDataSection(name) })
	programs, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: used})
	if err != nil {
		return nil, fmt.Errorf("load the program that learns addresses: %w", err)
	}
	defer programs.Close() // the link keeps the program
	l, err := link.AttachCgroup(link.CgroupOptions{
		Path: c.opt.Cgroup, Attach: ebpf.AttachCGroupSockOps, Program: programs.Programs[sockProgSluiceLearn],
	})
	if err != nil {
		return nil, fmt.Errorf("attach the program that learns addresses to %s: %w", c.opt.Cgroup, err)
	}
	return l, nil
}
