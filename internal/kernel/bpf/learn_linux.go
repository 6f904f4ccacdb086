package bpf

import (
	"context"
	"errors"
	"fmt"
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
	reports, err := c.reader(sockMapUnknownClients)
	if err != nil {
		return fmt.Errorf("open the reports of unknown clients: %w", err)
	}
	defer func() { _ = reports.Close() }() // it was only read from
	stop := context.AfterFunc(ctx, func() { _ = reports.Close() })
	defer stop()
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
			break
		}
	}
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return fmt.Errorf("read the reports of unknown clients: %w", err)
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
	spec, err := c.build.load()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[sockVarNodeNetns].Set(c.cookie); err != nil {
		return nil, err
	}
	for name := range spec.Programs {
		if name != sockProgSluiceLearn {
			delete(spec.Programs, name)
		}
	}
	for name := range spec.Maps {
		if name != sockMapClients && !isDataSection(name) {
			delete(spec.Maps, name)
		}
	}
	var l link.Link
	err = c.use(sockMapClients, func(m *ebpf.Map) error {
		programs, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{sockMapClients: m}})
		if err != nil {
			return fmt.Errorf("load the program that learns addresses: %w", err)
		}
		defer programs.Close() // the link keeps the program
		l, err = link.AttachCgroup(link.CgroupOptions{
			Path: c.opt.Cgroup, Attach: ebpf.AttachCGroupSockOps, Program: programs.Programs[sockProgSluiceLearn],
		})
		if err != nil {
			return fmt.Errorf("attach the program that learns addresses to %s: %w", c.opt.Cgroup, err)
		}
		return nil
	})
	return l, err
}
