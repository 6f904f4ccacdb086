//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
)

// result are the measurements of one proxy with one number of Services.
type result struct {
	Services int
	Proxy    string // of proxyNames
	Versions string // of the proxy and its tools
	When     time.Time

	// NotReached names an event that did not happen in time and ended the measurement; empty if there was none.
	NotReached string `json:",omitempty"`

	// Values has the measured values by the keys of rows. Durations are in nanoseconds, memory in bytes.
	Values map[string]float64

	Heap string `json:",omitempty"` // heap profile of Sluice, as printed by pprof
}

// duration records a duration. One of 0 was not measured.
func (r *result) duration(key string, d time.Duration) {
	if d != 0 {
		r.Values[key] = float64(d)
	}
}

// count records a number.
func (r *result) count(key string, n int) { r.Values[key] = float64(n) }

// share records the CPU time of a span in percent of one core.
func (r *result) share(key string, cpu, span time.Duration) {
	r.Values[key] = 100 * float64(cpu) / float64(span)
}

// ratio records the ratio of two values, if both were measured in this run.
func (r *result) ratio(key, of, to string) {
	if r.Values[of] > 0 && r.Values[to] > 0 {
		r.Values[key] = r.Values[of] / r.Values[to]
	}
}

// spread records the distribution of durations.
func (r *result) spread(key string, times []time.Duration) {
	if len(times) == 0 {
		return
	}
	for name, q := range map[string]float64{".p50": 0.5, ".p90": 0.9, ".p99": 0.99, ".max": 1} {
		r.duration(key+name, harness.Quantile(times, q))
	}
	r.count(key+".n", len(times))
}

// load reads saved results; none if there is no file.
func load(path string) ([]*result, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var results []*result
	if err := json.Unmarshal(text, &results); err != nil {
		return nil, fmt.Errorf("read the results of earlier runs in %s: %w", path, err)
	}
	return results, nil
}

// save adds a result to the file and replaces values that were measured again.
func save(path string, r *result) error {
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
	return harness.Replace(path, text)
}

func merge(results []*result, r *result) []*result {
	for _, old := range results {
		if old.Services != r.Services || old.Proxy != r.Proxy {
			continue
		}
		old.Versions, old.When, old.NotReached = r.Versions, r.When, r.NotReached
		if old.Values == nil {
			old.Values = map[string]float64{}
		}
		maps.Copy(old.Values, r.Values)
		if r.Heap != "" {
			old.Heap = r.Heap
		}
		return results
	}
	return append(results, r)
}
