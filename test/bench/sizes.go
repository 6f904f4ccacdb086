//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/sluice-proxy/sluice/test/lab"
)

// measureSizes measures every size in separate processes, so that each has its own memory peak. It
// alternates the sizes, so that other load of the machine affects all of them.
func measureSizes(o options, w io.Writer) error {
	results := make([][]result, len(o.sizes))
	for turn := range o.runs {
		for i, n := range o.sizes {
			fmt.Fprintf(os.Stderr, "run %d of %d: %d Services\n", turn+1, o.runs, n)
			r, err := spawn(o, n)
			if err != nil {
				return fmt.Errorf("measure %d Services: %w", n, err)
			}
			results[i] = append(results[i], r)
		}
	}
	return printSizes(w, o.sizes, results)
}

func spawn(o options, n int) (result, error) {
	out, err := child(o, n)
	if err != nil {
		return result{}, err
	}
	var r result
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("read the result: %w", err)
	}
	return r, nil
}

// child runs a process that measures one size, and returns its output.
func child(o options, n int) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, fmt.Sprint("-child=", n), "-plane="+o.plane, fmt.Sprint("-changes=", o.changes),
		"-profile="+o.profile, fmt.Sprint("-questions=", o.questions), fmt.Sprint("-programs=", o.programs))
	cmd.Stderr = os.Stderr
	return cmd.Output()
}

// measureChild measures one size in a new network namespace.
func measureChild(o options, w io.Writer) error {
	return inNamespace(o, w, func(o options) (any, error) {
		switch {
		case o.questions:
			return measureQuestions(o)
		case o.programs:
			return measurePrograms(o)
		}
		return measure(o)
	})
}

// inNamespace measures in a new network namespace, with a temporary folder, and prints the result as JSON.
func inNamespace(o options, w io.Writer, measure func(options) (any, error)) error {
	if err := lab.Enter(); err != nil {
		return err
	}
	var err error
	if o.dir, err = os.MkdirTemp("", "sluice-bench-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(o.dir) }()
	r, err := measure(o)
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(r)
}
