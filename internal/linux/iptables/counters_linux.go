package iptables

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Translated returns how many connections the chains of table nat have sent elsewhere, by the counters of their rules
// with target DNAT. It takes as long as Read.
func (t *Tools) Translated(ctx context.Context, f Family) (map[string]uint64, error) {
	path, err := t.program(f, "-save")
	if err != nil {
		return nil, err
	}
	table := Table{Family: f, Name: "nat"}
	if there, err := t.kernel.Exists(ctx, t.id(table)); err != nil || !there {
		return nil, err
	}
	var counts map[string]uint64
	c := call{path: path, args: []string{"-c", "-t", table.Name}}
	c.output = func(r io.Reader) (err error) {
		counts, err = translated(r)
		return err
	}
	if err := t.run(ctx, c); err != nil {
		return nil, fmt.Errorf("read counters of table %s: %w", table.Name, err)
	}
	return counts, nil
}

// translated reads the output of PROGRAM-save -c, whose lines begin with "[packets:bytes] -A CHAIN".
func translated(r io.Reader) (map[string]uint64, error) {
	counts := map[string]uint64{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	ended := false
	for lines.Scan() {
		line := lines.Text()
		ended = ended || line == "COMMIT"
		counters, rule, counted := strings.Cut(line, "] -A ")
		if !counted || !strings.HasPrefix(counters, "[") || !strings.Contains(rule, "DNAT") || Target(rule) != "DNAT" {
			continue
		}
		packets, _, _ := strings.Cut(counters[1:], ":")
		n, err := strconv.ParseUint(packets, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("parse counter: %w", err)
		}
		chain, _, _ := strings.Cut(rule, " ")
		counts[strings.Clone(chain)] += n
	}
	switch {
	case lines.Err() != nil:
		return nil, fmt.Errorf("read line: %w", lines.Err())
	case !ended:
		return nil, fmt.Errorf("%w: the table does not end", io.ErrUnexpectedEOF)
	}
	return counts, nil
}
