//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// result is what was measured of one proxy with so many Services. Parts that
// were not measured are nil. Durations are nanoseconds in the file.
type result struct {
	Services int
	Proxy    string // of proxyNames
	Versions string // of what was measured
	When     time.Time

	// NotReached is what the proxy did not do in the time it had, after which
	// nothing more was measured.
	NotReached string `json:",omitempty"`

	Start   *started   `json:",omitempty"`
	Idle    *idled     `json:",omitempty"`
	Change  *changed   `json:",omitempty"`
	Connect *connected `json:",omitempty"`
	Churn   *churned   `json:",omitempty"`
	Rolling *rolled    `json:",omitempty"`
	Peak    *memory    `json:",omitempty"` // of everything that was done before Restart
	Restart *restarted `json:",omitempty"`
	Heap    string     `json:",omitempty"` // text, for people
}

// started is from the start of the process.
type started struct {
	Reachable time.Duration // to an answer of every probed Service
	Synced    time.Duration // to everything being written, as the proxy says
	CPU       time.Duration // until both
	Peak      memory
}

type idled struct {
	Length, CPU time.Duration
}

// changed is isolated changes, one after the other.
type changed struct {
	Seen spread        // API write to the first new connection on the new backend
	CPU  time.Duration // for each
}

// connected is connect(), in turns straight to a pod and through a Service.
type connected struct {
	Direct, Via spread
}

// churned is many changes at a steady rate.
type churned struct {
	Writes  int
	Length  time.Duration
	CPU     time.Duration
	Request spread        // of the API server's answer to a write
	Seen    spread        // API write to the first new connection
	Unseen  int           // changes that no connection had seen 30 s after the end
	P50     time.Duration // event in the process to kernel, as Sluice says
	P99     time.Duration
}

// rolled is all endpoints of a large Service replaced.
type rolled struct {
	Endpoints, Writes int
	Total             time.Duration // first write to the last connection on an old endpoint
	Writing           time.Duration // of which the writes took
	CPU               time.Duration
	Connect           spread        // new connections meanwhile
	Failed            int           // of them
	Sync              time.Duration // the longest took at least this, as a histogram tells
	Step              spread        // compile and apply of each sync, as Sluice logs
}

// restarted is a second start with nothing changed.
type restarted struct {
	Synced time.Duration
	CPU    time.Duration
	Steps  int // written, as Sluice says; -1: it does not say
}

// load reads results; none if there is no file.
func load(path string) ([]result, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var results []result
	if err := json.Unmarshal(text, &results); err != nil {
		return nil, fmt.Errorf("read the results of earlier runs in %s: %w", path, err)
	}
	return results, nil
}

// save puts a result into the file, over what it has of the same.
func save(path string, r result) error {
	results, err := load(path)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(merge(results, r), "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o666); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// merge replaces what is measured anew.
func merge(results []result, r result) []result {
	for i, old := range results {
		if old.Services != r.Services || old.Proxy != r.Proxy {
			continue
		}
		old.Versions, old.When, old.NotReached = r.Versions, r.When, r.NotReached
		keep(&old.Start, r.Start)
		keep(&old.Idle, r.Idle)
		keep(&old.Change, r.Change)
		keep(&old.Connect, r.Connect)
		keep(&old.Churn, r.Churn)
		keep(&old.Rolling, r.Rolling)
		keep(&old.Peak, r.Peak)
		keep(&old.Restart, r.Restart)
		if r.Heap != "" {
			old.Heap = r.Heap
		}
		results[i] = old
		return results
	}
	return append(results, r)
}

func keep[T any](old **T, fresh *T) {
	if fresh != nil {
		*old = fresh
	}
}
