package app

import (
	"encoding/json"
	"errors"
	"fmt"
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

// assembleEjection creates the part that ejects backends whose connections fail, if this system has conntrack.
func (d *daemon) assembleEjection() {
	if d.o.Config.Ejection.On() && !d.o.converter().Ejects {
		d.o.Log.Warn("--ejection has no effect in this mode: endpoints are never ejected",
			"mode", d.o.kind().Facts.Name)
	}
	if d.table == nil {
		return
	}
	path, before := "", d.before.Ejections // without a control socket there is no file
	if d.held != nil {
		path = d.held.Beside("ejected")
	}
	if before == nil {
		before = d.loadEjections(path)
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
		Direct: d.plane.Tracking == plane.Untranslated || d.plane.Tracking == plane.Relayed,
		Table:  d.table, Shares: d.store.SetShares, Before: before, CPU: process.ThreadTime,
		Changed: d.ejected, Save: func(s watch.Saved) { d.saveEjections(path, s) },
		Failed: func(err error) {
			d.o.Log.Warn("Cannot read conntrack: endpoints are not ejected", "error", err)
		},
	})
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

// loadEjections returns the ejections that an earlier process saved.
func (d *daemon) loadEjections(path string) (saved watch.Saved) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &saved)
	}
	if err != nil {
		d.o.Log.Warn("Cannot read the file of ejected endpoints; all endpoints get connections", "file", path, "error", err)
		return nil
	}
	return saved.Valid(time.Now())
}

// saveEjections replaces the file atomically. Without a place for it, only a new run in this process learns the state.
func (d *daemon) saveEjections(path string, saved watch.Saved) {
	if path == "" {
		return
	}
	data, err := json.Marshal(saved)
	if err == nil {
		err = os.WriteFile(path+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil && !d.unsaved.Swap(true) {
		d.o.Log.Warn("A restart will forget which endpoints are ejected", "error", fmt.Errorf("write %s: %w", path, err))
	}
}
