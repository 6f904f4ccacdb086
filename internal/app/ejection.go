package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/eject/watch"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/process"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/text"
)

// maxEjections bounds the file of ejected backends, in bytes.
const maxEjections = 16 << 20

// assembleEjection creates the part that ejects backends whose connections fail, if this system has conntrack.
func (d *daemon) assembleEjection() {
	if d.o.Config.Ejection.On() && !d.o.converter().Ejects {
		d.o.Log.Warn("--ejection has no effect in this mode: endpoints are never ejected",
			"mode", d.o.kind().Facts.Name)
	}
	if d.table == nil {
		return
	}
	before := d.before.Ejections
	if before == nil {
		before = d.loadEjections()
	}
	d.ejections = event.NewDigest(event.DigestOptions{
		Report: func(problems []route.Problem) {
			for _, p := range problems {
				d.record(event.Ejected(p))
			}
		},
		Summary: func(_ event.Group, p route.Problem) { d.record(event.Ejected(p)) },
	})
	d.ejection = watch.New(watch.Options{
		Table: d.table, Shares: d.store.SetShares, Direct: d.untranslated(), Before: before, CPU: process.ThreadTime,
		Changed: d.ejected, Save: d.saveEjections,
		Failed: func(err error) {
			d.o.Log.Warn("Cannot read conntrack: endpoints are not ejected", "error", err)
		},
	})
}

// untranslated reports whether connections may reach backends without a translation in conntrack.
func (d *daemon) untranslated() bool {
	return d.plane.Tracking == plane.Untranslated || d.plane.Tracking == plane.Relayed
}

// ejected logs that a backend was ejected, and records an Event.
func (d *daemon) ejected(c watch.Change) {
	s := c.State
	what := text.Count(s.Failures, "connection") + " of " + text.Count(s.Clients, "client") + " failed"
	d.o.Log.Info("Ejected an endpoint", "service", c.ID.String(), "endpoint", c.Backend.String(), "reason", what,
		"trial", s.Next.Sub(s.Since).String())
	d.ejections.Report([]route.Problem{{
		Object: convert.Object("Service", c.ID.Service), Field: "endpoint", Value: c.Backend.String(),
		Reason: "gets no new connections from this node for a while, because connections to it failed",
	}})
}

// ejectionFile returns the path of the file of ejected backends; empty without a control socket.
func (d *daemon) ejectionFile() string {
	if d.held == nil {
		return ""
	}
	return d.held.Beside("ejected")
}

// loadEjections returns the ejections that an earlier process saved.
func (d *daemon) loadEjections() (saved watch.Saved) {
	path := d.ejectionFile()
	if path == "" {
		return nil
	}
	err := readJSON(path, &saved)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		d.o.Log.Warn("Cannot read the file of ejected endpoints; all endpoints get connections", "file", path, "error", err)
		return nil
	}
	return saved.Valid(time.Now())
}

func readJSON(path string, into any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return json.NewDecoder(io.LimitReader(f, maxEjections)).Decode(into)
}

// saveEjections replaces the file. Without a place for it, only a new run in this process learns the state.
func (d *daemon) saveEjections(saved watch.Saved) {
	path := d.ejectionFile()
	if path == "" {
		return
	}
	if err := writeJSON(path, saved); err != nil && !d.unsaved.Swap(true) {
		d.o.Log.Warn("A restart will forget which endpoints are ejected", "error", fmt.Errorf("write %s: %w", path, err))
	}
}

// writeJSON replaces a file atomically.
func writeJSON(path string, from any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
