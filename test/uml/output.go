//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"sync"
)

// tally passes the output of a guest on, and counts the tests that passed.
type tally struct {
	to    io.Writer
	depth int // tests with fewer levels do not count: they pass without a subtest
	count int
}

// passLine is the line of a test that passed. The framework may mark its own lines with ^V.
var passLine = regexp.MustCompile(`^\s*\x16?\s*--- PASS: (\S+) `)

// Write takes one line.
func (c *tally) Write(line []byte) (int, error) {
	passed := passLine.FindSubmatch(line)
	if passed != nil && strings.Count(string(passed[1]), "/") >= c.depth {
		c.count++
	}
	return c.to.Write(line)
}

// output is the common output of concurrent jobs. Each job writes complete lines.
type output struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *output) copy(from io.Reader) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		o.line(line)
		if err != nil {
			return
		}
	}
}

func (o *output) line(line []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = o.w.Write(line) // ignore that the reader has closed the output
}

// event is an event of go test -json.
type event struct{ Action, Package, Test, Output string }

// skip reports that a job was skipped.
func (o *output) skip(j job, reason string) {
	name, _, _ := strings.Cut(j.run, "/")
	for _, e := range []event{
		{Action: "run", Test: name},
		{Action: "output", Test: name, Output: "    main.go:1: " + reason + "\n"},
		{Action: "skip", Test: name},
		{Action: "pass"},
	} {
		e.Package = j.name()
		line, _ := json.Marshal(e) //nolint:errchkjson // four strings
		o.line(append(line, '\n'))
	}
}
